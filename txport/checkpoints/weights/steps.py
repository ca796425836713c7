"""Steps from a tensor of a file to a tensor of a model, as data: each knows the shape of its result."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

Shape = tuple[int, ...]
Dims = tuple[int | None, ...]  # a shape in which some sizes are not known yet


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
class ByNumber:
    """What is done to each number of a tensor with the same number."""

    by: float

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        return given

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return made


@dataclass(frozen=True)
class Plus(ByNumber):
    """Adds a number."""

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor.float() + self.by if tensor.is_floating_point() else tensor  # integers are refused later

    def __str__(self) -> str:
        return f"{self.by:+g}"


@dataclass(frozen=True)
class Times(ByNumber):
    """Multiplies by a number."""

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor.float() * self.by if tensor.is_floating_point() else tensor  # integers are refused later

    def __str__(self) -> str:
        return f"x {self.by:g}"


@dataclass(frozen=True)
class Reshaped:
    """Gives a tensor another shape; one size may be -1."""

    shape: tuple[int, ...]

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        sizes = [size for size in given if size is not None]
        known = math.prod(size for size in self.shape if size != -1)
        count = math.prod(sizes)
        if len(sizes) < len(given):
            return tuple(None if size == -1 else size for size in self.shape)
        if count % known if -1 in self.shape else count != known:
            raise MisfitError(f"can't have the shape {self.shape}")
        return tuple(count // known if size == -1 else size for size in self.shape)

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return None

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        return tensor.reshape(self.shape)

    def __str__(self) -> str:
        return f"as {' x '.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Padded:
    """Adds rows of one number at the end, up to a number of rows."""

    rows: int
    value: float

    def dims(self, given: Dims) -> Dims:
        """See `Step`."""
        if not given or (given[0] is not None and given[0] > self.rows):
            raise MisfitError(f"must have at most {self.rows} rows")
        return (self.rows, *given[1:])

    def before(self, made: Dims) -> Dims | None:
        """See `Step`."""
        return (None, *made[1:])

    def apply(self, tensor: Tensor) -> Tensor:
        """See `Step`."""
        rest = tensor.new_full((self.rows - len(tensor), *tensor.shape[1:]), self.value)
        return torch.cat([tensor, rest])

    def __str__(self) -> str:
        return f"with rows of {self.value:g} up to {self.rows}"


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
