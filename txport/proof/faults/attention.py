"""Faults of attention: the core runs again on PyTorch's inputs, with another mask, cache, grouping or scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.parts import Additive, Attention, DotProduct, SoftCap, Window, additive, unflatten
from txport.proof.faults.calls import PartCall, altered
from txport.proof.faults.evidence import Cause, Evidence, Hypothesis
from txport.system.arrays import Array
from txport.targets.ports import ENCODER, MODEL

MASKED = -1e30
KEYS = (1, 2)  # the arguments of a core that are not of queries
RANKS = (4, 4, 4, 4, 3)  # dims of each argument, if it is of rows
LIMITS = (1 / 64, 1024.0)  # range of caps to try in a model that has none
INTERLEAVED = "the elements of heads are interleaved, the model's heads are contiguous"


@dataclass(frozen=True)
class Attended:
    """A core and its inputs in a call.

    `query` is (B, N, T, H), `key` and `value` are (B, G, S, H), `mask` and `distances` are (..., T, S).
    """

    core: DotProduct | Additive
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor
    distances: Tensor | None = None

    def replace(self, **changes: Any) -> Attended:
        """Return a copy with other keys, values or masks, or another core."""
        return dataclasses.replace(self, **changes)

    @property
    def seen(self) -> Tensor:
        """True at the positions that are not masked: (..., T, S)."""
        return self.mask == 0


def attended(call: PartCall) -> Attended:
    """Return the core of an attention and its inputs in a call; without a mask, all positions are visible."""
    assert isinstance(call.part, Attention)
    blocks = [each.arguments for each in call.inner_calls(call.part.core)]
    places = call.tensor[..., 0].numel()  # B x T
    query, key, value, mask, *rest = blocks[-1] if _places(blocks[-1]) == places else _joined(blocks)
    assert query is not None
    assert key is not None
    assert value is not None
    mask = query.new_zeros(1, 1, 1, key.shape[2]) if mask is None else mask  # all positions are visible
    return Attended(call.part.core, query, key, value, mask, rest[0] if rest else None)


def _places(arguments: tuple[Any, ...]) -> int:
    query: Tensor = arguments[0]
    return len(query) * query.shape[2]


def _joined(blocks: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the arguments of a core in one call, from those of the blocks in which `ops.attended` runs it.

    Blocks of one row read the same keys. If the rows are sources with several queries, those of the last one are
    returned.
    """
    of_rows = [list(some) for _, some in groupby(blocks, key=lambda each: each[KEYS[0]].data_ptr())]
    if len({sum(each[0].shape[2] for each in some) for some in of_rows}) > 1:
        return blocks[-1]

    def whole(place: int, first: Any) -> Tensor | None:
        if first is None:
            return None
        is_of_queries = place not in KEYS and first.shape[-2] == blocks[0][0].shape[2]
        found = [torch.cat([each[place] for each in some], -2) if is_of_queries else some[0][place] for some in of_rows]
        return torch.cat(found) if first.dim() == RANKS[place] else found[0]

    return tuple(whole(place, first) for place, first in enumerate(blocks[0]))


@torch.inference_mode()
def attend(given: Attended) -> Array:
    """Return the output of the core: (B x T, N x H)."""
    mixed, _ = given.core(given.query, given.key, given.value, given.mask, given.distances)
    found: Array = mixed.transpose(1, 2).flatten(2).flatten(0, 1).numpy()
    return found


def scaled(given: Attended, factor: float) -> Attended:
    """Return a copy whose scores of queries and keys are multiplied by a factor."""
    core = given.core
    if isinstance(core, DotProduct):
        return given.replace(core=altered(core, scale=core.scale * factor))
    return given.replace(core=altered(core, score=core.score * factor))


@torch.inference_mode()
def inner_values(given: Attended) -> Iterator[Array]:
    """Yield the output of attention and its intermediate values.

    The output is (B, N, T, H). The weights are (B, N, T, S). For a `DotProduct`, the products and the scaled, capped,
    biased and masked scores follow, (B, N, T, S) each.
    """
    core = given.core
    mixed, weights = core(given.query, given.key, given.value, given.mask, given.distances)
    yield from (mixed.numpy(), weights.numpy())
    if isinstance(core, DotProduct):
        products = core.grouped(given.query, given.key.transpose(2, 3))  # (B, N, T, S)
        scores = products * core.scale
        yield from (products.numpy(), scores.numpy())
        if core.cap is not None:
            scores = core.cap(scores)
            yield scores.numpy()
        if core.bias is not None and given.distances is not None:
            scores = scores + core.bias(given.distances)
            yield scores.numpy()
        if core.disentangled is not None and given.distances is not None:
            scores = scores + core.disentangled(given.query, given.key, given.distances) * core.scale
            yield scores.numpy()
        yield np.where(given.seen.numpy(), scores.numpy(), MASKED)
        if core.sinks is not None:
            yield np.where(given.seen.numpy(), (scores - core.sinks).numpy(), MASKED)


