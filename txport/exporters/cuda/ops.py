"""Ops of the cuda target: parts become operators of the device, or plain nodes if there is none.

Activations keep their dims, (B, T, D), in a step (R, 1, D): each linear layer is one product over the last dim. No
length is read from the host.
Letters: B sources, K beams, R = B x K rows, S source or prompt length, T new tokens, N heads, G key/value heads,
H head size, M capacity of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional as F

from txport.errors import UnsupportedError
from txport.exporters.cuda.operators import ROTARY, WRITE, attention, kind_of_part, rotated, write_at
from txport.exporters.cuda.positions import by_source, mean_of_heads, positions_of, row_numbers, wide
from txport.exporters.fused.parts import PACKED, Counted
from txport.models.facts import Owner
from txport.models.model import Model
from txport.models.ops import State, in_blocks, last_of, mean_of
from txport.models.parts import Attention, DotProduct, Linear, additive

HEAD_SIZE_STEP, LARGEST_HEAD = 8, 256  # required by the fast attention kernels
INSTEAD = "export it with target='portable', which runs on CUDA too"


def require_device(model: Model) -> None:
    """Raise `UnsupportedError` for a model that the operators can't compute, or only with slow kernels."""
    for part in (each for each in model.modules() if isinstance(each, Attention)):
        if part.core.has_operator and (part.head_size % HEAD_SIZE_STEP or part.head_size > LARGEST_HEAD):
            need = f"a head size that is a multiple of {HEAD_SIZE_STEP} and at most {LARGEST_HEAD}"
            why = "fast kernels of attention have no other"
            raise UnsupportedError(f"the cuda target needs {need}, this model's is {part.head_size}: {why}; {INSTEAD}")
        if not part.core.has_operator and (model.facts.is_causal or part.window is not None):
            what = "for prompts" if part.window is None else "with a window"
            raise UnsupportedError(f"the cuda target has no form of this attention {what}; {INSTEAD}")
        core = part.core
        if isinstance(core, DotProduct) and (core.disentangled is not None or core.sinks is not None):
            what = "with sinks" if core.disentangled is None else "to relative positions by content"
            raise UnsupportedError(f"the cuda target has no form of attention {what}; {INSTEAD}")
        if part.window is not None and part.window.of_encoder:
            which = "a window to both sides" if in_blocks(part) else "a causal mask in an encoder"
            raise UnsupportedError(f"the cuda target has no form of attention with {which}; {INSTEAD}")


