"""Faults of positions in attention: rotary and relative positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.parts import Attention, DotProduct, RelativeBias, RelativeVectors, Rotary, bucket_table
from txport.proof.bisect.calls import PartCall, altered
from txport.proof.bisect.faults.attention import Attended, attend, attended, read_by, replaced
from txport.proof.bisect.faults.common import fitted
from txport.proof.bisect.faults.evidence import Cause, Evidence
from txport.system.arrays import Array

Turn = Callable[[Tensor, Tensor], Tensor]

SHIFTS = (1, -1, 2, -2)
BASES = (1e2, 1e3, 1e4, 1e5, 2.5e5, 5e5, 1e6, 5e6, 1e7)  # bases of published models, and values between them
BETWEEN = (10.0, 1e9)  # range in which the base is fitted
WHO = {(True, True): "queries and keys", (True, False): "queries", (False, True): "keys"}


def turns(rotary: Rotary) -> Iterator[tuple[str, Turn]]:
    """Yield (description, function) for wrong rotations of heads (B, N, T, H) at positions."""
    yield "not rotated by their positions", lambda x, places: x
    for shift in SHIFTS:
        yield f"rotated by positions that are off by {shift:+d}", _moved(rotary, shift)
    yield "rotated by positions that restart at 0", lambda x, places: rotary(x, places - places.min())
    other: Any = "interleaved" if rotary.pairing == "halves" else "halves"
    yield f"rotated in pairs that are {other}, in place of {rotary.pairing}", altered(rotary, pairing=other)
    yield "rotated in the wrong direction", altered(rotary, sin=-rotary.sin)
    if rotary.scale != 1:
        plain = altered(rotary, cos=rotary.cos / rotary.scale, sin=rotary.sin / rotary.scale)
        yield f"rotated without the factor {rotary.scale:.4g}", plain
    yield from _of_other_bases(rotary)


def fitted_turn(key: PartCall, evidence: Evidence, run: Callable[[Turn], Array]) -> Iterator[tuple[str, Turn]]:
    """Yield the rotation with the base that fits best; `run` returns the result under a rotation."""
    rotary = key.part
    places = key.arguments[1]
    assert isinstance(rotary, Rotary)
    own = _base_of(rotary)
    if own is None or places is None:
        return
    longest = int(places.max()) + 1  # a table of all positions is too large to build for each attempt
    best = fitted(evidence, lambda base: run(_of_base(rotary, base, longest)), *BETWEEN)
    yield f"rotated with the base {best:.6g}, the model's is {own:.4g}", _of_base(rotary, best, longest)


def _moved(rotary: Rotary, shift: int) -> Turn:
    return lambda x, places: rotary(x, (places + shift) % len(rotary.cos))


def _of_other_bases(rotary: Rotary) -> Iterator[tuple[str, Turn]]:
    """Yield rotations with other bases of the inverse frequencies."""
    own = _base_of(rotary)
    for base in BASES if own is not None else ():
        if not math.isclose(base, own or 0.0, rel_tol=1e-3):
            yield (
                f"rotated with the base {base:g}, the model's is {own:.4g}",
                _of_base(rotary, base, len(rotary.cos)),
            )


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


def other_turn(evidence: Evidence) -> Cause | None:
    """Queries, keys or both with a wrong rotation."""
    block = evidence.block
    given = read_by(evidence)
    assert block is not None
    found = _turned_in(block)
    if found is None:
        return None
    rotary, (query, key) = found

    def run(turn: Turn, of_queries: bool = True, of_keys: bool = True) -> Array:
        keys = replaced(given.key, key.result, _again(key, turn)) if of_keys else None
        queries = _again(query, turn) if of_queries else given.query
        return attend(given.replace(query=queries, key=given.key if keys is None else keys))

    for words, turn in turns(rotary):
        for of, who in WHO.items():
            if evidence.explains(run(turn, *of)):
                return Cause("position", f"{who} are {words}")
    for words, turn in fitted_turn(key, evidence, run):
        if evidence.explains(run(turn)):
            return Cause("position", f"queries and keys are {words}")
    return None


def other_cached_turn(evidence: Evidence) -> Cause | None:
    """Cached keys with a wrong rotation."""
    expected = torch.from_numpy(evidence.expected)
    for call in (each for calls in evidence.record.values() for each in calls if isinstance(each.part, Attention)):
        found = _turned_in(call)
        if found is None or replaced(expected, (key := found[1][1]).result, key.result) is None:
            continue
        for words, turn in turns(found[0]):
            hypothesis = replaced(expected, key.result, _again(key, turn))
            if hypothesis is not None and evidence.explains(hypothesis.numpy()):
                return Cause("position", f"keys are {words}")

        def run(turn: Turn, key: PartCall = key) -> Array:
            hypothesis = replaced(expected, key.result, _again(key, turn))
            return (expected if hypothesis is None else hypothesis).numpy()

        for words, turn in fitted_turn(key, evidence, run):
            if evidence.explains(run(turn)):
                return Cause("position", f"keys are {words}")
    return None


def _turned_in(call: PartCall) -> tuple[Rotary, tuple[PartCall, PartCall]] | None:
    """Return the rotary part of an attention, and its calls for queries and for keys; None if there is none."""
    rotary = call.part.rotary if isinstance(call.part, Attention) else None
    calls = [] if rotary is None else call.inner_calls(rotary)
    if rotary is None or len(calls) < 2:
        return None
    first, second = calls[:2]
    is_query = torch.equal(first.result, attended(call).query)
    return rotary, (first, second) if is_query else (second, first)


@torch.inference_mode()
def _again(call: PartCall, turn: Turn) -> Tensor:
    x, places = call.arguments
    assert x is not None
    assert places is not None
    return turn(x, places)


def other_distances(evidence: Evidence) -> Cause | None:
    """Relative positions that are left out, or are looked up for wrong distances."""
    given = read_by(evidence)
    core = given.core
    if not isinstance(core, DotProduct) or given.distances is None:
        return None
    for what, other in (*_without(core, given), *_of_others(core, given)):
        if evidence.explains(attend(other)):
            return Cause("position", what)
    return None


def _without(core: DotProduct, given: Attended) -> Iterator[tuple[str, Attended]]:
    words = {
        "bias": "the relative position bias is not added",
        "relative_keys": "relative position vectors are not added to keys",
        "relative_values": "relative position vectors are not added to values",
    }
    there = [name for name in words if getattr(core, name) is not None]
    for name in there:
        yield words[name], given.replace(core=altered(core, **{name: None}))
    if len(there) > 1:
        yield "relative positions are not applied", given.replace(core=altered(core, **dict.fromkeys(there)))


def other_bias(evidence: Evidence) -> Cause | None:
    """A position bias that is scaled, that one head lacks, or that other heads have."""
    given = read_by(evidence)
    core = given.core
    if not isinstance(core, DotProduct) or core.bias is None or given.distances is None:
        return None
    bias = core.bias(given.distances)
    shape = (-1, core.heads, given.value.shape[-1])  # of the result: (B x T, N, H)
    errors = np.abs(evidence.seen - evidence.expected).reshape(shape).max((0, 2))
    wrong = np.flatnonzero(errors > evidence.allowed).tolist()

    def attended_with(other: Tensor) -> Array:
        return attend(given.replace(core=altered(core, bias=Constant(other))))

    for what, other in _of_heads(bias, wrong):
        if evidence.explains(attended_with(other)):
            return Cause("position", f"{what} (a part of {type(core.bias).__name__})")
    factor = fitted(evidence, lambda factor: attended_with(bias * factor), 1 / 64, 64)
    if not evidence.explains(attended_with(bias * factor)):
        return None
    return Cause("position", f"the position bias is scaled by {factor:.4g} of what it should be")


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

    def forward(self, distances: Tensor) -> Any:
        """See `RelativeBias.forward`."""
        return self.part(self.change(distances))


def _of_others(core: DotProduct, given: Attended) -> Iterator[tuple[str, Attended]]:
    """Yield attention with changed distances, other buckets or other limits, for each relative part and for all."""
    parts = {name: getattr(core, name) for name in ("bias", "relative_keys", "relative_values")}
    parts = {name: part for name, part in parts.items() if part is not None}
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "relative positions are off by +1": lambda distances: distances + 1,
        "relative positions are off by -1": lambda distances: distances - 1,
        "relative positions have the wrong sign": lambda distances: -distances,
    }
    for words, change in changes.items():
        for some in ([name] for name in parts) if len(parts) == 1 else (list(parts), *([name] for name in parts)):
            who = "" if len(some) == len(parts) else f" for {some[0].replace('_', ' ')}"
            changed = {name: ChangedDistances(_wide(parts[name]), change) for name in some}
            yield words + who, given.replace(core=altered(core, **changed))
    if isinstance(core.bias, RelativeBias):
        yield from ((words, given.replace(core=altered(core, bias=bias))) for words, bias in _buckets(core.bias))
    vectors = [name for name, part in parts.items() if isinstance(part, RelativeVectors)]
    for words, clipped in _clipped({name: parts[name] for name in vectors}):
        yield words, given.replace(core=altered(core, **clipped))


def _wide(part: nn.Module) -> nn.Module:
    """Return a part that accepts distances up to one beyond its longest."""
    if not isinstance(part, RelativeBias):
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


def _clipped(vectors: dict[str, RelativeVectors]) -> Iterator[tuple[str, dict[str, nn.Module]]]:
    """Yield relative vectors that are clipped at a smaller distance."""
    if not vectors:
        return
    farthest = next(iter(vectors.values())).farthest
    for least in range(farthest - 1, -1, -1):
        what = f"relative positions are clipped at {least}, the model's at {farthest}"
        yield what, {name: ChangedDistances(part, _clip(least)) for name, part in vectors.items()}


def _clip(most: int) -> Callable[[Tensor], Tensor]:
    return lambda distances: distances.clamp(-most, most)