def read_by(evidence: Evidence) -> Attended:
    """Return the core and inputs of PyTorch's attention at the wrong value."""
    return attended(evidence.part_call)


def other_window(evidence: Evidence) -> Iterator[Hypothesis]:
    """Attention with a larger or smaller window than its layer's, or without a window."""
    part = evidence.part_call.part
    assert isinstance(part, Attention)
    if part.over == "source":
        return
    given = read_by(evidence)
    own = part.window
    windows = {each.part: each for some in evidence.record.values() for each in some if isinstance(each.part, Window)}
    both_ways = any(each.both_ways for each in windows)
    causal = any(each.causal for each in windows)
    where = "less than {} tokens to each side" if both_ways else "the last {} tokens"
    layer = f"the model's layer {'all' if own is None else where.format(own.size)}"

    def sees(what: str, mask: Tensor) -> Hypothesis:
        return Cause("window", f"it sees {what}, {layer}"), attend(given.replace(mask=mask))

    if windows:
        mask, distances = next(iter(windows.values())).arguments  # before the window is applied, the same for all
        assert mask is not None
        assert distances is not None
        sizes = {each.size + by for each in windows for by in (0, 1, -1)} - {own.size if own else 0, 0}
        if own is not None:
            yield sees("all tokens" if own.of_encoder else "all tokens before it", mask)
        for size in sorted(sizes):
            yield sees(where.format(size), Window(size, both_ways=both_ways, causal=causal)(mask, distances))
        if own is not None and both_ways:
            yield sees(f"the last {own.size} tokens", Window(own.size, causal=True)(mask, distances))
    behind = given.seen.int().flip(-1).cumsum(-1).flip(-1)  # number of visible positions from this one on
    for size in range(_longest(evidence, given), 0, -1):
        yield sees(f"the last {size} tokens", additive(given.seen & (behind <= size), given.mask.dtype))


def _longest(evidence: Evidence, given: Attended) -> int:
    """Return the longest window in which the first wrong query does not see all its positions; 0 if there is none."""
    rows, _, queries, _ = given.query.shape
    if evidence.seen.size != evidence.expected.size or evidence.seen.size % (rows * queries):
        return 0
    if given.seen.shape[-2] < queries:
        return 0  # all queries see the same positions: none are the last before a query
    errors = np.abs(evidence.seen - evidence.expected).reshape(rows, queries, -1).max(-1)
    visible = given.seen.sum(-1).broadcast_to(rows, 1, queries)[:, 0].numpy()
    wrong = visible[(errors > evidence.allowed) & (visible > 0)]
    return int(wrong.min()) - 1 if wrong.size else 0


def other_mask(evidence: Evidence) -> Iterator[Hypothesis]:
    """Attention to masked positions, or not to all positions that are visible."""
    given = read_by(evidence)
    seen = given.seen
    kinds = {f"the mask is dropped: {_beyond(evidence, seen)} seen": torch.ones_like(seen)}
    if seen.shape[-2] > 1:  # several queries can have different masks
        kinds["the mask is dropped: padding is seen"] = torch.ones_like(seen).tril(seen.shape[-1] - seen.shape[-2])
    for by, words in ((1, "one position too many is visible"), (-1, "one position too few is visible")):
        kinds[f"the mask is off by one: {words}"] = _shifted(seen, by)
    for what, mask in kinds.items():
        result = attend(given.replace(mask=additive(mask, given.mask.dtype)))
        for each in _without_keys(result, given, mask, evidence.seen):
            yield Cause("mask", what), each


def _without_keys(result: Array, given: Attended, mask: Tensor, seen: Array) -> Iterator[Array]:
    """Yield the result (B x T, D) of attention with a mask, by what kernels return for queries that see no position.

    These are the mean of all values, 0, or something else.
    """
    rows, _, queries, _ = given.query.shape
    has_keys = mask.any(-1).broadcast_to(rows, 1, queries).reshape(-1, 1).numpy()
    yield result
    yield result * has_keys
    if has_keys.any() and seen.size == result.size:
        yield np.where(has_keys, result, seen.reshape(result.shape))


def _beyond(evidence: Evidence, seen: Tensor) -> str:
    """Describe the positions that the mask hides."""
    if getattr(evidence.part_call.part, "over", "row") == "source" or evidence.role in (ENCODER, MODEL):
        return "padding of the source is"
    return "future tokens are" if seen.dim() == 2 or seen.shape[-2] > 1 else "unused cache is"


def _shifted(seen: Tensor, by: int) -> Tensor:
    """Return a mask with `by` more positions per query; positions are contiguous from the first visible one."""
    places = torch.arange(seen.shape[-1])
    first = seen.int().argmax(-1, keepdim=True)
    return (places >= first) & (places < first + seen.sum(-1, keepdim=True) + by)


