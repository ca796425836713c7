"""The rules of a draft, and its questions about unpaired tensors: the answer to each is a pattern or a number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from txport.checkpoints.importing.match import Match, Pair, Sizes
from txport.checkpoints.importing.roles import FUSED, QKV, Template, pattern_of
from txport.checkpoints.sources.toml import QUESTION
from txport.models.rules import Constant, Drop, Rename, Rule, Split, Transpose, Unstack

Rules = Iterator[tuple[Rule, str]]  # with the reason for each
BIAS = "bias"
VOCABULARY = "vocab_size"  # fields of configs end so
LOGITS = "projection.weight if it gives the logits (then nothing is tied to it); else drop it in place of this rule"
CANDIDATES = 6  # maximum number in a question


def rules(match: Match, sizes: Sizes) -> Rules:
    """Yield the rules that make the tensors of the model, and questions about unpaired tensors of model and file."""
    transposed = sizes.transposed(match.pairs)
    for pair in _ordered(match.pairs):
        for rule in _of_pair(pair, transposed.get(pair.given.name)):
            yield rule, pair.why
    yield from _transposes(match.pairs, transposed)
    absent = _absent(match)
    for own in absent:
        yield Constant(_of_any_layer(own)), "the file has none, which is the same as 0"
    yield from _questions(replace(match, own=tuple(each for each in match.own if each not in absent)), sizes)


def _ordered(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs in an order in which no rule produces a name that a later rule changes again."""
    left = list(pairs)
    found: list[Pair] = []
    while left:
        names = {each.given.name for each in left}
        free = [each for each in left if not {one.name for one in each.own} & (names - {each.given.name})]
        found += free or left
        left = [each for each in left if each not in found]
    return found


def _of_pair(pair: Pair, is_transposed: bool | None) -> Iterator[Rule]:
    """Yield the rules that rename, split or unstack the tensors of a pair."""
    given, own = pair.given, pair.own
    if given.is_stacked:
        stacked = given.pattern
        if len(own) > 1:
            given = replace(given, name=f"{own[0].name.partition('{}')[0]}{{}}.fused {given.name}", is_stacked=False)
        else:
            given = replace(given, name=own[0].name, is_stacked=False)
        yield Unstack(stacked, given.name)
    for pattern, to in _names(given, own):
        if len(own) > 1:
            split = Split(pattern, to, -1 if is_transposed else 0)
            yield _with_groups(split, own[0]) if pair.needs_groups else split
        elif given.name != own[0].name:
            yield Rename(pattern, to[0])