class DeviceOps(Counted):
    """Base of all ops of the cuda target; `state` contains the caches of a decoder."""

    can_split = False  # lengths are on the host

    def __init__(self, state: State | None = None) -> None:
        super().__init__()
        self.state: State = {} if state is None else state
        self._held = dict(self.state)
        self._room: dict[Owner, Tensor] = {}

    def room(self, owner: Owner) -> Tensor:
        """Return the positions of caches (M,) or of sources (S,), computed once for all layers."""
        if owner not in self._room:
            self._room[owner] = positions_of(next(self._held[each] for each in self._held if each.owner == owner))
        return self._room[owner]

    def lay_out(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x

    def whole(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x

    def mean(self, x: Tensor) -> Tensor:
        """See `Ops`; only encoders have it."""
        raise NotImplementedError

    def seen(self) -> Tensor:
        """See `Ops`; only encoders have it."""
        raise NotImplementedError

    def last_token(self, x: Tensor, counted: Tensor) -> Tensor:
        """See `Ops`; only encoders have it."""
        raise NotImplementedError

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """See `Ops`; neighbours of equal size share a product, since only equal parts are split without the host."""
        found: list[Tensor] = []
        for size, some in groupby(maps, key=lambda each: each.out_features):
            alike = list(some)
            sizes = [size] * len(alike)
            found += [alike[0](x)] if len(alike) == 1 else torch.split(self.packed(x, *alike), sizes, -1)
        return tuple(found)

    def projected(self, part: Attention, x: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values at positions (B, T), normalised and rotated: (B, T, ...) each."""
        query, key, value = map(part.clipped, self.together(x, part.query, part.key, part.value))
        query = part.normalised(query, part.query_norm)
        key = part.normalised(key, part.key_norm)
        if part.rotary is not None and places is not None:
            query = rotated(part, query, places)
            key = rotated(part, key, places)
            self.became[ROTARY] += 2
        return query, key, value

    def written(self, layer: int, new: Sequence[Tensor], slots: Tensor) -> tuple[Tensor, Tensor]:
        """Write new keys and values from each row's slot (R,) on; return the self-attention caches of a layer."""
        key, value = (each for each in self.state if (each.layer, each.owner) == (layer, "row"))
        for cache, each in zip((key, value), new, strict=True):
            self.state[cache] = write_at(self.state[cache], each, slots)
            self.became[WRITE] += 1
        return self.state[key], self.state[value]

    def by_nodes(
        self, part: Attention, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, distances: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute an attention with plain nodes; `seen` (B, T or 1, L): mask of keys. -> (B, T, N x H), weights."""
        heads = (part.split(each) for each in (query, key, value))
        query, key, value = heads
        return self.plain(part, query, key, value, additive(seen, query.dtype)[:, None], distances)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        raise NotImplementedError


class EncoderOps(DeviceOps):
    """All positions of sources at once; each attends to its whole source."""

    def __init__(self, source: Tensor, lengths: Tensor, length: int | None) -> None:
        super().__init__()
        self.lengths = lengths
        self.places = positions_of(source) if length is None else torch.arange(length)  # (S,)

    def mean(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return mean_of(x, self.seen())

    def seen(self) -> Tensor:
        """See `Ops`."""
        return self.places < self.lengths[:, None]

    def last_token(self, x: Tensor, counted: Tensor) -> Tensor:
        """See `Ops`."""
        return last_of(x, counted & self.seen(), self.places)

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        return x + F.embedding(self.places + offset if offset else self.places, table)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        places = None
        if part.rotary is not None:
            places = self.places + (self.lengths * 0)[:, None]  # (B, S)
        query, key, value = self.projected(part, x, places)
        far = part.distances(self.places[None, :], self.places[:, None]) if part.uses_distances else None
        if part.core.has_operator:
            self.count(kind_of_part(part))
            return attention(part, query, key, value, self.lengths, far)
        seen = self.places < self.lengths[:, None, None]
        return self.by_nodes(part, query, key, value, seen, far)[0]


class PromptOps(DeviceOps):
    """Tokens of prompts; the caches contain the earlier tokens and are extended in place."""

    def __init__(self, input_ids: Tensor, past_lengths: Tensor, state: State) -> None:
        super().__init__(state)
        self.past_lengths = past_lengths
        self.places = positions_of(input_ids) + past_lengths[:, None]  # (B, T)
        self.lengths = self.places[:, -1] + 1  # (B,)
        self.is_filled = False  # True when the last cache is written

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        return x + F.embedding(self.places + offset if offset else self.places, table)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        query, *new = self.projected(part, x, self.places)
        key, value = self.written(layer, new, self.past_lengths)
        self.is_filled = layer == next(reversed(self.state)).layer
        far = None
        if part.uses_distances or part.window is not None:
            far = part.distances(self.room("row"), self.places[:, :, None])  # (B, T, M)
        if not self.is_filled:  # nodes after the last cache are not in the graph, since nothing needs them
            self.count(kind_of_part(part, causal=True))
        elif part.rotary is not None:
            self.became[ROTARY] -= 1  # the rotation of the queries, which is not needed
        return attention(part, query, key, value, self.lengths, far, causal=True)

    def packed(self, x: Tensor, *maps: Linear) -> Tensor:
        """See `Counted`."""
        before = self.became[PACKED]
        found = super().packed(x, *maps)
        if self.is_filled:
            self.became[PACKED] = before
        return found


class StepOps(DeviceOps):
    """One token of each row: its position is the number of past tokens; caches are written in place."""

    def __init__(
        self,
        input_ids: Tensor,
        past_lengths: Tensor,
        state: State,
        source_lengths: Tensor | None = None,
        aligned: int | None = None,
    ) -> None:
        super().__init__(state)
        self.lengths = past_lengths + 1  # may overwrite `past_lengths` in memory, so nothing else reads them
        self.slots = self.lengths - 1  # (R,)
        self.places = self.slots[:, None]  # (R, 1)
        self.rows = row_numbers(input_ids)  # (B, K)
        self.source_lengths = source_lengths
        self.aligned = aligned
        self.weights: Tensor | None = None

    def lay_out(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x.view(-1, 1)

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        return x + F.embedding(self.places + offset if offset else self.places, table)

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        return self.over_source(part, x, layer) if part.over == "source" else self.over_own(part, x, layer)

    def over_own(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """Self-attention over the tokens of the row, including the new one: (R, 1, D) -> (R, 1, N x H)."""
        query, *new = self.projected(part, x, self.places)
        key, value = self.written(layer, new, self.slots)
        far = None
        if part.uses_distances or part.window is not None:
            far = part.distances(self.room("row"), self.places[:, :, None])  # (R, 1, M)
        if part.core.has_operator:
            self.count(kind_of_part(part))
            return attention(part, query, key, value, self.lengths, far)
        return self.by_nodes(part, query, key, value, self.room("row") < self.lengths[:, None, None], far)[0]

    def over_source(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """Cross-attention; keys and values of a source are shared by its beams: (R, 1, D) -> (R, 1, N x H)."""
        assert self.source_lengths is not None
        key, value = (self.state[each] for each in self.state if (each.layer, each.owner) == (layer, "source"))
        query = part.normalised(part.query(x), part.query_norm)
        query = by_source(query.flatten(0, 1), self.rows)  # (B, K, N x H)
        seen = None
        if layer == self.aligned or not part.core.has_operator:
            seen = self.room("source") < self.source_lengths[:, None, None]
        if part.core.has_operator:
            self.count(kind_of_part(part))
            mixed = attention(part, query, key, value, self.source_lengths)
            if seen is not None:
                heads = (part.split(each) for each in (query, key, value))
                weights = part.core(*heads, additive(seen, query.dtype)[:, None])[1]
        else:
            assert seen is not None
            mixed, weights = self.by_nodes(part, query, key, value, seen, None)
        if layer == self.aligned:
            self.weights = mean_of_heads(wide(weights))  # (R, S)
        return mixed.view(-1, 1, mixed.shape[2])
