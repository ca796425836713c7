"""Interface between parts and targets: memory layout, masks and caches.

`PlainOps` implements it for PyTorch and for portable graphs. Other targets define theirs next to their exporters.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol, get_args

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from txport.models.facts import Role, StateTensor
from txport.models.parts import Attention, Linear, Window, additive

State = dict[StateTensor, Tensor]
MOST_SCORES = 1 << 20  # numbers in a tensor of scores in PyTorch: 8 MB in float64, which stay in caches


class Ops(Protocol):
    """One forward pass over T tokens of each row.

    Activations have shape (..., D), where ... is (B, T) or (B x T), as `lay_out` returns them. `can_split`: a tensor
    can be split into parts whose lengths other tensors hold. `source` are the encoder's states (..., D), which
    cross-attention reads.
    """

    can_split: bool
    source: Tensor | None

    def lay_out(self, x: Tensor) -> Tensor:
        """Return token ids (B, T) or vectors (B, T, D) in the target's layout: (B, T, ...) or (B x T, ...)."""
        ...

    def whole(self, x: Tensor) -> Tensor:
        """Return activations (..., D) as (B, T, D)."""
        ...

    def mean(self, x: Tensor) -> Tensor:
        """Return the mean of the activations of each source's tokens, without padding: (..., D) -> (B, D)."""
        ...

    def seen(self) -> Tensor:
        """Return a mask of each source's tokens, False on padding: (B, T)."""
        ...

    def last_token(self, x: Tensor, counted: Tensor) -> Tensor:
        """Return the activations of each source's last token that `counted` (B, T) has: (..., D) -> (B, D)."""
        ...

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """Add row `position + offset` of a table (longest + offset, D) to the activations of each token."""
        ...

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """Apply several linear layers to the same activations."""
        ...

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """Return the attention output before the output projection: (..., D) -> (..., N x H)."""
        ...

    def wanted(self, x: Tensor, layer: int) -> Tensor:
        """Return the activations that the rest of a layer needs after its attention: in the last, of a few tokens."""
        ...


