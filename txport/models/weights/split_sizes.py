"""Sizes of the parts of tensors that are split into tensors of the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from txport.models.weights.steps import Dims, Part, Shape
from txport.models.weights.values import Joined, Made, Value

Whole = tuple[Value, int, int]  # the value that is split, the axis, and the number of groups


def sized(values: Mapping[str, tuple[Value, ...]], shapes: Mapping[str, Shape]) -> dict[str, tuple[Value, ...]]:
    """Return the values of a model's tensors; parts without sizes get the sizes of the model's tensors."""
    sizes: dict[Whole, dict[int, int]] = {}
    for name, several in values.items():
        for value in several:
            for whole, at, size in _wanted(value, shapes[name]):
                sizes.setdefault(whole, {})[at] = size
    return {name: tuple(_sized(value, sizes) for value in several) for name, several in values.items()}


def _wanted(value: Value, shape: Dims) -> Iterator[tuple[Whole, int, int]]:
    """Yield the sizes of the parts that a tensor of this shape is made from, where they can be inferred."""
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
    """Return a value with the sizes of its parts; parts of unknown size share the rest equally."""
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
