"""Tensors of a file matched with those of a model by names, numbers and shapes; the sizes that follow from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from txport.checkpoints.importing.likeness import Role, Template
from txport.checkpoints.importing.probe import Place, Product
from txport.checkpoints.weights.steps import Shape

Fields = tuple[str, ...]

ORDER = ("attention", "cross", "ffn")  # in which the parts of a layer run
FUSED = {"qkv": ("query", "key", "value"), "kv": ("key", "value"), "gate_up": ("gate", "inner")}
# words in names of fused tensors whose parts are stored one after the other
BLOCKS = ("in_proj", "c_attn", "to_qkv", "to_kv", "qkv_proj", "kv_proj", "gate_up")
LAST = ("output", "outer")  # the last linear layers of the parts of a layer

NAMED = "sure, by its name"
NUMBERED = "likely, by its number, in the order in which parts run"
SHAPED = "likely, by its shape: the map behind attention is square"
LEFT = "likely, since nothing else is left"


@dataclass(frozen=True)
class Pair:
    """A tensor of a file and the tensors of the model that it holds; `why` states how certain that is."""

    given: Template
    own: tuple[Template, ...]
    why: str

    @property
    def needs_groups(self) -> bool:
        """True if the layout of a fused tensor is unknown: parts one after the other, or the parts of each head."""
        return len(self.own) > 1 and not any(word in self.given.name for word in BLOCKS)


@dataclass(frozen=True)
class Match:
    """Pairs, and the unpaired tensors of the file (`given`) and of the model (`own`)."""

    pairs: tuple[Pair, ...]
    given: tuple[Template, ...]
    own: tuple[Template, ...]

    @property
    def score(self) -> float:
        """Similarity: pairs, counted twice if certain by name, minus the unpaired tensors of the file and the model."""
        sure = sum(each.why == NAMED for each in self.pairs)
        return sure + len(self.pairs) - len(self.given) - 1.1 * len(self.own)


def match(given: Sequence[Template], own: Sequence[Template]) -> Match:
    """Return the pairs of tensors of a file and tensors of a model, and the tensors that have no counterpart."""
    given = _sided(given, {each.role.side for each in own if each.numbers})
    state = Match((), tuple(given), tuple(own))
    state = _fused(_alike(state, lambda role: replace(role, number=0), NAMED))
    state = _alike(state, lambda role: replace(role, number=0, side="") if not role.what else None, NAMED)
    state = _by_number(state, "norm", lambda role: ORDER.index(role.part) if role.part in ORDER else 0)
    state = _by_number(state, "", lambda role: ("gate", "inner", "outer").index(role.what) if role.part == "ffn" else 0)
    state = _alike(state, lambda role: (role.side, role.part, role.what == "norm", role.kind), LEFT)
    state = _ends(_squares(state))
    state = _alike(
        state, lambda role: (role.side, role.part) if role.part == "ffn" and role.kind == "weight" else None, LEFT
    )
    state = _beside(state)
    return _alike(state, lambda role: (role.side, role.what == "norm", role.kind) if _is_told(role) else None, LEFT)


def _is_told(role: Role) -> bool:
    return bool(role.what) and not _is_end(role)


def _is_end(role: Role) -> bool:
    """Return True if a name states that a tensor is an output, but not of which part."""
    return role.what == "output" and not role.part


def _ends(state: Match) -> Match:
    """Pair a tensor whose name only states that it is an output, if one such tensor is left in file and model each."""
    pairs = []
    for each in state.given:
        side = each.role.side
        kind = each.role.kind
        alike = [one for one in state.given if _is_end(one.role) and (one.role.side, one.role.kind) == (side, kind)]
        own = [one for one in state.own if one.role.what in LAST and (one.role.side, one.role.kind) == (side, kind)]
        if alike == [each] and len(own) == 1 and _fits(each, own[0]):
            pairs.append(Pair(each, (own[0],), LEFT))
    return _taken(state, pairs)


def _squares(state: Match) -> Match:
    """Pair the two linear layers that are outputs of an unknown part: only that of attention is square.

    The other one must have the transposed shape of an inner layer of the feed-forward.
    """
    pairs = []
    for side in {each.role.side for each in state.given if each.numbers}:
        maps = [each for each in state.given if each.numbers and each.role.side == side and len(each.shape) == 2]
        ends = [each for each in maps if _is_end(each.role)]
        square = [each for each in ends if each.shape[0] == each.shape[1]]
        narrow = [each for each in ends if each not in square]
        own = {
            one.role.part: one
            for one in state.own
            if one.role.side == side and one.role.what in LAST and one.role.kind == "weight"
        }
        if not len(square) == len(narrow) == 1 or own.keys() != {"attention", "ffn"}:
            continue
        is_inner = any(each.shape == narrow[0].shape[::-1] and each.role.part == "ffn" for each in maps)
        found = ((square[0], own["attention"]), (narrow[0], own["ffn"]))
        if is_inner and all(_fits(*pair) for pair in found):
            pairs += [Pair(each, (one,), SHAPED) for each, one in found]
    return _taken(state, pairs)


def _beside(state: Match) -> Match:
    """Pair biases whose weights are paired."""
    found = {each.given.name: each for each in state.pairs if len(each.own) == 1}
    pairs = []
    for each in state.given:
        weight = found.get(f"{each.name.removesuffix('bias')}weight") if each.name.endswith("bias") else None
        own = [one for one in state.own if weight and one.role == replace(weight.own[0].role, kind="bias")]
        if weight and len(own) == 1 and _fits(each, own[0]):
            pairs.append(Pair(each, (own[0],), weight.why))
    return _taken(state, pairs)


def _sided(given: Sequence[Template], sides: set[str]) -> list[Template]:
    """Return the tensors of a file with their sides: the model's if it has one, else decoders have cross-attention."""
    prefixes: dict[str, list[Template]] = {}
    for each in given:
        prefixes.setdefault(each.name.partition("{}")[0] if each.numbers and not each.is_stacked else "", []).append(
            each
        )
    found = []
    for each in given:
        side = each.role.side
        if len(sides) == 1 and (each.numbers or each.role.what == "norm" or not side):
            side = next(iter(sides))
        elif not side and each.numbers:
            beside = prefixes.get(each.name.partition("{}")[0], [])
            side = "decoder" if any(other.role.part == "cross" for other in beside) else "encoder"
        found.append(replace(each, role=replace(each.role, side=side)))
    return found


