"""The sizes of a config, and the matrices stored as (in, out), from the shapes of paired tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from txport.importing.likeness import Template
from txport.importing.match import Pair
from txport.importing.probe import Place, Product
from txport.models.weights.steps import Shape

Fields = tuple[str, ...]


@dataclass
class Sizes:
    """The sizes known so far: products of config fields (`known`), and for each tensor whether it is transposed.

    `clashes` are tensors of the file whose shapes contradict the known sizes.
    """

    dims: Mapping[Place, Product]
    known: dict[Fields, int] = field(default_factory=dict)
    turned: dict[str, bool] = field(default_factory=dict)  # name of a given tensor -> whether it is transposed
    clashes: list[str] = field(default_factory=list)

    def fields(self) -> dict[str, int]:
        """Return the sizes of fields: known ones, and those that follow from a product whose other fields are known."""
        found = {fields[0]: size for fields, size in self.known.items() if len(fields) == 1}
        for _ in range(len(self.known)):
            for fields, size in self.known.items():
                left = [each for each in fields if each not in found]
                rest = math.prod(found[each] for each in fields if each in found)
                if len(left) == 1 and rest and size % rest == 0:
                    found[left[0]] = size // rest
        return found


def solve(pairs: Sequence[Pair], dims: Mapping[Place, Product]) -> Sizes:
    """Return the sizes: first from vectors and tensors outside of layers, which are never transposed, then matrices."""
    sizes = Sizes(dims)
    for pair in pairs:
        if len(pair.given.shape) == 1 or not pair.given.numbers:
            _learn(sizes, pair, pair.given.shape)
    for _ in range(3):
        for pair in pairs:
            if len(pair.given.shape) == 2 and pair.given.numbers and pair.given.name not in sizes.turned:
                _orient(sizes, pair)
    return sizes


def _orient(sizes: Sizes, pair: Pair) -> None:
    """Decide whether a matrix is transposed and add its sizes; of a square one, only its sizes."""
    shape = pair.given.shape
    if shape[0] == shape[1]:
        if _agrees(sizes, pair, shape):
            _learn(sizes, pair, shape)
        return
    fits = [each for each in (shape, shape[::-1]) if _agrees(sizes, pair, each)]
    if len(fits) == 1:
        sizes.turned[pair.given.name] = fits[0] != shape
        _learn(sizes, pair, fits[0])


def _agrees(sizes: Sizes, pair: Pair, shape: Sequence[int]) -> bool:
    """Return True if a shape has no contradiction with the known sizes, and at least one of its sizes is known."""
    told = [(size, _size(sizes, pair, axis)) for axis, size in enumerate(shape)]
    return any(known for _, known in told) and all(known in (None, size) for size, known in told)


def _size(sizes: Sizes, pair: Pair, axis: int) -> int | None:
    """Return the size of an axis of a pair, the sum of its parts along axis 0; None if it is unknown."""
    total = 0
    for own in pair.own if axis == 0 else pair.own[:1]:
        factor, fields = sizes.dims.get((own.names[0], axis), (0, ()))
        size = own.shape[axis] if not fields else sizes.known.get(fields)
        if size is None:
            return None
        total += size if not fields else factor * size
    return total


def _learn(sizes: Sizes, pair: Pair, shape: Sequence[int]) -> None:
    """Add the sizes of a tensor of this shape; record a clash if they contradict known sizes."""
    for axis, size in enumerate(shape):
        unknown = []
        left = size
        for own in pair.own if axis == 0 else pair.own[:1]:
            factor, fields = sizes.dims.get((own.names[0], axis), (0, ()))
            if not fields:
                left -= own.shape[axis]
            elif fields in sizes.known:
                left -= factor * sizes.known[fields]
            else:
                unknown.append((factor, fields))
        total = sum(factor for factor, _ in unknown)
        if len({fields for _, fields in unknown}) == 1 and left > 0 and left % total == 0:
            sizes.known[unknown[0][1]] = left // total
        elif not unknown and left:
            sizes.clashes.append(pair.given.name)


def shape_of(own: Template, sizes: Sizes) -> Shape | None:
    """Return the shape of a tensor of the model with the known sizes; None if a size is unknown."""
    found = []
    for axis, size in enumerate(own.shape):
        factor, fields = sizes.dims.get((own.names[0], axis), (size, ()))
        if fields and fields not in sizes.known:
            return None
        found.append(factor * sizes.known[fields] if fields else size)
    return tuple(found)


def turned(pairs: Sequence[Pair], sizes: Sizes) -> Iterator[tuple[Pair, bool | None]]:
    """Yield each matrix of layers and whether it is transposed: a square one like the others, None if they differ."""
    told = set(sizes.turned.values())
    for pair in pairs:
        if len(pair.given.shape) == 2 and pair.given.numbers:
            yield pair, sizes.turned.get(pair.given.name, next(iter(told)) if len(told) == 1 else None)
