"""How a model's tensor is made from tensors in files, as data: the tensors to read, and the steps after that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from txport.errors import quoted
from txport.models.weights.steps import Dims, MisfitError, Shape, Step


class Weights(Mapping[str, Tensor]):
    """The tensors of a checkpoint's files: their shapes are known, each tensor is read when it is requested."""

    def __init__(self, shapes: Mapping[str, Shape], read: Callable[[str], Tensor]) -> None:
        self.shapes = shapes
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def are_equal(self, one: str, other: str) -> bool:
        """Return whether two tensors have the same shape and numbers."""
        return torch.equal(self[one], self[other])

    def joined(self, other: Weights) -> Weights:
        """Return these tensors together with others, which must have other names."""
        return Weights({**self.shapes, **other.shapes}, lambda name: (self if name in self else other)[name])


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
