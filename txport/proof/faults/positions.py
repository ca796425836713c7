"""Faults of positions in attention: rotary and relative positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.parts import (
    Attention,
    Disentangled,
    DotProduct,
    PositionVectors,
    RelativeBias,
    RelativeVectors,
    Rotary,
    bucket_table,
)
from txport.proof.faults.attention import attend, attended, read_by
from txport.proof.faults.calls import PartCall, altered
from txport.proof.faults.evidence import Cause, Evidence, Hypothesis
from txport.system.arrays import Array

Turn = Callable[[Tensor, Tensor], Tensor]
Changes = dict[str, Any]  # of an attention core

SHIFTS = (1, -1, 2, -2)
BASES = (1e2, 1e3, 1e4, 1e5, 2.5e5, 5e5, 1e6, 5e6, 1e7)  # bases of published models, and values between them
BETWEEN = (10.0, 1e9)  # range in which the base is fitted
WHO = {(True, True): "queries and keys", (True, False): "queries", (False, True): "keys"}


def turns(key: PartCall, evidence: Evidence, run: Callable[[Turn], Array]) -> Iterator[tuple[str, Turn]]:
    """Yield (description, function) for wrong rotations of heads (B, N, T, H) at positions.

    `key` is the call of the rotary part; `run` returns the result under a rotation, for the base that fits best.
    """
    rotary = key.part
    assert isinstance(rotary, Rotary)
    yield "not rotated by their positions", lambda x, places: x
    for shift in SHIFTS:
        yield f"rotated by positions that are off by {shift:+d}", _moved(rotary, shift)
    yield "rotated by positions that restart at 0", lambda x, places: rotary(x, places - places.min())
    other: object = "interleaved" if rotary.pairing == "halves" else "halves"
    yield f"rotated in pairs that are {other}, in place of {rotary.pairing}", altered(rotary, pairing=other)
    yield "rotated in the wrong direction", altered(rotary, sin=-rotary.sin)
    if rotary.scale != 1:
        plain = altered(rotary, cos=rotary.cos / rotary.scale, sin=rotary.sin / rotary.scale)
        yield f"rotated without the factor {rotary.scale:.4g}", plain
    own = _base_of(rotary)
    places = key.arguments[1]
    if own is None or places is None:
        return
    longest = int(places.max()) + 1  # a table of all positions is too large to build for each attempt
    for base in (each for each in BASES if not math.isclose(each, own, rel_tol=1e-3)):
        yield f"rotated with the base {base:g}, the model's is {own:.4g}", _of_base(rotary, base, longest)
    best = evidence.fitted(lambda base: run(_of_base(rotary, base, longest)), *BETWEEN)
    yield f"rotated with the base {best:.6g}, the model's is {own:.4g}", _of_base(rotary, best, longest)


def _moved(rotary: Rotary, shift: int) -> Turn:
    return lambda x, places: rotary(x, (places + shift) % len(rotary.cos))


def _base_of(rotary: Rotary) -> float | None:
    """Return the base, from the lowest inverse frequency; None if there are too few positions or pairs."""
    longest, half = rotary.cos.shape
    if longest < 2 or half < 2:
        return None
    slowest = math.atan2(float(rotary.sin[1, -1]), float(rotary.cos[1, -1]))
    return float(slowest ** (-half / (half - 1))) if slowest > 0 else 0.0


def _of_base(rotary: Rotary, base: float, longest: int) -> Rotary:
    half = rotary.cos.shape[1]
    speeds = base ** (-np.arange(half) / half)
    return Rotary(speeds, longest, rotary.pairing, rotary.scale).to(rotary.cos.dtype)


def other_turn(evidence: Evidence) -> Iterator[Hypothesis]:
    """Queries, keys or both with a wrong rotation."""
    given = read_by(evidence)
    if (found := turned_in(evidence.part_call)) is None:
        return
    query, key = found

    def run(turn: Turn, of_queries: bool = True, of_keys: bool = True) -> Array:
        keys = replaced(given.key, key.result, turned_again(key, turn)) if of_keys else None
        queries = turned_again(query, turn) if of_queries else given.query
        return attend(given.replace(query=queries, key=given.key if keys is None else keys))

    for words, turn in turns(key, evidence, run):
        for of, who in WHO.items():
            yield Cause("position", f"{who} are {words}"), run(turn, *of)


def turned_in(call: PartCall) -> tuple[PartCall, PartCall] | None:
    """Return the calls of the rotary part of an attention for queries and for keys; None if there are none."""
    rotary = call.part.rotary if isinstance(call.part, Attention) else None
    calls = [] if rotary is None else call.inner_calls(rotary)
    if len(calls) < 2:
        return None
    first, second = calls[:2]
    return (first, second) if torch.equal(first.result, attended(call).query) else (second, first)


@torch.inference_mode()
def turned_again(call: PartCall, turn: Turn) -> Tensor:
    """Return the result of a rotation under another one."""
    x, places = call.arguments
    assert x is not None
    assert places is not None
    return turn(x, places)


def replaced(array: Tensor, old: Tensor, new: Tensor) -> Tensor | None:
    """Return heads (B, G, S, H) in which the tokens `old` (B, G, T, H) are replaced by `new` (B, G, T, H).

    Returns None if a token of `old` is not in the array. Values are compared in fp32. Equal tokens, such as padding,
    have separate positions, the last ones that match: tokens of the past can be equal too.
    """
    if array.dim() != 4 or old.shape[:2] != array.shape[:2] or old.shape[3] != array.shape[3]:
        return None
    exact = array.float()[:, :, None] == old.float()[:, :, :, None]  # (B, G, T, S, H)
    same = exact.all(-1).all(1)  # (B, T, S)
    if not same.any(-1).all():
        return None
    alike = (old[:, :, :, None] == old[:, :, None]).all(-1).all(1)  # (B, T, T)
    after = alike.triu(1).sum(-1)  # number of later tokens that are equal
    left = same.int().flip(-1).cumsum(-1).flip(-1) - same.int()  # number of later positions that match
    own = same & (left == after[:, :, None])
    own = torch.where(own.any(-1, keepdim=True), own, same)
    found = array.clone()
    rows = torch.arange(len(array))[:, None]
    found[rows, :, own.int().argmax(-1)] = new.to(array.dtype).transpose(1, 2)
    return found


def other_distances(evidence: Evidence) -> Iterator[Hypothesis]:
    """Relative positions that are left out, or are looked up for wrong distances."""
    given = read_by(evidence)
    core = given.core
    if isinstance(core, DotProduct) and given.distances is not None:
        for what, changes in (*_without(core), *_of_others(core)):
            yield Cause("position", what), attend(given.replace(core=altered(core, **changes)))


def _without(core: DotProduct) -> Iterator[tuple[str, Changes]]:
    words = {
        "bias": "the relative position bias is not added",
        "relative_keys": "relative position vectors are not added to keys",
        "relative_values": "relative position vectors are not added to values",
        "disentangled": "contents are not compared with relative positions",
    }
    there = [name for name in words if getattr(core, name) is not None]
    yield from ((words[name], {name: None}) for name in there)
    if len(there) > 1:
        yield "relative positions are not applied", dict.fromkeys(there)


def other_bias(evidence: Evidence) -> Iterator[Hypothesis]:
    """A position bias that is scaled, that one head lacks, or that other heads have."""
    given = read_by(evidence)
    core = given.core
    if not isinstance(core, DotProduct) or core.bias is None or given.distances is None:
        return
    bias = core.bias(given.distances)

    def attended_with(other: Tensor) -> Array:
        return attend(given.replace(core=altered(core, bias=Constant(other))))

    if evidence.seen.size == evidence.expected.size == attend(given).size:
        shape = (-1, core.heads, given.value.shape[-1])  # of the result: (B x T, N, H)
        errors = np.abs(evidence.seen - evidence.expected).reshape(shape).max((0, 2))
        for what, other in _of_heads(bias, np.flatnonzero(errors > evidence.allowed).tolist()):
            yield Cause("position", f"{what} (a part of {type(core.bias).__name__})"), attended_with(other)
    factor = evidence.fitted(lambda factor: attended_with(bias * factor), 1 / 64, 64)
    what = f"the position bias is scaled by {factor:.4g} of what it should be"
    yield Cause("position", what), attended_with(bias * factor)


def _of_heads(bias: Tensor, wrong: list[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield biases (..., N, T, S) in which the heads that are wrong have no bias, or those of each other."""
    without = bias.clone()
    without[..., wrong, :, :] = 0
    yield f"the position bias of the heads {wrong} is not added", without
    turned = bias.clone()
    turned[..., wrong, :, :] = bias[..., wrong[::-1], :, :]
    yield f"the heads {wrong} have each other's position bias, in reverse order", turned


