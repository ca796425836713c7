"""How a model's tensor is made from tensors in files, as data: the tensors to read, and the steps after that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from txport.errors import quoted

Shape = tuple[int, ...]
Dims = tuple[int | None, ...]  # a shape in which some sizes are not known yet


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


class MisfitError(ValueError):
    """A tensor of a file has a shape for which a step is not possible."""


class Step(Protocol):
    """An operation on a tensor. `dims` raises `MisfitError` for a shape for which it is not possible."""

    def dims(self, given: Dims) -> Dims:
        """Return the output shape for this input shape."""
        ...

    def before(self, made: Dims) -> Dims | None:
        """Return the input shape for this output shape; None if it can't be inferred."""
        ...

    def apply(self, tensor: Tensor) -> Tensor:
        """Return the result for a tensor."""
        ...

    def __str__(self) -> str:
        """Return a short description."""
        ...


@dataclass(frozen=True)
class Transposed:
    """Transposes a matrix: (in, out) -> (out, in)."""

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        return given[::-1]

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return made[::-1]

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor.t()

    def __str__(self) -> str:
        return "transposed"


@dataclass(frozen=True)
class Part:
    """One of `count` tensors that are stored along an axis, one after the other or interleaved in `groups`.

    Each group holds a share of each tensor. If `sizes` is None, each tensor has the model's size.
    """

    at: int
    count: int
    axis: int = 0
    groups: int = 1
    sizes: Shape | None = None

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        axis = self._axis(given)
        if self.sizes is None:
            return (*given[:axis], None, *given[axis + 1 :])
        whole = given[axis]
        if (whole is not None and whole != sum(self.sizes)) or any(size % self.groups for size in self.sizes):
            groups = f" in {self.groups} groups" if self.groups > 1 else ""
            raise MisfitError(f"must hold {' + '.join(map(str, self.sizes))} {'columns' if axis else 'rows'}{groups}")
        return (*given[:axis], self.sizes[self.at], *given[axis + 1 :])

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        axis = self._axis(made)
        return (*made[:axis], None if self.sizes is None else sum(self.sizes), *made[axis + 1 :])

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        assert self.sizes is not None
        axis = self._axis(tuple(tensor.shape))
        shares = [size // self.groups for size in self.sizes]
        grouped = tensor.reshape(*tensor.shape[:axis], self.groups, sum(shares), *tensor.shape[axis + 1 :])
        return grouped.narrow(axis + 1, sum(shares[: self.at]), shares[self.at]).flatten(axis, axis + 1)

    def _axis(self, dims: Dims) -> int:
        if not -len(dims) <= self.axis < len(dims):
            raise MisfitError(f"must have an axis {self.axis}, to be split in {self.count}")
        return self.axis % len(dims)

    def __str__(self) -> str:
        groups = f" in each of {self.groups} groups" if self.groups > 1 else ""
        return f"part {self.at + 1} of {self.count}{groups}"


@dataclass(frozen=True)
class Row:
    """One of the tensors that are stacked along the first axis."""

    at: int

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        if not given or (given[0] is not None and self.at >= given[0]):
            raise MisfitError(f"must have a row {self.at}")
        return given[1:]

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return (None, *made)

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor[self.at]

    def __str__(self) -> str:
        return f"row {self.at}"


@dataclass(frozen=True)
class Plus:
    """Adds a number."""

    by: float

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        return given

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return made

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor.float() + self.by if tensor.is_floating_point() else tensor  # integers are refused later

    def __str__(self) -> str:
        return f"{self.by:+g}"


@dataclass(frozen=True)
class Permuted:
    """Views an axis as the axes of `view`, one of which may be -1, and permutes them."""

    view: tuple[int, ...]
    order: tuple[int, ...]
    axis: int = 0

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        if not -len(given) <= self.axis < len(given):
            raise MisfitError(f"must have an axis {self.axis}, to be permuted")
        size = given[self.axis]
        known = -math.prod(self.view) if -1 in self.view else math.prod(self.view)
        if size is not None and (size % known if -1 in self.view else size != known):
            raise MisfitError(f"must have an axis {self.axis} that is {' x '.join(map(str, self.view))}")
        return given

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return made

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        axis = self.axis % tensor.dim()
        count = len(self.view)
        order = [*range(axis), *(axis + each for each in self.order), *range(axis + count, tensor.dim() + count - 1)]
        viewed = tensor.reshape(*tensor.shape[:axis], *self.view, *tensor.shape[axis + 1 :])
        return viewed.permute(order).flatten(axis, axis + count - 1)

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.view))} in the order {', '.join(map(str, self.order))}"


@dataclass(frozen=True)
class Squeezed:
    """Removes the axes of size 1."""

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        return tuple(size for size in given if size != 1)

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return None

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor.squeeze()

    def __str__(self) -> str:
        return "without axes of 1"


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
