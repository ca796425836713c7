"""Matching of the tensors of a file with those of a model: by names, by numbers, then by shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from txport.importing.likeness import Role, Template

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
