"""How a model's tensor is made from tensors in files, as data: the tensors to read, and the steps after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from txport.checkpoints.weights.steps import Dims, MisfitError, Part, Shape, Step
from txport.errors import quoted


class Grid(NamedTuple):
    """A matrix in 4 bits, in the order of its weights: `codes`, and the scale and the zero point of each of them."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor


class GridReader(NamedTuple):
    """Reads a matrix in 4 bits; its scales and zero points are the same in each `group` of consecutive inputs."""

    group: int
    read: Callable[[], Grid]


class Weights(Mapping[str, Tensor]):
    """The tensors of a checkpoint's files: their shapes are known, each tensor is read when it is requested.

    `grids` reads each matrix that the files hold in 4 bits, by the name of its weights.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        read: Callable[[str], Tensor],
        grids: Mapping[str, GridReader] = MappingProxyType({}),
    ) -> None:
        self.shapes = shapes
        self.grids = grids
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # a mapping's own test would read the tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def are_equal(self, one: str, other: str) -> bool:
        """Return whether two tensors have the same shape and numbers."""
        return torch.equal(self[one], self[other])

    @staticmethod
    def joined(parts: Sequence[Weights]) -> Weights:
        """Return the tensors of several parts, which must have different names."""
        owners = {name: part for part in parts for name in part.shapes}
        shapes = {name: part.shapes[name] for name, part in owners.items()}
        grids = {name: grid for part in parts for name, grid in part.grids.items()}
        return Weights(shapes, lambda name: owners[name][name], grids)

    def renamed(self, new: Mapping[str, str]) -> Weights:
        """Return these tensors by other names: `new` has a new name for each one."""
        old = {to: name for name, to in new.items()}
        shapes = {to: self.shapes[name] for to, name in old.items()}
        grids = {new[name]: grid for name, grid in self.grids.items()}
        return Weights(shapes, lambda to: self[old[to]], grids)


@dataclass(frozen=True)
class Read:
    """A tensor of a file."""

    name: str
    shape: Shape

    def dims(self) -> Dims:
        """See `dims` of a `Step`."""
        return self.shape

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor, read from the files' tensors."""
        return weights[self.name]

    def names(self) -> tuple[str, ...]:
        """Return the names of the file tensors that it is made from."""
        return (self.name,)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Made:
    """The result of a step on a tensor."""

    of: Value
    step: Step

    def dims(self) -> Dims:
        """See `dims` of a `Step`; the error names the tensor of the file."""
        given = self.of.dims()
        try:
            return self.step.dims(given)
        except MisfitError as error:
            names = " and ".join(map(quoted, self.names()))
            raise MisfitError(f"{names} of shape {given} {error}") from error

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor, made from the files' tensors."""
        return self.step.apply(self.of.read(weights))

    def names(self) -> tuple[str, ...]:
        """Return the names of the file tensors that it is made from."""
        return self.of.names()

    def __str__(self) -> str:
        return f"{self.of}, {self.step}"


@dataclass(frozen=True)
class Joined:
    """Several tensors, joined along an axis."""

    parts: tuple[Value, ...]
    axis: int = 0

    def dims(self) -> Dims:
        """See `dims` of a `Step`."""
        every = [part.dims() for part in self.parts]
        axis = self.axis % len(every[0]) if -len(every[0]) <= self.axis < len(every[0]) else None
        rests = {None if axis is None else (*dims[:axis], *dims[axis + 1 :]) for dims in every}
        if axis is None or len(rests) > 1:
            names = " and ".join(map(quoted, self.names()))
            raise MisfitError(f"{names} of shapes {', '.join(map(str, every))} can't be joined at axis {self.axis}")
        sizes = [dims[axis] for dims in every]
        whole = None if None in sizes else sum(size for size in sizes if size is not None)
        return (*every[0][:axis], whole, *every[0][axis + 1 :])

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor, made from the files' tensors."""
        return torch.cat([part.read(weights) for part in self.parts], self.axis)

    def names(self) -> tuple[str, ...]:
        """Return the names of the file tensors that it is made from."""
        return tuple(dict.fromkeys(name for part in self.parts for name in part.names()))

    def __str__(self) -> str:
        return f"({' | '.join(map(str, self.parts))})"


@dataclass(frozen=True)
class Filled:
    """A constant tensor, which is in no file."""

    value: float
    shape: Shape

    def dims(self) -> Dims:
        """See `dims` of a `Step`."""
        return self.shape

    def read(self, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the tensor."""
        return torch.full(self.shape, self.value)

    def names(self) -> tuple[str, ...]:
        """Return the names of the file tensors that it is made from: none."""
        return ()

    def __str__(self) -> str:
        return f"{self.value:g} everywhere"


Value = Read | Made | Joined | Filled
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