class Constant(nn.Module):
    """A position bias that is the same for all distances that it receives."""

    def __init__(self, bias: Tensor) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, distances: Tensor) -> Tensor:
        """See `RelativeBias.forward`."""
        return self.bias


class ChangedDistances(nn.Module):
    """A relative position part that receives changed distances."""

    def __init__(self, part: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.part = part
        self.change = change

    def forward(self, *given: Tensor) -> object:
        """See `RelativeBias.forward` and `Disentangled.forward`: distances are the last of what is given."""
        return self.part(*given[:-1], self.change(given[-1]))


def _of_others(core: DotProduct) -> Iterator[tuple[str, Changes]]:
    """Yield changed distances, other buckets or other limits, for each relative part and for all."""
    parts = {name: getattr(core, name) for name in ("bias", "relative_keys", "relative_values", "disentangled")}
    parts = {name: part for name, part in parts.items() if part is not None}
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "relative positions are off by +1": lambda distances: distances + 1,
        "relative positions are off by -1": lambda distances: distances - 1,
        "relative positions have the wrong sign": lambda distances: -distances,
    }
    for words, change in changes.items():
        changed = {name: ChangedDistances(_wide(part), change) for name, part in parts.items()}
        yield words, changed
        if len(parts) > 1:
            yield from ((f"{words} for {name.replace('_', ' ')}", {name: changed[name]}) for name in parts)
    if isinstance(core.bias, RelativeBias):
        yield from ((words, {"bias": bias}) for words, bias in _buckets(core.bias))
    yield from _clipped({name: part for name, part in parts.items() if isinstance(part, RelativeVectors)})


