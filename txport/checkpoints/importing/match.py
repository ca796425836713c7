"""Tensors of a file paired with those of a model, and the sizes of a config that follow from their shapes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from txport.checkpoints.importing.probe import Fields, Place, Product
from txport.checkpoints.importing.roles import FFN, FUSED, Role, Template
from txport.checkpoints.weights.steps import Shape

# in which the parts of a layer run, and the linear layers of the feed-forward
ORDER = {name: at for at, name in enumerate(("attention", "cross", "ffn", *FFN))}
# words in names of fused tensors whose parts are stored one after the other
BLOCKS = ("in_proj", "c_attn", "to_qkv", "to_kv", "qkv_proj", "kv_proj", "gate_up")

NAMED = "sure, by its name"
NUMBERED = "likely, by its number, in the order in which parts run"
SHAPED = "likely, by its shape: the map behind attention is square"
LEFT = "likely, since nothing else is left"
BESIDE = "likely, as the weight beside it"


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

    def add(self, pairs: Iterable[Pair]) -> Match:
        """Return this match with more pairs."""
        pairs = tuple(pairs)
        done = {id(each.given) for each in pairs} | {id(one) for each in pairs for one in each.own}
        given, own = (tuple(each for each in side if id(each) not in done) for side in (self.given, self.own))
        return Match((*self.pairs, *pairs), given, own)


Key = Callable[[Role], Hashable | None]  # None: the tensor is not paired


def match(given: Sequence[Template], own: Sequence[Template]) -> Match:
    """Return the pairs of tensors of a file and tensors of a model, and the tensors that have no counterpart."""
    given = _with_sides(given, {each.role.side for each in own if each.numbers})
    state = Match((), tuple(given), tuple(own))
    state = _fused(_alike(state, NAMED, lambda role: replace(role, number=0)))
    state = _alike(state, NAMED, lambda role: None if role.what else replace(role, number=0, side=""))
    state = _alike(state, NUMBERED, lambda role: (role.side, role.kind) if role.is_norm else None)
    state = _alike(state, NUMBERED, lambda role: (role.side, role.kind) if role.is_ffn and not role.is_norm else None)
    state = _alike(state, LEFT, lambda role: (role.side, role.part, role.is_norm, role.kind))
    state = _squares(state)
    state = _alike(
        state,
        LEFT,
        lambda role: (role.side, role.kind) if role.is_output else None,
        lambda role: (role.side, role.kind) if role.is_last else None,
    )
    state = _alike(state, LEFT, lambda role: role.side if role.is_ffn and role.kind == "weight" else None)
    state = _biases(state)
    return _alike(
        state, LEFT, lambda role: (role.side, role.is_norm, role.kind) if role.what and not role.is_output else None
    )


def _with_sides(given: Sequence[Template], sides: set[str]) -> list[Template]:
    """Return the tensors of a file with their sides: the model's if it has one, else decoders have cross-attention."""
    decoders = {each.name.partition("{}")[0] for each in given if each.numbers and each.role.part == "cross"}
    found = []
    for each in given:
        side = each.role.side
        if len(sides) == 1 and (each.numbers or each.role.what == "norm" or not side):
            side = next(iter(sides))
        elif not side and each.numbers:
            side = "decoder" if each.name.partition("{}")[0] in decoders else "encoder"
        found.append(replace(each, role=replace(each.role, side=side)))
    return found


def _alike(state: Match, why: str, key: Key, own_key: Key | None = None) -> Match:
    """Pair the tensors whose roles have the same key if the file and the model have one each.

    If the reason is `NUMBERED`, they may have several: those of the model are in the order in which parts run. If it is
    not `NAMED`, only tensors of layers are paired.
    """
    groups: dict[Hashable, tuple[list[Template], list[Template]]] = defaultdict(lambda: ([], []))
    for at, (side, key_of) in enumerate(((state.given, key), (state.own, own_key or key))):
        for each in side:
            if (each.numbers or why == NAMED) and (value := key_of(each.role)) is not None:
                groups[bool(each.numbers), value][at].append(each)
    pairs = []
    for given, own in groups.values():
        given.sort(key=lambda each: each.role.number)
        own.sort(key=lambda each: (ORDER.get(each.role.part, 0), ORDER.get(each.role.what, 0)))
        count = len({each.role.number for each in given}) if why == NUMBERED else 1
        if len(given) == len(own) == count and (count > 1) == (why == NUMBERED):
            pairs += [Pair(one, (other,), why) for one, other in zip(given, own, strict=True) if one.has_axes_of(other)]
    return state.add(pairs)


def _fused(state: Match) -> Match:
    """Pair each fused tensor, such as queries, keys and values, with all its parts."""
    pairs = []
    for each in state.given:
        parts = FUSED.get(each.role.what, ())
        own = [one for part in parts for one in state.own if one.role == replace(each.role, what=part, number=0)]
        if parts and len(own) == len(parts) and all(map(each.has_axes_of, own)):
            pairs.append(Pair(each, tuple(own), NAMED))
    return state.add(pairs)


