"""How a draft writes rules, and its questions about unmatched tensors: the answer to each is a pattern or a number."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from txport.checkpoints.importing.likeness import Role, Template
from txport.checkpoints.importing.match import FUSED, Match, Sizes, shape_of
from txport.checkpoints.sources.rules import toml, written
from txport.checkpoints.sources.toml import QUESTION
from txport.checkpoints.weights.steps import Shape
from txport.models.rules import Rename, Split

VOCABULARY = "vocab_size"  # fields of configs end so
LOGITS = "projection.weight if it gives the logits (then nothing is tied to it); else drop it in place of this rule"
CANDIDATES = 6  # maximum number in a question


def questions(left: Match, sizes: Sizes) -> Iterator[str]:
    """Yield rules with questions about the unmatched tensors of the model and of the file, line by line."""
    offered: set[str] = set()
    fused: set[str] = set()
    for holders, parts in _fused(left, sizes):
        offered |= {each.name for each in holders}
        fused |= {each.name for each in parts}
        yield from _split(holders, parts, sizes)
    whole = frozenset(offered)
    for own in (each for each in left.own if each.name not in fused):
        candidates = [each.name for each in left.given if each.name not in whole and _may_be(each, own, sizes)]
        offered |= set(candidates)
        shape = shape_of(own, sizes)
        has_none = shape is not None and not any(each.shape in (shape, shape[::-1]) for each in left.given)
        none = f" none has its shape, {shape}" if has_none else ""
        shown = " or ".join(pattern_of(each) for each in candidates[:CANDIDATES])
        question = f"{QUESTION}: which tensor is it?{f' {shown}' if candidates else none}"
        yield from rule(f"rename = {{ pattern = {toml(question)}, to = {toml(own_name(own.name))} }}")
    for given in left.given:
        if given.name not in offered and _may_give_logits(given, sizes):
            yield from rule(written(Rename(pattern_of(given.name), f"{QUESTION}: {LOGITS}")))
        elif given.name not in offered:
            question = f"{pattern_of(given.name)} if no weight, else a rule for it; its shape is {given.shape}"
            yield from rule(f"drop = {toml(f'{QUESTION}: {question}')}")


def _may_give_logits(given: Template, sizes: Sizes) -> bool:
    """Return True if a matrix outside of layers has a row for each token of a vocabulary."""
    words = {size for fields, size in sizes.known.items() if len(fields) == 1 and fields[0].endswith(VOCABULARY)}
    return len(given.shape) == 2 and not given.numbers and given.shape[0] in words


def with_groups(split: str, first: str) -> str:
    """Return a split rule with a question about its layout; `first` is the role of its first part."""
    question = f"{QUESTION}: 1 if all of {first} comes first, or the number of heads if each head has its own?"
    return f"{split.removesuffix(' }')}, groups = {json.dumps(question)} }}"


def _split(holders: Sequence[Template], parts: Sequence[Template], sizes: Sizes) -> Iterator[str]:
    """Yield the split rule, with a question, for a tensor that may hold several tensors of the model."""
    roles = [each.role.what for each in parts]
    shown = " or ".join(pattern_of(each.name) for each in holders[:CANDIDATES])
    question = f"{QUESTION}: {shown} if it holds {', '.join(roles)}; else a rename for each in place of this rule"
    whole = _together(parts, sizes) or (max(holders[0].shape), min(holders[0].shape))
    axis = 0 if holders[0].shape == whole else -1
    text = written(Split(question, tuple(own_name(each.name) for each in parts), axis))
    is_of_heads = parts[0].role.part in ("attention", "cross")
    yield from rule(with_groups(text, roles[0]) if is_of_heads else text, f"it has the shape {holders[0].shape}")


def _fused(left: Match, sizes: Sizes) -> Iterator[tuple[list[Template], list[Template]]]:
    """Yield tensors of the file that may be fused, with the tensors of the model that each of them may hold.

    Parts for which the file has enough separate tensors are left out.
    """
    done: set[str] = set()
    for own in left.own:
        for names in FUSED.values():
            several = [_of_role(left.own, replace(own.role, what=name)) for name in names]
            parts = [each for each in several if each is not None]
            if len(parts) < len(names) or done & {each.name for each in parts}:
                continue
            holders = [each for each in left.given if _is_of(each, own) and _may_hold(each, parts, sizes)]
            alone = [each for each in left.given if _may_be(each, parts[0], sizes) and each not in holders]
            if holders and len(alone) < len(parts):
                done |= {each.name for each in parts}
                yield holders, parts


def _of_role(own: Sequence[Template], role: Role) -> Template | None:
    return next((each for each in own if each.role == role), None)


def _together(parts: Sequence[Template], sizes: Sizes) -> Shape | None:
    """Return the shape of several tensors of the model, joined along the first axis; None if it is unknown."""
    shapes = [shape_of(each, sizes) for each in parts]
    known = [each for each in shapes if each is not None]
    if not known or len(known) < len(shapes) or len({each[1:] for each in known}) > 1:
        return None
    return (sum(each[0] for each in known), *known[0][1:])


def _may_hold(given: Template, parts: Sequence[Template], sizes: Sizes) -> bool:
    """Return True if a tensor of the file has the joined shape of several, or a likely one if that is unknown."""
    whole = _together(parts, sizes)
    if given.is_stacked:
        return False
    if whole is not None:
        return given.shape in (whole, whole[::-1])
    least = min(given.shape)
    most = max(given.shape)
    if len(parts) == len(FUSED["qkv"]):  # keys and values may be smaller than queries
        return len(given.shape) == 2 and least < most <= len(parts) * least
    return len(given.shape) == 2 and most == len(parts) * least


def _may_be(given: Template, own: Template, sizes: Sizes) -> bool:
    """Return True if a tensor of the file may be this one of the model, by its role and, if known, its shape."""
    shape = shape_of(own, sizes)
    return _is_of(given, own) and (shape is None or given.shape in (shape, shape[::-1]))


def _is_of(given: Template, own: Template) -> bool:
    """Return True if a tensor of the file has as many axes as this one, and its name states no other side or part."""
    same = (
        given.role.side in ("", own.role.side)
        and given.role.part in ("", own.role.part)
        and given.role.kind == own.role.kind
    )
    return same and bool(given.numbers) == bool(own.numbers) and len(given.shape) == len(own.shape)


def rule(text: str, why: str = "") -> Iterator[str]:
    """Yield the lines of a rule, with its reason as a comment."""
    yield ""
    yield "[[rule]]"
    yield f"{text}  # {why}" if why else text


def pattern_of(name: str) -> str:
    """Return a regular expression that matches the names of a template; its group is the number of the layer."""
    return "^" + re.escape(name).replace(r"\{\}", r"(\d+)").replace(r"\-", "-") + "$"


def own_name(name: str) -> str:
    """Return the name of a tensor of the model as the replacement of a match: group 1 is the layer's number."""
    return name.replace(".0.", r".\1.", 1) if "{}" not in name else name.replace("{}", r"\1")