def _wide(part: nn.Module) -> nn.Module:
    """Return a part that accepts distances up to one beyond its longest."""
    if isinstance(part, Disentangled):
        return altered(part, positions=_wide(part.positions))
    if not isinstance(part, RelativeBias | PositionVectors):
        return part
    ends = torch.cat([part.bucket[:1], part.bucket, part.bucket[-1:]])
    return altered(part, bucket=ends, longest=part.longest + 1)


def _buckets(bias: RelativeBias) -> Iterator[tuple[str, RelativeBias]]:
    """Yield relative biases with other buckets."""
    own = "bidirectional" if bias.both_ways else "unidirectional"
    other = "unidirectional" if bias.both_ways else "bidirectional"
    sizes = {"buckets": bias.buckets, "farthest": bias.farthest, "longest": bias.longest}
    table = bucket_table(**sizes, both_ways=not bias.both_ways)
    yield f"buckets are {other}, the model's {own}", altered(bias, bucket=table)
    for by in (1, -1):
        moved = (bias.bucket + by).clamp(0, bias.buckets - 1)
        yield f"buckets are off by {by:+d}", altered(bias, bucket=moved)
    for farthest in (bias.farthest // 2, 2 * bias.farthest, 128):
        if farthest > bias.buckets and farthest != bias.farthest:
            found = bucket_table(**{**sizes, "farthest": farthest}, both_ways=bias.both_ways)
            yield (
                f"the farthest bucket begins at {farthest}, the model's at {bias.farthest}",
                altered(bias, bucket=found),
            )


def _clipped(vectors: dict[str, RelativeVectors]) -> Iterator[tuple[str, Changes]]:
    """Yield relative vectors that are clipped at a smaller distance."""
    farthest = max((part.farthest for part in vectors.values()), default=0)
    for least in range(farthest - 1, -1, -1):
        clip = partial(torch.clamp, min=-least, max=least)
        what = f"relative positions are clipped at {least}, the model's at {farthest}"
        yield what, {name: ChangedDistances(part, clip) for name, part in vectors.items()}
