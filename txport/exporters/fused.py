"""The cpu target's ops: parts become ONNX Runtime's fused operators, and plain nodes where there is none.

Activations are (rows, D) between the operators, so that every linear map becomes one Gemm. In PyTorch itself the
attention functions compute what the operators do, by the same parts: so these modules are their own reference.
Letters: B sources, K beams, R = B x K rows, S source or prompt length, N heads, G key/value heads, H head size,
M capacity of the caches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import handle_torch_function, has_torch_function

from txport.bundles.ports import ENCODER, MODEL, PREFILL, STEP
from txport.errors import UnsupportedError
from txport.exporters.forms import FORMS
from txport.exporters.symbols import Form, Symbol, Tracer
from txport.models.facts import Owner, Task
from txport.models.model import Model
from txport.models.ops import State, additive, padding_mask
from txport.models.parts import Attention, DotProduct, Linear

MICROSOFT = "com.microsoft"
HEAD_SIZE_STEP, ROTARY_STEP = 8, 16  # GroupQueryAttention takes head sizes that are multiples of it; if it turns them
MASKED = -3e38  # MultiHeadAttention's own -10000 would let padding through where scores are large
MULTI_HEAD, GROUPED, PLAIN = "MultiHeadAttention", "GroupQueryAttention", "plain attention"
PACKED = "packs of linear maps"


def require_fusable(model: Model) -> None:
    """Raise `UnsupportedError` for a model that the fused operators can't compute."""
    for part in (each for each in model.modules() if isinstance(each, Attention)):
        step = HEAD_SIZE_STEP if part.rotary is None else ROTARY_STEP
        if part.core.has_operator and part.head_size % step:
            why = "" if part.rotary is None else " for rotary positions"
            need = f"a head size that is a multiple of {step}{why}, this model's is {part.head_size}"
            raise UnsupportedError(f"the cpu target needs {need}; export --target portable")
    for owner in get_args(Owner):
        if len(shapes := sorted({str(list(each.dims)) for each in model.facts.owned(owner)})) > 1:
            found = f"those of a {owner} are {' and '.join(shapes)}"
            need = f"keys and values of one shape, which lie in one block of memory; {found}"
            raise UnsupportedError(f"the cpu target needs {need}; export --target portable")