def other_cache(evidence: Evidence) -> Iterator[Hypothesis]:
    """Attention with swapped keys and values, or with another cache as its keys or values."""
    given = read_by(evidence)
    if given.key.shape == given.value.shape:
        yield Cause("cache", "keys and values are swapped"), attend(given.replace(key=given.value, value=given.key))
    for name, array in evidence.arrays.items():
        if array.shape == given.key.shape:
            other = torch.from_numpy(array).to(given.key.dtype)
            for part in ("key", "value"):
                yield Cause("cache", f"{name} is read as its {part}s"), attend(given.replace(**{part: other}))


def other_heads(evidence: Evidence) -> Iterator[Hypothesis]:
    """Heads in another order, query heads with the wrong key/value heads, or an interleaved layout of heads."""
    given = read_by(evidence)
    heads = given.core.heads
    key_heads = given.core.key_heads
    if 1 < key_heads < heads:
        turns = torch.arange(heads) % key_heads
        core = altered(given.core, key_heads=heads)
        other = given.replace(core=core, key=given.key[:, turns], value=given.value[:, turns])
        what = "heads of keys and values are tiled, the model repeats each for adjacent queries"
        yield Cause("heads", what), attend(other)
    yield from _other_order_of_heads(evidence, given)
    if heads > 1:
        names = ("query", "key", "value")
        other = given.replace(**{name: interleaved(getattr(given, name)) for name in names})
        mixed = unflatten(torch.from_numpy(attend(other)), -1, (heads, -1)).transpose(-1, -2).flatten(-2)
        yield from ((Cause("heads", INTERLEAVED), each) for each in (attend(other), mixed.numpy()))


def _other_order_of_heads(evidence: Evidence, given: Attended) -> Iterator[Hypothesis]:
    """Yield the model's heads in the order that is nearest to the result, if it is another one."""
    shape = (-1, given.core.heads, given.value.shape[-1])  # (B x T, N, H)
    mixed = attend(given)
    if evidence.seen.size == mixed.size == evidence.expected.size:
        seen, own = (each.reshape(shape) for each in (evidence.seen, evidence.expected))
        order = [int(np.abs(own - seen[:, [head]]).max((0, 2)).argmin()) for head in range(shape[1])]
        if order != sorted(order):
            yield Cause("heads", f"the results of the heads are in the order {order}"), own[:, order]


def interleaved(heads: Tensor) -> Tensor:
    """Return heads (B, N, T, H) of the same numbers, in which each head has every Nth number: (B, N, T, H)."""
    numbers = heads.transpose(1, 2)  # (B, T, N, H)
    return unflatten(numbers.flatten(2), 2, (numbers.shape[3], numbers.shape[2])).permute(0, 3, 1, 2)


def other_scale(evidence: Evidence) -> Iterator[Hypothesis]:
    """Scores with another scale than the model's; the factor that fits best is tried."""
    given = read_by(evidence)
    factor = evidence.fitted(lambda factor: attend(scaled(given, factor)), 1 / 64, 64)
    what = f"scores are scaled by {factor:.4g} of what they should be{_as_if(given.core, factor)}"
    yield Cause("scale", what), attend(scaled(given, factor))


def other_cap(evidence: Evidence) -> Iterator[Hypothesis]:
    """Scores without the model's soft cap, or with another cap; the limit that fits best is tried."""
    given = read_by(evidence)
    core = given.core
    if not isinstance(core, DotProduct):
        return

    def capped(limit: float) -> Array:
        return attend(given.replace(core=altered(core, cap=SoftCap(limit))))

    limits = LIMITS
    models = "the model's are not"
    if core.cap is not None:
        what = f"scores are not capped, the model's are at {core.cap.limit:g}"
        yield Cause("cap", what), attend(given.replace(core=altered(core, cap=None)))
        limits = (core.cap.limit / 64, core.cap.limit * 64)
        models = f"the model's at {core.cap.limit:g}"
    limit = evidence.fitted(capped, *limits)
    yield Cause("cap", f"scores are capped at {limit:.4g}, {models}"), capped(limit)


def other_sinks(evidence: Evidence) -> Iterator[Hypothesis]:
    """Weights without the model's sinks."""
    given = read_by(evidence)
    core = given.core
    if isinstance(core, DotProduct) and core.sinks is not None:
        yield Cause("sink", "the sinks are left out"), attend(given.replace(core=altered(core, sinks=None)))


def _as_if(core: nn.Module, factor: float) -> str:
    """Describe the factor as a missing scale or as the scale of another head size; empty if it is neither."""
    if not isinstance(core, DotProduct) or abs(core.scale - 1) < 1e-3:
        return ""
    scale = core.scale * factor
    if abs(scale - 1) < 1e-3:
        return ", which means no scaling"
    size = scale**-2
    return f", which is that of heads of size {size:.0f}" if size > 1 and abs(size - round(size)) < 1e-3 * size else ""