def _squares(state: Match) -> Match:
    """Pair the two linear layers that are outputs of an unknown part: only that of attention is square.

    The other one must have the transposed shape of an inner layer of the feed-forward.
    """
    pairs = []
    for side in {each.role.side for each in state.given if each.numbers}:
        given = [each for each in state.given if each.numbers and each.role.side == side and len(each.shape) == 2]
        inner = [each.shape[::-1] for each in given if each.role.part == "ffn"]
        last = sorted((each for each in given if each.role.is_output), key=_is_wide)
        own = {
            each.role.part: each
            for each in state.own
            if each.role.side == side and each.role.is_last and each.role.kind == "weight"
        }
        is_told = [_is_wide(each) for each in last] == [False, True] and last[1].shape in inner
        if is_told and own.keys() == {"attention", "ffn"}:
            pairs += [Pair(last[0], (own["attention"],), SHAPED), Pair(last[1], (own["ffn"],), SHAPED)]
    return state.add(pairs)


def _is_wide(each: Template) -> bool:
    return each.shape[0] != each.shape[1]


def _biases(state: Match) -> Match:
    """Pair biases whose weights are paired."""
    roles = {each.given.name: each.own[0].role for each in state.pairs if len(each.own) == 1}
    pairs = []
    for each in state.given:
        weight = roles.get(f"{each.name.removesuffix('bias')}weight") if each.name.endswith("bias") else None
        own = [one for one in state.own if weight and one.role == replace(weight, kind="bias")]
        pairs += [Pair(each, (one,), BESIDE) for one in own if len(own) == 1 and each.has_axes_of(one)]
    return state.add(pairs)


# ------------------------------------------------------------------------------------------------------------- sizes


@dataclass
class Sizes:
    """The sizes known so far: products of config fields (`known`), and for each tensor whether it is transposed."""

    dims: Mapping[Place, Product]
    known: dict[Fields, int] = field(default_factory=lambda: {(): 1})
    turned: dict[str, bool] = field(default_factory=dict)  # name of a tensor of the file -> whether it is transposed

    def fields(self) -> dict[str, int]:
        """Return the sizes of fields: known ones, and those that follow from a product whose other fields are known."""
        found = {fields[0]: size for fields, size in self.known.items() if len(fields) == 1}
        for _ in self.known:
            for fields, size in self.known.items():
                left = [each for each in fields if each not in found]
                rest = math.prod(found[each] for each in fields if each in found)
                if len(left) == 1 and rest and size % rest == 0:
                    found[left[0]] = size // rest
        return found

    def products(self) -> dict[Fields, int]:
        """Return the known products of several fields."""
        return {fields: size for fields, size in self.known.items() if len(fields) > 1}

    def axes(self, own: Sequence[Template]) -> list[int | None]:
        """Return the shape of tensors of the model, joined along the first axis; None for unknown sizes."""
        found = []
        for axis, _ in enumerate(own[0].shape):
            products = self._products(own, axis)
            is_known = all(fields in self.known for _, fields in products)
            found.append(sum(factor * self.known[fields] for factor, fields in products) if is_known else None)
        return found

    def shape(self, own: Sequence[Template]) -> Shape | None:
        """Return the shape of tensors of the model, joined along the first axis; None if a size is unknown."""
        axes = [size for size in self.axes(own) if size is not None]
        return tuple(axes) if len(axes) == len(own[0].shape) else None

    def learn(self, pair: Pair, shape: Shape) -> None:
        """Add the sizes of a pair whose tensor of the file has this shape."""
        for axis, size in enumerate(shape):
            products = self._products(pair.own, axis)
            left = size - sum(factor * self.known[fields] for factor, fields in products if fields in self.known)
            unknown = [(factor, fields) for factor, fields in products if fields not in self.known]
            factor = sum(factor for factor, _ in unknown)
            if len({fields for _, fields in unknown}) == 1 and left > 0 and left % factor == 0:
                self.known[unknown[0][1]] = left // factor

    def agrees(self, pair: Pair, shape: Shape) -> bool:
        """Return True if a shape has no contradiction with the known sizes, and at least one of its sizes is known."""
        sizes = self.axes(pair.own)
        return sizes != [None] * len(sizes) and all(
            known in (None, size) for known, size in zip(sizes, shape, strict=True)
        )

    def transposed(self, pairs: Iterable[Pair]) -> dict[str, bool | None]:
        """Return whether each matrix of layers is transposed: a square one like the others, None if they differ."""
        told = set(self.turned.values())
        usual = next(iter(told)) if len(told) == 1 else None
        matrices = [pair.given.name for pair in pairs if len(pair.given.shape) == 2 and pair.given.numbers]
        return {name: self.turned.get(name, usual) for name in matrices}

    def _products(self, own: Sequence[Template], axis: int) -> list[Product]:
        """Return the products whose sum is the size of an axis of tensors that are joined along the first axis."""
        parts = own if axis == 0 else own[:1]
        return [self.dims.get((each.names[0], axis), (each.shape[axis], ())) for each in parts]


def solve(pairs: Sequence[Pair], dims: Mapping[Place, Product]) -> Sizes:
    """Return the sizes: first from vectors and tensors outside of layers, which are never transposed, then matrices."""
    sizes = Sizes(dims)
    matrices = [pair for pair in pairs if len(pair.given.shape) == 2 and pair.given.numbers]
    for pair in pairs:
        if len(pair.given.shape) == 1 or not pair.given.numbers:
            sizes.learn(pair, pair.given.shape)
    for _ in range(3):
        for pair in matrices:
            shape = pair.given.shape
            fitting = [each for each in {shape, shape[::-1]} if sizes.agrees(pair, each)]
            if pair.given.name not in sizes.turned and len(fitting) == 1:
                sizes.learn(pair, fitting[0])
                if shape[0] != shape[1]:
                    sizes.turned[pair.given.name] = fitting[0] != shape
    return sizes