class FusedOps:
    """What all runs of the cpu target have in common: activations (B x T, D), and a count of what parts became."""

    def __init__(self, batch: int, length: int) -> None:
        self.batch, self.length = batch, length
        self.became: Counter[str] = Counter()

    def lay_out(self, ids: Tensor) -> Tensor:
        """See `Ops`."""
        return ids.flatten()

    def whole(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x.view(self.batch, self.length, -1)

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        places = torch.arange(self.length)
        rows = F.embedding(places + offset if offset else places, table)
        return (self.whole(x) + rows).flatten(0, 1)

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """See `Ops`; one product gives them all."""
        return self.packed(x, *maps).split([each.out_features for each in maps], 1)

    def packed(self, x: Tensor, *maps: Linear) -> Tensor:
        """What several linear maps make of the same activations, side by side."""
        self.became[PACKED] += 1
        return torch.cat([each(x) for each in maps], 1)

    def projected(self, part: Attention, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values of new tokens, for `grouped_query_attention`; normalised ones are apart."""
        if part.query_norm is None or part.key_norm is None:
            return (self.packed(x, part.query, part.key, part.value),)
        query, key, value = self.together(x, part.query, part.key, part.value)
        return part.normalised(query, part.query_norm), part.normalised(key, part.key_norm), value

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        raise NotImplementedError

    def plain(
        self, part: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, distances: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Heads attended to by plain nodes -> activations (B x T, N x H), and the weights."""
        self.became[PLAIN] += 1
        mixed, weights = part.core(query, key, value, mask, distances)
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1), weights


class EncoderOps(FusedOps):
    """All tokens of sources at once, each of which sees the whole of its source."""

    def __init__(self, input_ids: Tensor, lengths: Tensor) -> None:
        super().__init__(input_ids.shape[0], input_ids.shape[1])
        self.lengths = lengths

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        query, key, value = (self.whole(each(x)) for each in (part.query, part.key, part.value))
        places = torch.arange(self.length)
        distances = places[None, :] - places[:, None] if part.uses_distances else None
        if part.core.has_operator and part.rotary is None and part.query_norm is None:
            self.became[MULTI_HEAD] += 1
            return multi_head_attention(part, query, key, value, self.lengths, distances).flatten(0, 1)
        heads = part.queries(query, places), part.keys(key, places), part.split(value)
        return self.plain(part, *heads, source_mask(self.lengths, self.length, x.dtype), distances)[0]


class PromptOps(FusedOps):
    """All tokens of prompts at once, over empty caches, which the run fills in place."""

    def __init__(self, input_ids: Tensor, last: Tensor, total: Tensor, state: State) -> None:
        super().__init__(input_ids.shape[0], input_ids.shape[1])
        self.last, self.total, self.state = last, total, state
        self.is_filled = False  # whether all caches are

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        caches = own_caches(self.state, layer)
        key, value = (self.state[each] for each in caches)
        start = self.last * 0
        if part.core.has_operator:
            self.became[GROUPED] += 1
            new = tuple(map(self.whole, self.projected(part, x)))
            places = torch.arange(self.length)
            distances = (places[None, :] - places[:, None])[None] if part.uses_distances else None
            mixed, key, value = grouped_query_attention(part, new, key, value, start, self.last, self.total, distances)
            mixed = mixed.flatten(0, 1)
        else:
            raise UnsupportedError("the cpu target has no form of prompts for this attention; export --target portable")
        self.state.update(zip(caches, (key, value), strict=True))
        self.is_filled = layer == next(reversed(self.state)).layer
        return mixed

    def packed(self, x: Tensor, *maps: Linear) -> Tensor:
        """See `FusedOps`; what follows the last cache is in no graph, since nothing needs it."""
        found = super().packed(x, *maps)
        self.became[PACKED] -= self.is_filled
        return found


class StepOps(FusedOps):
    """One token of every row: its place is the number of tokens before it, its caches are written in place."""

    def __init__(
        self,
        input_ids: Tensor,
        past_lengths: Tensor,
        capacity: Tensor,
        state: State,
        source_lengths: Tensor | None = None,
        aligned: int | None = None,
    ) -> None:
        super().__init__(input_ids.shape[0], input_ids.shape[1])
        self.past_lengths, self.capacity, self.state = past_lengths, capacity, state
        self.source_lengths, self.aligned = source_lengths, aligned
        self.attention: Tensor | None = None

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        return x + F.embedding(self.past_lengths + offset if offset else self.past_lengths, table)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        return self.over_source(part, x, layer) if part.over == "source" else self.over_own(part, x, layer)

    def over_own(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """The row's own tokens, this one the last: (R, D) -> (R, N x H)."""
        caches = own_caches(self.state, layer)
        key, value = (self.state[each] for each in caches)
        distances = None
        if part.uses_distances:
            places = torch.arange(key.shape[2])[None, None, :]
            distances = places - self.past_lengths.long()[:, None, None]  # (R, 1, M)
        if part.core.has_operator:
            self.became[GROUPED] += 1
            new, past = tuple(each[:, None] for each in self.projected(part, x)), self.past_lengths
            mixed, key, value = grouped_query_attention(part, new, key, value, past, past, self.capacity, distances)
            mixed = mixed.flatten(0, 1)
        else:
            places = self.past_lengths[:, None]
            query, new_key, new_value = (each[:, None] for each in self.together(x, part.query, part.key, part.value))
            key = write_at(key, part.keys(new_key, places), self.past_lengths)
            value = write_at(value, part.split(new_value), self.past_lengths)
            query = part.queries(query, places)
            mask = source_mask(self.past_lengths + 1, key.shape[2], x.dtype)
            mixed, _ = self.plain(part, query, key, value, mask, distances)
        self.state.update(zip(caches, (key, value), strict=True))
        return mixed

    def over_source(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """The source, whose keys and values are held once for all of its beams: (R, D) -> (R, N x H)."""
        assert self.source_lengths is not None
        key, value = (self.state[each] for each in self.state if (each.layer, each.owner) == (layer, "source"))
        query = self.whole(part.query(x))  # (B, K, N x H)
        mask, heads = source_mask(self.source_lengths, key.shape[2], x.dtype), part.queries(query, None)
        if part.core.has_operator and part.query_norm is None:
            if layer == self.aligned:
                _, weights = part.core(heads, key, value, mask)
            self.became[MULTI_HEAD] += 1
            mixed = multi_head_attention(part, query, key, value, self.source_lengths, None).flatten(0, 1)
        else:
            mixed, weights = self.plain(part, heads, key, value, mask, None)
        if layer == self.aligned:
            self.attention = weights.mean(1).flatten(0, 1)  # (R, S)
        return mixed


def own_caches(state: State, layer: int) -> list[Any]:
    """The row's own keys and values of a layer."""
    return [each for each in state if (each.layer, each.owner) == (layer, "row")]


def source_mask(lengths: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of places within and beyond lengths (B,): (B, 1, 1, size)."""
    return additive(padding_mask(lengths, size), dtype)[:, None, None, :]


class CpuEncoder(nn.Module):
    """input_ids, source_lengths -> the keys and values of the source for each decoder layer."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64, (B,) int32 -> two of (B, G, S, H) a layer."""
        self.ops = ops = EncoderOps(input_ids, source_lengths)
        states = self.model.encoder_states(input_ids, ops)  # (B * S, D)
        found = []
        for each in self.model.facts.owned("source"):
            part = self.model.cross_attention(each.layer)
            heads = part.keys(ops.whole(part.key(states)), None) if each.role == "key" else None
            found.append(part.split(ops.whole(part.value(states))) if heads is None else heads)
        return tuple(found)


class CpuModel(nn.Module):
    """input_ids, source_lengths -> the outputs of an encoder-only model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, source_lengths: Tensor) -> tuple[Tensor, ...]:
        """(B, S) int64, (B,) int32 -> one tensor an output."""
        self.ops = ops = EncoderOps(input_ids, source_lengths)
        return self.model.outputs(self.model.encoder_states(input_ids, ops), ops)


class CpuPrefill(nn.Module):
    """Prompts of a causal model, padded at the right, into caches that are empty: the caches.

    No token sees what comes after it, so padding needs no mask; what it leaves in the caches is written over.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, last_places: Tensor, size: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        """(B, S), (B,) that are S - 1, (1,) that is S, then (B, G, M, H) twice a layer -> the caches."""
        state = dict(zip(self.model.facts.state, caches, strict=True))
        self.ops = ops = PromptOps(input_ids, last_places, size, state)
        self.model.decoder_states(input_ids, ops)
        return tuple(ops.state.values())


class CpuStep(nn.Module):
    """One token of every row: ids, lengths, the source's keys and values, and the rows' own -> logits.

    The rows' own keys and values lie in buffers of a fixed capacity M; the outputs are the same buffers
    with the new token's written at its place. Last comes the attention over the source, if there is one.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, past_lengths: Tensor, cache_capacity: Tensor, *rest: Tensor
    ) -> tuple[Tensor, ...]:
        """(B, K), (R,), (1,), of a seq2seq model (B,) and (B, G, S, H) twice a layer, then (R, G, M, H) twice a layer.

        -> logits (R, V), the caches, and the mean attention of the heads of the alignment layer (R, S).
        """
        facts = self.model.facts
        has_source = facts.task == "seq2seq"
        source_lengths, caches = (rest[0], rest[1:]) if has_source else (None, rest)
        state = dict(zip((*facts.owned("source"), *facts.owned("row")), caches, strict=True))
        aligned = facts.attention.layer if facts.attention else None
        self.ops = ops = StepOps(input_ids, past_lengths, cache_capacity, state, source_lengths, aligned)
        logits = self.model.logits(self.model.decoder_states(input_ids, ops))
        grown = [ops.state[each] for each in facts.owned("row")]
        return (logits, *grown) if ops.attention is None else (logits, *grown, ops.attention)


def multi_head_attention(
    part: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    distances: Tensor | None,
    bias: Tensor | None = None,
) -> Tensor:
    """Queries (B, T, N x H) over keys and values (B, S, N x H) or (B, N, S, H), `lengths` of them real -> as queries.

    `distances` (T, S) are wanted where positions add to the scores; a trace computes this `bias` of them once.
    """
    if has_torch_function((query,)):
        bias = _bias(part, distances) if bias is None else bias
        arguments = (part, query, key, value, lengths, distances, bias)
        mixed: Tensor = handle_torch_function(multi_head_attention, (query,), *arguments)
        return mixed
    key, value = (x if x.dim() == 4 else part.split(x) for x in (key, value))
    mask = source_mask(lengths, key.shape[2], query.dtype)
    attended: Tensor = part.core(part.split(query), key, value, mask, distances)[0]
    return attended.transpose(1, 2).flatten(2)


def grouped_query_attention(
    part: Attention,
    new: tuple[Tensor, ...],
    key: Tensor,
    value: Tensor,
    past: Tensor,
    last: Tensor,
    total: Tensor,
    distances: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """New tokens over buffers (R, G, M, H), into which their keys and values are written at their places.

    `new` is query, key and value side by side (R, T, (N + 2 G) x H), or each by itself, normalised. `past` (R,) tokens
    lie in the buffers, `last` (R,) is the place of each row's last real token. -> (R, T, N x H), and the buffers.
    `distances` (R or 1, T, M or T) are wanted where positions add to the scores; a trace computes this `bias` of them
    once.
    """
    if has_torch_function(new):
        bias = _bias(part, distances) if bias is None else bias
        arguments = (part, new, key, value, past, last, total, distances, bias)
        found: tuple[Tensor, Tensor, Tensor] = handle_torch_function(grouped_query_attention, new, *arguments)
        return found
    sizes = [each.out_features for each in (part.query, part.key, part.value)]
    query, new_key, new_value = new if len(new) == len(sizes) else new[0].split(sizes, 2)
    places = past.long()[:, None] + torch.arange(query.shape[1])  # (R, T)
    key = written(key, part.turned(part.split(new_key), places), places)
    value = written(value, part.split(new_value), places)
    slots = torch.arange(key.shape[2])
    mask = additive(slots <= places[:, None, :, None], query.dtype)  # (R, 1, T, M)
    far = slots - places[:, :, None] if part.uses_distances else None
    mixed: Tensor = part.core(part.turned(part.split(query), places), key, value, mask, far)[0]
    return mixed.transpose(1, 2).flatten(2), key, value


def _bias(part: Attention, distances: Tensor | None) -> Tensor | None:
    """What positions add to the scores."""
    core = part.core
    return core.bias(distances) if isinstance(core, DotProduct) and core.bias is not None else None


def written(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """A buffer (R, G, M, H) with heads (R, G, T, H) at places (R, T)."""
    cache = cache.clone()
    cache[torch.arange(len(places))[:, None], :, places] = new.transpose(1, 2)
    return cache


def write_at(cache: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """A buffer (R, G, M, H) with heads (R, G, 1, H) of one token a row at places (R,)."""
    if has_torch_function((cache,)):
        found: Tensor = handle_torch_function(write_at, (cache,), cache, new, places)
        return found
    return written(cache, new, places.long()[:, None])


def _multi_head_attention(
    tracer: Tracer,
    part: Attention,
    query: Symbol,
    key: Symbol,
    value: Symbol,
    lengths: Symbol,
    distances: Symbol | None,
    bias: Symbol | None,
) -> Symbol:
    """As ONNX Runtime's operator; `MASKED` is where its own value would let padding through."""
    inputs = [query.value, key.value, value.value, None, lengths.value]
    if bias is not None:
        inputs.append(FORMS["unsqueeze"](tracer, bias, 0).value)
    how: dict[str, Any] = {"num_heads": part.core.heads, "mask_filter_value": MASKED, **_scale(part)}
    mixed = tracer.op("multi_head_attention", MULTI_HEAD, inputs, MICROSOFT, **how)
    return tracer.given(mixed, query.examples)


def _grouped_query_attention(
    tracer: Tracer,
    part: Attention,
    new: tuple[Symbol, ...],
    key: Symbol,
    value: Symbol,
    past: Symbol,
    last: Symbol,
    total: Symbol,
    distances: Symbol | None,
    bias: Symbol | None,
) -> tuple[Symbol, Symbol, Symbol]:
    """As ONNX Runtime's operator, which writes into the buffers."""
    given = [each.value for each in new] if len(new) > 1 else [new[0].value, None, None]
    inputs = [*given, key.value, value.value, last.value, total.value]
    how: dict[str, Any] = {"num_heads": part.core.heads, "kv_num_heads": part.core.key_heads, **_scale(part)}
    if part.rotary is not None:
        inputs += [tracer.tensor(part.rotary.cos), tracer.tensor(part.rotary.sin)]
        how |= {"do_rotary": 1, "rotary_interleaved": int(part.rotary.pairing == "interleaved")}
    if bias is not None:
        inputs += [None] * (10 - len(inputs)) + [bias.value]
    mixed, *grown = tracer.ops("grouped_query_attention", GROUPED, inputs, 3, MICROSOFT, **how)
    size = part.query.out_features
    attended = tuple(example.new_empty(*example.shape[:2], size) for example in new[0].examples)
    found = tracer.given(mixed, (attended[0], attended[1]))
    return found, tracer.given(grown[0], key.examples), tracer.given(grown[1], value.examples)


def _scale(part: Attention) -> dict[str, float]:
    """The factor of the scores, unless it is the operators' own, 1 / sqrt(H)."""
    scale = float(getattr(part.core, "scale", 0.0))
    return {} if scale == part.head_size**-0.5 else {"scale": scale}


def _write_at(tracer: Tracer, cache: Symbol, new: Symbol, places: Symbol) -> Symbol:
    """One ScatterND, which leaves all else of a buffer in place where output and input are bound to one memory."""
    heads = int(cache.examples[0].shape[1])
    rows = tracer.op("write/rows", "Range", [tracer.scalar(each) for each in (0, cache.shape[0], 1)])
    place = tracer.op("write/places", "Cast", [places.value], to=7)
    axes = tracer.constant(np.array([1, 2]))
    table = tracer.constant(np.zeros((1, heads, 1), np.int64))
    parts = [tracer.op("write/add", "Add", [tracer.op("write/row", "Unsqueeze", [each, axes]), table])
             for each in (rows, place)]  # fmt: skip
    own = tracer.constant(np.arange(heads)[None, :, None])
    zero = tracer.op("write/zero", "Mul", [parts[0], tracer.constant(np.array(0))])
    index = tracer.op(
        "write/index", "Concat", [parts[0], tracer.op("write/head", "Add", [zero, own]), parts[1]], axis=2
    )
    update = tracer.op("write/new", "Squeeze", [new.value, tracer.constant(np.array([2]))])  # (R, G, H)
    value = tracer.op("write", "ScatterND", [cache.value, index, update])
    return tracer.given(value, cache.examples)


FUSED_FORMS: dict[str, Form] = {
    **FORMS,
    "multi_head_attention": _multi_head_attention,
    "grouped_query_attention": _grouped_query_attention,
    "write_at": _write_at,
}
FUSED: dict[Task, dict[str, Callable[[Model], nn.Module]]] = {
    "seq2seq": {ENCODER: CpuEncoder, STEP: CpuStep},
    "causal": {PREFILL: CpuPrefill, STEP: CpuStep},
    "encode": {MODEL: CpuModel},
}