def _names(given: Template, own: Sequence[Template]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield a pattern for a tensor of the file and what replaces it: one for all layers, which are counted from 0."""
    if not given.numbers or given.numbers[0] == 0:
        yield given.pattern, tuple(one.replacement for one in own)
        return
    for number in given.numbers:
        to = tuple(one.name.replace("{}", str(number - 1)) for one in own)
        yield pattern_of(given.name.replace("{}", str(number))), to


def _transposes(pairs: Iterable[Pair], transposed: Mapping[str, bool | None]) -> Rules:
    """Yield the rules for matrices stored as (in, out)."""
    own = [(one, transposed[pair.given.name]) for pair in pairs if pair.given.name in transposed for one in pair.own]
    if own and all(is_transposed for _, is_transposed in own):
        sides = "|".join(dict.fromkeys(one.name.partition(".")[0] for one, _ in own))
        yield Transpose(rf"^({sides})\.\d+\."), "likely, as the shapes of all that are not square say"
        return
    for one, is_transposed in own:
        if is_transposed:
            yield Transpose(_of_any_layer(one)), "sure, by its shape"
        elif is_transposed is None:
            question = f"{QUESTION}: {_of_any_layer(one)} if it lies as (in, out), else remove this rule"
            yield Transpose(question), "it is square"


def _of_any_layer(own: Template) -> str:
    """Return a pattern without a group."""
    return own.pattern.replace(r"(\d+)", r"\d+")


def _absent(match: Match) -> list[Template]:
    """Return the biases of the model, beside weights that are paired, that no unpaired tensor of the file may be."""
    weights = {own.name for pair in match.pairs for own in pair.own}
    given = {(each.role.side, bool(each.numbers)) for each in match.given if each.role.kind == BIAS}
    return [
        each
        for each in match.own
        if each.role.kind == BIAS
        and f"{each.name.removesuffix(BIAS)}weight" in weights
        and not {("", bool(each.numbers)), (each.role.side, bool(each.numbers))} & given
    ]


# --------------------------------------------------------------------------------------------------------- questions


def _questions(left: Match, sizes: Sizes) -> Rules:
    """Yield rules with questions about the unpaired tensors of the model and of the file."""
    offered: set[str] = set()
    asked: set[str] = set()
    for holders, parts in _fused(left, sizes):
        yield _split(holders, parts, sizes), f"it has the shape {holders[0].shape}"
        offered |= {each.name for each in holders}
        asked |= {each.name for each in parts}
    single = [each for each in left.given if each.name not in offered]
    for own in (each for each in left.own if each.name not in asked):
        candidates = [each for each in single if _may_be(each, own, sizes)]
        yield Rename(_which(own, candidates, left.given, sizes), own.replacement), ""
        offered |= {each.name for each in candidates}
    for given in (each for each in left.given if each.name not in offered):
        if _may_give_logits(given, sizes):
            yield Rename(given.pattern, f"{QUESTION}: {LOGITS}"), ""
        else:
            yield Drop(f"{QUESTION}: {given.pattern} if no weight, else a rule for it; its shape is {given.shape}"), ""


def _which(own: Template, candidates: Sequence[Template], given: Sequence[Template], sizes: Sizes) -> str:
    """Return the question which tensor of the file is one of the model."""
    shape = sizes.shape([own])
    has_none = shape is not None and not any(each.shape in (shape, shape[::-1]) for each in given)
    none = f" none has its shape, {shape}" if has_none else ""
    return f"{QUESTION}: which tensor is it?{f' {_shown(candidates)}' if candidates else none}"


def _shown(candidates: Sequence[Template]) -> str:
    return " or ".join(each.pattern for each in candidates[:CANDIDATES])


def _may_give_logits(given: Template, sizes: Sizes) -> bool:
    """Return True if a matrix outside of layers has a row for each token of a vocabulary."""
    rows = {size for field, size in sizes.fields().items() if field.endswith(VOCABULARY)}
    return len(given.shape) == 2 and not given.numbers and given.shape[0] in rows


def _with_groups(split: Split, first: Template) -> Split:
    """Return a split rule with a question about its layout; `first` is its first part."""
    what = f"1 if all of {first.role.what} comes first, or the number of heads if each head has its own?"
    question: Any = f"{QUESTION}: {what}"
    return replace(split, groups=question)


def _split(holders: Sequence[Template], parts: Sequence[Template], sizes: Sizes) -> Split:
    """Return the split rule, with a question, for a tensor that may hold several tensors of the model."""
    names = ", ".join(each.role.what for each in parts)
    question = f"{QUESTION}: {_shown(holders)} if it holds {names}; else a rename for each in place of this rule"
    whole = sizes.shape(parts) or (max(holders[0].shape), min(holders[0].shape))
    split = Split(question, tuple(each.replacement for each in parts), 0 if holders[0].shape == whole else -1)
    return _with_groups(split, parts[0]) if parts[0].role.part in ("attention", "cross") else split


def _fused(left: Match, sizes: Sizes) -> Iterator[tuple[list[Template], list[Template]]]:
    """Yield tensors of the file that may be fused, with the tensors of the model that each of them may hold.

    Parts for which the file has enough separate tensors are left out.
    """
    by_role = {each.role: each for each in left.own}
    done: set[str] = set()
    for own in left.own:
        for names in FUSED.values():
            roles = [replace(own.role, what=name) for name in names]
            parts = [by_role[role] for role in roles if role in by_role]
            if len(parts) < len(names) or done & {each.name for each in parts}:
                continue
            holders = [each for each in left.given if _is_of(each, own) and _may_hold(each, parts, sizes)]
            alone = [each for each in left.given if _may_be(each, parts[0], sizes) and each not in holders]
            if holders and len(alone) < len(parts):
                done |= {each.name for each in parts}
                yield holders, parts


def _may_hold(given: Template, parts: Sequence[Template], sizes: Sizes) -> bool:
    """Return True if a tensor of the file has the joined shape of several, or a likely one if that is unknown."""
    whole = sizes.shape(parts)
    if given.is_stacked:
        return False
    if whole is not None:
        return given.shape in (whole, whole[::-1])
    least, most = min(given.shape), max(given.shape)
    if len(parts) == len(QKV):  # keys and values may be smaller than queries
        return len(given.shape) == 2 and least < most <= len(parts) * least
    return len(given.shape) == 2 and most == len(parts) * least


def _may_be(given: Template, own: Template, sizes: Sizes) -> bool:
    """Return True if a tensor of the file may be this one of the model, by its role and, if known, its shape."""
    shape = sizes.shape([own])
    return _is_of(given, own) and (shape is None or given.shape in (shape, shape[::-1]))


def _is_of(given: Template, own: Template) -> bool:
    """Return True if a tensor of the file has as many axes as this one, and its name states no other side or part."""
    return (
        given.role.side in ("", own.role.side)
        and given.role.part in ("", own.role.part)
        and given.role.kind == own.role.kind
        and given.has_axes_of(own)
    )
