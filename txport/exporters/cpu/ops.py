"""Ops of the cpu target: parts become ONNX Runtime's fused operators, or plain nodes if there is none.

Activations are (rows, D) between the operators, so that each linear layer becomes one Gemm.
Letters: B sources, K beams, R = B x K rows, S source or prompt length, N heads, G key/value heads, H head size,
M capacity of the caches.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from txport.errors import UnsupportedError
from txport.exporters.cpu.operators import (
    MULTI_HEAD,
    Kind,
    grouped_query_attention,
    kind_of_part,
    multi_head_attention,
    source_mask,
    write_at,
)
from txport.exporters.fused.parts import Counted, cap_of, sinks_of
from txport.models.facts import Owner
from txport.models.model import Model
from txport.models.ops import Blocks, State, in_blocks, last_of, mean_of, padding_mask
from txport.models.parts import Attention, Linear, Window

HEAD_SIZE_STEP, ROTARY_STEP = 8, 16  # GroupQueryAttention requires multiples of these: without and with rotary
NO_PROMPTS = "the cpu target has no form of this attention for prompts; export it with target='portable'"
NO_WINDOW = "the cpu target has no form of this attention with a window; export it with target='portable'"


def require_fusable(model: Model) -> None:
    """Raise `UnsupportedError` for a model that the fused operators can't compute."""
    for part in (each for each in model.modules() if isinstance(each, Attention)):
        step = HEAD_SIZE_STEP if part.rotary is None else ROTARY_STEP
        if part.core.has_operator and part.head_size % step:
            why = "" if part.rotary is None else " for rotary positions"
            need = f"a head size that is a multiple of {step}{why}, this model's is {part.head_size}"
            raise UnsupportedError(f"the cpu target needs {need}; export it with target='portable'")
        if part.rotary is not None and part.rotary.size % ROTARY_STEP and part.rotary.size < part.head_size:
            need = (
                f"rotary positions of a multiple of {ROTARY_STEP} elements of a head, this model's {part.rotary.size}"
            )
            raise UnsupportedError(f"the cpu target needs {need}; export it with target='portable'")
        if model.facts.is_causal and not part.core.has_operator:
            raise UnsupportedError(NO_PROMPTS)
        if part.window is not None and not (part.core.has_operator and not (in_blocks(part) and part.uses_distances)):
            raise UnsupportedError(NO_WINDOW)
    for owner in get_args(Owner):
        if len(shapes := sorted({str(list(each.dims)) for each in model.facts.owned(owner)})) > 1:
            found = f"those of a {owner} are {' and '.join(shapes)}"
            need = f"keys and values of one shape, which lie in one block of memory; {found}"
            raise UnsupportedError(f"the cpu target needs {need}; export it with target='portable'")


def is_multi_head(part: Attention) -> bool:
    """True if MultiHeadAttention supports an attention: as many key heads as query heads, no norms, a known core."""
    plain = part.query_norm is None and part.key_norm is None
    return has_multi_head(part) and plain and part.core.heads == part.core.key_heads


def has_multi_head(part: Attention) -> bool:
    """True if MultiHeadAttention computes the core of an attention: it has no soft cap and no sinks."""
    return part.core.has_operator and cap_of(part) is None and sinks_of(part) is None