def _taken(state: Match, pairs: Iterable[Pair]) -> Match:
    pairs = tuple(pairs)
    given = {id(each.given) for each in pairs}
    own = {id(one) for each in pairs for one in each.own}
    return Match(
        (*state.pairs, *pairs),
        tuple(each for each in state.given if id(each) not in given),
        tuple(each for each in state.own if id(each) not in own),
    )


def _fits(given: Template, own: Template) -> bool:
    """Return True if both tensors are of layers or neither is, and both have the same number of axes."""
    return bool(given.numbers) == bool(own.numbers) and len(given.shape) == len(own.shape)


def _alike(state: Match, key: Callable[[Role], Hashable | None], why: str) -> Match:
    """Pair tensors with the same key of their roles, if the file and the model have one tensor each with that key."""
    groups: dict[tuple[bool, Hashable], tuple[list[Template], list[Template]]] = {}
    for at, side in enumerate((state.given, state.own)):
        for each in side:
            if (value := key(each.role)) is not None:
                groups.setdefault((bool(each.numbers), value), ([], []))[at].append(each)
    return _taken(
        state,
        (
            Pair(given[0], (own[0],), why)
            for given, own in groups.values()
            if len(given) == 1 == len(own) and _fits(given[0], own[0]) and (why == NAMED or given[0].numbers)
        ),
    )


def _fused(state: Match) -> Match:
    """Pair each fused tensor, such as queries, keys and values, with all its parts."""
    pairs = []
    for each in state.given:
        parts = FUSED.get(each.role.what, ())
        own = [one for part in parts for one in state.own if one.role == replace(each.role, what=part, number=0)]
        if parts and len(own) == len(parts):
            pairs.append(Pair(each, tuple(own), NAMED))
    return _taken(state, pairs)


def _by_number(state: Match, what: str, order: Callable[[Role], int]) -> Match:
    """Pair norms, or feed-forward tensors, by the numbers in their names, if their count is that of the model."""
    groups: dict[Hashable, tuple[list[Template], list[Template]]] = {}
    for at, side in enumerate((state.given, state.own)):
        for each in side:
            is_norm = each.role.what == "norm"
            if each.numbers and is_norm == (what == "norm") and (is_norm or each.role.part == "ffn"):
                groups.setdefault((each.role.side, each.role.kind), ([], []))[at].append(each)
    pairs: list[Pair] = []
    for given, own in groups.values():
        numbers = [each.role.number for each in given]
        if len(given) == len(own) > 1 and len(set(numbers)) == len(numbers):
            ordered = sorted(given, key=lambda each: each.role.number)
            pairs += (
                Pair(one, (other,), NUMBERED)
                for one, other in zip(ordered, sorted(own, key=lambda each: order(each.role)), strict=True)
                if _fits(one, other)
            )
    return _taken(state, pairs)


# ------------------------------------------------------------------------------------------------------------- sizes


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