class PlainOps:
    """Activations (B, T, D), and caches that grow by concatenation.

    `places` (T,) or (B, T) are the positions of the tokens; `mask` (..., T, P + T) is the additive mask of
    self-attention, `source_mask` (U, 1, 1, S) that of cross-attention; None: no mask. `source` (U, S, D) is the encoder
    output, and `source_rows` (B,) are the sources of the rows; None: each row has its own. `state` holds the caches and
    is updated by the run; cross-attention keys and values are computed unless they are cached. `weights` are the
    cross-attention weights by layer: (B, N, T, S). Without caches, the `mask` is that of the source.
    """

    can_split = True

    def __init__(
        self,
        places: Tensor,
        mask: Tensor | None,
        state: Mapping[StateTensor, Tensor] | None = None,
        source: Tensor | None = None,
        source_mask: Tensor | None = None,
        source_rows: Tensor | None = None,
    ) -> None:
        self.places = places
        self.mask = mask
        self.state: State = dict(state or {})
        self.source = source
        self.source_mask = source_mask
        self.source_rows = source_rows
        self.weights: dict[int, Tensor] = {}
        self._far: Tensor | None = None
        self._masks: dict[Window, Tensor] = {}
        self._blocks: dict[Window, Blocks] = {}
        self._caches = {(each.layer, each.owner, each.role): each for each in self.state}

    def lay_out(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x

    def whole(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x

    def mean(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        return x.mean(1) if self.mask is None else mean_of(x, self.seen())

    def seen(self) -> Tensor:
        """See `Ops`."""
        assert self.mask is not None, "sources of encoder-only models have a mask"
        return (self.mask == 0).flatten(1)

    def last_token(self, x: Tensor, counted: Tensor) -> Tensor:
        """See `Ops`."""
        seen = counted if self.mask is None else counted & self.seen()
        return last_of(x, seen, torch.arange(x.shape[1], device=x.device))

    def add_positions(self, x: Tensor, table: Tensor, offset: int) -> Tensor:
        """See `Ops`."""
        return x + F.embedding(self.places + offset if offset else self.places, table)

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """See `Ops`."""
        return tuple(each(x) for each in maps)

    def wanted(self, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        return x

    def attend(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        """See `Ops`."""
        if part.over == "source" and self._caches:
            mixed = self._over_source(part, x, layer)
        else:
            read = x if part.over == "row" or self.source is None else self.source
            query = part.queries(part.query(x), self.places)
            key = part.keys(part.key(read), self.places)
            key, value = self._kept(layer, key, part.values(part.value(read)))
            if in_blocks(part) and type(x) is not Tensor:
                return self._through_window(part, query, key, value)
            distances = self._distances(key, part) if part.uses_distances else None
            mixed = attended(part, query, key, value, self._mask_of(part, key), distances)
        return mixed.transpose(1, 2).flatten(2)

    def _through_window(self, part: Attention, *heads: Tensor) -> Tensor:
        """Attention of a graph in blocks: heads (B, N, S, H) of queries, keys and values -> (B, S, N x H)."""
        window = part.window
        assert window is not None
        assert self.mask is not None
        if window not in self._blocks:
            self._blocks[window] = Blocks(window, self.mask, heads[0].shape[2])
        blocks = self._blocks[window]
        query, key, value = (each.transpose(1, 2).flatten(2) for each in heads)
        cut = (blocks.of_queries(query), blocks.of_keys(key), blocks.of_keys(value))
        mixed = part.core(*map(part.split, cut), blocks.mask)[0]
        return blocks.joined(mixed.transpose(1, 2).flatten(2), query)

    def _kept(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values to the cache, if there is one, and return all of them."""
        if (layer, "row", "key") not in self._caches:
            return key, value
        return self._grow(layer, "key", key), self._grow(layer, "value", value)

    def _grow(self, layer: int, role: Role, new: Tensor) -> Tensor:
        cache = self._caches[layer, "row", role]
        self.state[cache] = torch.cat([self.state[cache], new], 2)
        return self.state[cache]

    def _over_source(self, part: Attention, x: Tensor, layer: int) -> Tensor:
        assert self.source is not None
        roles: tuple[Role, ...] = get_args(Role)
        caches = [self._caches[layer, "source", role] for role in roles]
        rest = self.source[:, self.state[caches[0]].shape[2] :]  # all of it in the first run, nothing later
        new = part.keys(part.key(rest), None), part.split(part.value(rest))
        if type(x) is not Tensor or rest.shape[1]:
            for cache, each in zip(caches, new, strict=True):
                self.state[cache] = torch.cat([self.state[cache], each], 2)
        query = part.queries(part.query(x), None)
        mixed, self.weights[layer] = self._over_sources(part, query, *(self.state[cache] for cache in caches))
        return mixed

    def _over_sources(self, part: Attention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (B, N, T, H) and the weights (B, N, T, S) of queries of B rows over U sources."""
        mixed: Tensor
        if self.source_rows is None:
            mixed, weights = part.core(query, key, value, self.source_mask)
            return mixed, weights
        mixed = query.new_empty(*query.shape[:3], value.shape[3])
        weights = query.new_empty(*query.shape[:3], key.shape[2])
        for source in torch.unique(self.source_rows).tolist():
            rows = self.source_rows == source
            own = query[rows].transpose(0, 1).flatten(1, 2)[None]  # (1, N, rows x T, H): all queries of one source
            one = slice(source, source + 1)
            mask = None if self.source_mask is None else self.source_mask[one]
            found = part.core(own, key[one], value[one], mask)
            for every, each in zip((mixed, weights), found, strict=True):
                every[rows] = each[0].unflatten(1, (-1, query.shape[2])).transpose(0, 1)
        return mixed, weights

    def _mask_of(self, part: Attention, key: Tensor) -> Tensor | None:
        """Return the additive mask of self-attention; the mask of a window is computed once for all its layers."""
        if part.window is None:
            return self.mask
        if part.window not in self._masks:
            assert self.mask is not None, "a window looks back from where a mask ends"
            self._masks[part.window] = part.window(self.mask, self._distances(key))
        return self._masks[part.window]

    def _distances(self, key: Tensor, part: Attention | None = None) -> Tensor:
        """Return the relative positions key - query, which all layers share: (T, S); queries have the last T places.

        For a `part` whose bias reads the positions of keys, return those: (T, S) or (B, T, S), negative on padding.
        """
        size = key.shape[2]
        places = torch.arange(size, device=key.device)
        own = places[size - self.places.shape[-1] :]
        if part is not None and part.reads_keys:
            return places - (own - self.places)[..., None]
        if self._far is None:
            self._far = places[None, :] - own[:, None]
        return self._far


def mean_of(x: Tensor, seen: Tensor) -> Tensor:
    """Return the mean of activations (B, S, D) where a mask (B, S) is True: (B, D)."""
    shares = seen.to(x.dtype)[:, :, None]
    return (x * shares).sum(1) / shares.sum(1)


def last_of(x: Tensor, seen: Tensor, places: Tensor) -> Tensor:
    """Return activations (B, S, D) at the last of the `places` (S,) where a mask (B, S) is True, else at 0: (B, D)."""
    return mean_of(x, places == (places * seen.long()).amax(1, keepdim=True))


def in_blocks(part: Attention) -> bool:
    """True if an attention sees only its neighbourhood, so that graphs compute it in blocks."""
    return part.window is not None and part.window.both_ways


class Blocks:
    """A source in blocks of queries, each with all keys that one of its queries sees through a window to both sides.

    So the scores of a graph grow with the length of a source, not with its square. `mask` is that of the blocks, made
    of the additive mask (B, 1, 1, S) of the source. Letters: C blocks, W queries and K keys in each.
    """

    def __init__(self, window: Window, mask: Tensor, length: int) -> None:
        size = window.size
        first = torch.arange(0, length, size)[:, None]
        queries = first + torch.arange(size)  # (C, W)
        keys = first + torch.arange(1 - size, 2 * size - 1)  # (C, K)
        distances = keys[:, None, :] - queries[:, :, None]  # (C, W, K)
        seen = window.sees(distances) & ((keys >= 0) & (keys < length))[:, None, :]
        self._counts = size, 3 * size - 2
        self._places = [each.clamp(0, length - 1).flatten() for each in (queries, keys)]
        of_keys = mask.index_select(3, self._places[1]).reshape(mask.shape[0], -1, 1, 1, self._counts[1])
        both = of_keys.minimum(additive(seen, mask.dtype)[:, None])
        self.mask = both.masked_fill((distances == 0)[:, None], 0.0).flatten(0, 1)  # (B x C, 1, W, K)

    def of_queries(self, x: Tensor) -> Tensor:
        """Return the queries (B, S, D) of each block: (B x C, W, D)."""
        return x.index_select(1, self._places[0]).reshape(-1, self._counts[0], x.shape[2])

    def of_keys(self, x: Tensor) -> Tensor:
        """Return the keys or values (B, S, D) of each block: (B x C, K, D)."""
        return x.index_select(1, self._places[1]).reshape(-1, self._counts[1], x.shape[2])

    def joined(self, x: Tensor, like: Tensor) -> Tensor:
        """Return what blocks computed (B x C, W, D) for the positions of `like` (B, S, ...): (B, S, D).

        C x W is that of the places: with -1, the exporter lets all layers read it from what the first one computed.
        """
        return x.reshape(like.shape[0], self._places[0].shape[0], x.shape[2])[:, : like.shape[1]]


def attended(
    part: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, distances: Tensor | None
) -> Tensor:
    """Return the output of an attention (B, N, T, H); see `DotProduct.forward`.

    In PyTorch, rows and queries are computed in blocks, so that no tensor of scores exceeds `MOST_SCORES`. A block is
    computed again for its gradients.
    """
    if type(query) is not Tensor or query[..., 0].numel() * key.shape[2] <= MOST_SCORES:
        found: Tensor = part.core(query, key, value, mask, distances)[0]
        return found
    size = max(1, MOST_SCORES // (query.shape[1] * key.shape[2]))  # queries in a block
    query, key, value = (each.contiguous() for each in (query, key, value))  # which each block reads faster
    again = partial(checkpoint, part.core, use_reentrant=False, preserve_rng_state=False)
    core = again if query.requires_grad else part.core
    rows = []
    for at in range(len(query)):
        own = [_of_row(each, at, rank) for each, rank in ((mask, 4), (distances, 3))]
        blocks = []
        for first in range(0, query.shape[2], size):
            some = slice(first, first + size)
            parts = [_of_queries(each, some) for each in own]
            blocks.append(core(query[at : at + 1, :, some], key[at : at + 1], value[at : at + 1], *parts)[0])
        rows.append(torch.cat(blocks, 2))
    return torch.cat(rows)


def _of_row(x: Tensor | None, row: int, rank: int) -> Tensor | None:
    """Return the part of one row of a mask or of distances that may have a dim of rows: that of `rank` dims."""
    return x if x is None or x.dim() < rank or len(x) == 1 else x[row : row + 1]


def _of_queries(x: Tensor | None, some: slice) -> Tensor | None:
    """Return the part of some queries of a mask or of distances (..., T, S) or (..., 1, S)."""
    return x if x is None or x.shape[-2] == 1 else x[..., some, :]


def padding_mask(lengths: Tensor, size: int) -> Tensor:
    """Return a mask that is True at positions within each row's length: (B,) -> (B, size)."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def causal_mask(length: int, past: int, device: torch.device) -> Tensor:
    """Return a mask (length, past + length): True where new token t may attend to position s, up to its own."""
    new = torch.arange(past, past + length, device=device)
    return torch.arange(past + length, device=device)[None, :] <= new[:, None]


def before_mask(length: int, past: int, device: torch.device) -> Tensor:
    """Return a mask (length, past + length): True where position s is before new token t."""
    new = torch.arange(past, past + length, device=device)
    return torch.arange(past + length, device=device)[None, :] < new[:, None]


def source_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the additive mask (B, 1, 1, S) for padded sources, of a mask (B, S) that is False on padding."""
    return None if mask is None else additive(mask, dtype)[:, None, None, :]
