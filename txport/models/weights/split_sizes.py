"""How large the parts of tensors are that are split as the model's are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from txport.models.weights.values import Dims, Joined, Made, Part, Shape, Value

Whole = tuple[Value, int, int]  # what is split, along which axis, and in how many groups


def sized(values: Mapping[str, tuple[Value, ...]], shapes: Mapping[str, Shape]) -> dict[str, tuple[Value, ...]]:
    """The values of a model's tensors, where parts without sizes are given those that they have in the model."""
    sizes: dict[Whole, dict[int, int]] = {}
    for name, several in values.items():
        for value in several:
            for whole, at, size in _wanted(value, shapes[name]):
                sizes.setdefault(whole, {})[at] = size
    return {name: tuple(_sized(value, sizes) for value in several) for name, several in values.items()}


def _wanted(value: Value, shape: Dims) -> Iterator[tuple[Whole, int, int]]:
    """How large the parts are of which a tensor of this shape is made, as far as that follows."""
    if not isinstance(value, Made):
        return
    step = value.step
    if isinstance(step, Part) and not -len(shape) <= step.axis < len(shape):
        return
    size = shape[step.axis] if isinstance(step, Part) and step.sizes is None else None
    if isinstance(step, Part) and size is not None:
        yield (value.of, step.axis, step.groups), step.at, size
    before = step.before(shape)
    if before is not None:
        yield from _wanted(value.of, before)


def _sized(value: Value, sizes: Mapping[Whole, Mapping[int, int]]) -> Value:
    """A value whose parts have the sizes that were found; what is left is shared among those of which none was."""
    if isinstance(value, Joined):
        return replace(value, parts=tuple(_sized(part, sizes) for part in value.parts))
    if not isinstance(value, Made):
        return value
    of = _sized(value.of, sizes)
    step = value.step
    if isinstance(step, Part) and step.sizes is None:
        known = sizes.get((value.of, step.axis, step.groups), {})
        unknown = step.count - len(known)
        left = _length(of, step.axis) - sum(known.values())
        share = max(left, 0) // unknown if unknown else 0
        step = replace(step, sizes=tuple(known.get(at, share) for at in range(step.count)))
    return Made(of, step)


def _length(value: Value, axis: int) -> int:
    dims = value.dims()
    return (dims[axis] or 0) if -len(dims) <= axis < len(dims) else 0