class FusedOps(Counted):
    """Base of all ops of the cpu target: activations (B x T, D), and counts of the operators that parts became."""

    def __init__(self, batch: int, length: int) -> None:
        super().__init__()
        self.batch = batch
        self.length = length

    def lay_out(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x.flatten(0, 1)

    def whole(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x.view(self.batch, self.length, -1)

    def mean(self, x: Tensor) -> Tensor:
        """See `Ops`; only encoders have it."""
        raise NotImplementedError

    def seen(self) -> Tensor:
        """See `Ops`; only encoders have it."""
        raise NotImplementedError

    def last_token(self, x: Tensor, counted: Tensor) -> Tensor:
        """See `Ops`; only encoders have it."""
        raise NotImplementedError

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        places = torch.arange(self.length)
        rows = F.embedding(places + offset if offset else places, table)
        return (self.whole(x) + rows).flatten(0, 1)

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """See `Ops`; computed by one product."""
        return self.packed(x, *maps).split([each.out_features for each in maps], 1)

    def projected(self, part: Attention, x: Tensor) -> tuple[Tensor, ...]:
        """Return `new` of `grouped_query_attention`: one packed tensor, or three if heads are normalised."""
        if part.query_norm is None and part.key_norm is None:
            return (part.clipped(self.packed(x, part.query, part.key, part.value)),)
        query, key, value = map(part.clipped, self.together(x, part.query, part.key, part.value))
        return part.normalised(query, part.query_norm), part.normalised(key, part.key_norm), value

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        raise NotImplementedError

    def plain(
        self, part: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, distances: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute an attention with plain nodes; return (B x T, N x H) and the attention weights."""
        mixed, weights = super().plain(part, query, key, value, mask, distances)
        return mixed.flatten(0, 1), weights


def repeated(x: Tensor, heads: int) -> Tensor:
    """Repeat key/value heads for the query heads: (B, G, S, H) -> (B, N, S, H)."""
    groups = heads // x.shape[1]
    return x if groups == 1 else torch.cat([x[:, :, None]] * groups, 2).flatten(1, 2)


class EncoderOps(FusedOps):
    """All positions of sources at once; each attends to its whole source, or a decoder's to the encoder's states.

    Norms of heads, rotary embeddings and repeated heads are plain nodes before MultiHeadAttention.
    """

    def __init__(self, batch: int, length: int, lengths: Tensor) -> None:
        super().__init__(batch, length)
        self.lengths = lengths
        self._blocks: dict[Window, Blocks] = {}
        self._masks: dict[Window, Tensor] = {}

    def mean(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return mean_of(self.whole(x), self.seen())

    def seen(self) -> Tensor:
        """See `Ops`."""
        return padding_mask(self.lengths, self.length)

    def last_token(self, x: Tensor, counted: Tensor) -> Tensor:
        """See `Ops`."""
        return last_of(self.whole(x), counted & self.seen(), torch.arange(self.length))

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        read = x if part.over == "row" or self.source is None else self.source
        query, key, value = part.query(x), part.key(read), part.value(read)
        query, key, value = (self.whole(part.clipped(each)) for each in (query, key, value))
        places = torch.arange(self.length)
        distances = part.distances(places[None, :], places[:, None]) if part.uses_distances else None
        mask = self._mask_of(part, x.dtype)
        lengths = self.lengths if mask is None else None
        if is_multi_head(part) and part.rotary is None and not in_blocks(part):
            self.count(Kind(MULTI_HEAD))
            return multi_head_attention(part, query, key, value, lengths, distances, mask=mask).flatten(0, 1)
        heads = part.queries(query, places), part.keys(key, places), part.split(value)
        if has_multi_head(part):
            self.count(Kind(MULTI_HEAD))
            query = heads[0].transpose(1, 2).flatten(2)
            if in_blocks(part):
                return self._through_window(part, query, *heads[1:])
            key, value = (repeated(each, part.core.heads) for each in heads[1:])
            return multi_head_attention(part, query, key, value, lengths, distances, mask=mask).flatten(0, 1)
        if mask is None:
            mask = source_mask(self.lengths, self.length, x.dtype)
        return self.plain(part, *heads, mask, distances)[0]

    def _mask_of(self, part: Attention, dtype: torch.dtype) -> Tensor | None:
        """Return the additive mask of a window that is not computed in blocks, once for all its layers: (B, 1, S, S).

        None: the lengths are the mask, or the blocks have their own.
        """
        window = part.window
        if window is None or (in_blocks(part) and has_multi_head(part)):
            return None
        if window not in self._masks:
            places = torch.arange(self.length)
            mask = source_mask(self.lengths, self.length, dtype)
            self._masks[window] = window(mask, places[None, :] - places[:, None])
        return self._masks[window]

    def _through_window(self, part: Attention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention, in blocks of a graph: queries (B, S, N x H), keys and values (B, G, S, H) -> (B x S, N x H)."""
        assert part.window is not None
        key, value = (repeated(each, part.core.heads) for each in (key, value))
        if type(query) is Tensor:
            places = torch.arange(self.length)
            mask = source_mask(self.lengths, self.length, query.dtype)
            mask = part.window(mask, places[None, :] - places[:, None])
            return multi_head_attention(part, query, key, value, None, None, mask=mask).flatten(0, 1)
        if part.window not in self._blocks:
            mask = source_mask(self.lengths, self.length, query.dtype)
            self._blocks[part.window] = Blocks(part.window, mask, self.length)
        blocks = self._blocks[part.window]
        key, value = (each.transpose(1, 2).flatten(2) for each in (key, value))
        cut = (blocks.of_queries(query), blocks.of_keys(key), blocks.of_keys(value))
        mixed = multi_head_attention(part, *cut, None, None, mask=blocks.mask)
        return blocks.joined(mixed, query).flatten(0, 1)


class CausalOps(FusedOps):
    """Tokens of prompts or of steps; the caches contain the earlier tokens and are extended in place."""

    def __init__(self, input_ids: Tensor, last: Tensor, total: Tensor, logits_at: Tensor, state: State) -> None:
        super().__init__(input_ids.shape[0], input_ids.shape[1])
        self.last = last
        self.total = total
        self.state = state
        self._logits_at = logits_at
        self._has_chosen = False

    @cached_property
    def places(self) -> Tensor:
        """The position of each token: (R, T)."""
        return self.last.long()[:, None] + (torch.arange(self.length) - (self.length - 1))

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        rows = F.embedding(self.places + offset if offset else self.places, table)
        return (self.whole(x) + rows).flatten(0, 1)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        caches = own_caches(self.state, layer)
        key, value = (self.state[each] for each in caches)
        start = self.last - (self.length - 1)
        if part.core.has_operator:
            self.count(kind_of_part(part))
            new = tuple(map(self.whole, self.projected(part, x)))
            distances = None
            if part.uses_distances:
                slots = torch.arange(key.shape[2])[None, None, :]
                distances = part.distances(slots, self.places[:, :, None])  # (R, T, M)
            mixed, key, value = grouped_query_attention(part, new, key, value, start, self.last, self.total, distances)
        else:
            raise UnsupportedError(NO_PROMPTS)
        self.state.update(zip(caches, (key, value), strict=True))
        return mixed.flatten(0, 1)

    def wanted(self, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        if layer != next(reversed(self.state)).layer:
            return x
        self._has_chosen = True
        return x.index_select(0, self._logits_at)

    def asked(self, states: Tensor) -> Tensor:
        """Return the last states of the tokens whose logits are asked; layers may have chosen them by `wanted`."""
        return states if self._has_chosen else states.index_select(0, self._logits_at)


class StepOps(FusedOps):
    """One token of each row of a target: its position is the number of past tokens; caches are written in place."""

    def __init__(
        self,
        input_ids: Tensor,
        past_lengths: Tensor,
        capacity: Tensor,
        state: State,
        source_lengths: Tensor,
        aligned: int | None,
    ) -> None:
        super().__init__(input_ids.shape[0], input_ids.shape[1])
        self.past_lengths = past_lengths
        self.capacity = capacity
        self.state = state
        self.source_lengths = source_lengths
        self.aligned = aligned
        self.attention: Tensor | None = None

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        return x + F.embedding(self.past_lengths + offset if offset else self.past_lengths, table)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        return self.over_source(part, x, layer) if part.over == "source" else self.over_own(part, x, layer)

    def over_own(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """Self-attention over the tokens of the row, including the new one: (R, D) -> (R, N x H)."""
        caches = own_caches(self.state, layer)
        key, value = (self.state[each] for each in caches)
        distances = None
        if part.uses_distances:
            places = torch.arange(key.shape[2])[None, None, :]
            distances = part.distances(places, self.past_lengths.long()[:, None, None])  # (R, 1, M)
        if part.core.has_operator:
            self.count(kind_of_part(part))
            new = tuple(each[:, None] for each in self.projected(part, x))
            past = self.past_lengths
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
        """Cross-attention; keys and values of a source are shared by its beams: (R, D) -> (R, N x H)."""
        key, value = (self.state[each] for each in self.state if (each.layer, each.owner) == (layer, "source"))
        query = self.whole(part.query(x))  # (B, K, N x H)
        mask = source_mask(self.source_lengths, key.shape[2], x.dtype)
        heads = part.queries(query, None)
        if is_multi_head(part):
            if layer == self.aligned:
                _, weights = part.core(heads, key, value, mask)
            self.count(Kind(MULTI_HEAD))
            mixed = multi_head_attention(part, query, key, value, self.source_lengths, None).flatten(0, 1)
        else:
            mixed, weights = self.plain(part, heads, key, value, mask, None)
        if layer == self.aligned:
            self.attention = weights.mean(1).flatten(0, 1)  # (R, S)
        return mixed


def own_caches(state: State, layer: int) -> list[Any]:
    """Return the self-attention key and value caches of a layer."""
    return [each for each in state if (each.layer, each.owner) == (layer, "row")]
