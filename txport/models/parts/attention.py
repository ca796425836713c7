"""Attention: scores, weights and weighted values per head, and the projections around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.models.facts import Owner
from txport.models.parts.linear import Linear, SoftCap
from txport.models.parts.positions import (
    Alibi,
    PositionVectors,
    RelativeBias,
    RelativeVectors,
    Rotary,
    RoundedAlibi,
    unflatten,
)

if TYPE_CHECKING:
    from txport.models.ops import Ops


class DotProduct(nn.Module):
    """Scaled dot-product attention of N query heads over G key/value heads, with optional relative positions.

    `cap` (a soft cap of the scores) can't be combined with a `bias`, `relative_keys` or `disentangled`. With `sinks`
    (Xiao et al. 2023, in the form of gpt-oss), each head has a learned score of a key without a value: it is in the
    softmax, so that the weights of the keys add up to less than 1, and to 0 in a row whose keys are all masked.
    """

    def __init__(
        self,
        heads: int,
        key_heads: int,
        scale: float,
        *,
        bias: RelativeBias | Alibi | RoundedAlibi | None = None,
        relative_keys: RelativeVectors | None = None,
        relative_values: RelativeVectors | None = None,
        disentangled: Disentangled | None = None,
        cap: SoftCap | None = None,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        assert cap is None or (bias is None and relative_keys is None and disentangled is None)
        self.heads = heads
        self.key_heads = key_heads
        self.scale = scale
        self.bias = bias
        self.relative_keys = relative_keys
        self.relative_values = relative_values
        self.disentangled = disentangled
        self.cap = cap
        self.sinks = nn.Parameter(torch.empty(heads, 1, 1)) if sinks else None

    @property
    def has_operator(self) -> bool:
        """True if the fused attention operators of ONNX Runtime compute this attention."""
        return not any((self.relative_keys, self.relative_values, self.disentangled))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries (B, N, T, H), keys and values (B, G, S, H) -> output (B, N, T, H) and weights (B, N, T, S).

        `mask` (..., T, S) is added to the scores; None: no mask. `distances` (..., T, S) are relative positions
        key - query, which relative positions require.
        """
        scores = self.grouped(query, key.transpose(2, 3)) * self.scale
        if self.cap is not None:
            scores = self.cap(scores)
        if self.bias is not None and distances is not None:
            scores = scores + self.bias(distances)
        if self.relative_keys is not None and distances is not None:
            vectors = _beside_heads(self.relative_keys(distances))  # (..., T, S, H)
            scores = scores + (vectors @ query[:, :, :, :, None]).flatten(3) * self.scale
        if self.disentangled is not None and distances is not None:
            scores = scores + self.disentangled(query, key, distances) * self.scale
        weights = self.softmax(scores if mask is None else scores + mask)
        mixed = self.grouped(weights, value)
        if self.relative_values is not None and distances is not None:
            vectors = _beside_heads(self.relative_values(distances))
            mixed = mixed + (weights[:, :, :, None] @ vectors).flatten(3)
        return mixed, weights

    def softmax(self, scores: Tensor) -> Tensor:
        """Return the weights of masked scores (B, N, T, S); with sinks, all scores are less by that of the sink."""
        if self.sinks is None:
            return torch.softmax(scores, dim=-1)
        return torch.softmax(F.pad(scores - self.sinks, (0, 1)), dim=-1)[..., :-1]

    def grouped(self, x: Tensor, y: Tensor) -> Tensor:
        """Multiply each of N heads (B, N, T, a) by its head of G (B, G, a, b) -> (B, N, T, b)."""
        if self.heads == self.key_heads:
            return x @ y
        if type(x) is Tensor:  # PyTorch would copy `y` for each head of its group
            return (x.reshape(len(x), self.key_heads, -1, x.shape[-1]) @ y).reshape(*x.shape[:-1], y.shape[-1])
        groups = (self.key_heads, self.heads // self.key_heads)
        return (unflatten(x, 1, groups) @ y[:, :, None]).flatten(1, 2)


class Disentangled(nn.Module):
    """Disentangled attention (He et al. 2021, DeBERTa): contents are also compared with vectors of relative positions.

    By its `roles`, a vector is the "key" of queries, the "query" of keys, or both. It has a projection for each role;
    or, after `share`, those of an attention.
    """

    def __init__(self, width: int, heads: int, positions: PositionVectors, roles: Sequence[str], *, own: bool) -> None:
        super().__init__()
        self.heads = heads
        self.positions = positions
        self.roles = roles
        self._holder: tuple[nn.Module] = (self,)  # in a tuple, it is no submodule
        for role in roles if own else ():
            self.add_module(role, Linear(width, width, tag=f"position_{role}"))

    def share(self, attention: Attention) -> None:
        """Project the vectors as this attention projects contents."""
        self._holder = (attention,)

    def forward(self, query: Tensor, key: Tensor, distances: Tensor) -> Tensor:
        """Queries (B, N, T, H), keys (B, N, S, H), distances (T, S) -> scores (B, N, T, S), not scaled."""
        vectors, rows = self.positions(distances)  # (P, D), (T, S)
        (holder,) = self._holder
        found = []
        for role in self.roles:
            projected = unflatten(holder.get_submodule(role)(vectors).transpose(0, 1), 0, (self.heads, -1))[None]
            # (1, N, H, P): without the first dim, ONNX Runtime 1.31 crashes while it loads the graph in fp16
            if role == "key":
                found.append(self._at(query @ projected, rows))
            else:
                found.append(self._at(key @ projected, rows.transpose(0, 1)).transpose(2, 3))
        return found[0] if len(found) == 1 else found[0] + found[1]

    def _at(self, scores: Tensor, rows: Tensor) -> Tensor:
        """Return the scores (B, N, T, P) of all vectors at those of each pair (T, S): (B, N, T, S)."""
        return scores.gather(3, rows.expand(scores.shape[0], self.heads, -1, -1))


class Window(nn.Module):
    """Sliding window (Beltagy et al. 2020, "Longformer"): a token attends to itself and `size` - 1 tokens before.

    In a decoder, its mask hides later tokens. In an encoder, the window does: with `both_ways`, a token attends to as
    many tokens after it, with `causal` to none. There a padding token also attends to itself, or all its keys would
    be masked.
    """

    def __init__(self, size: int, *, both_ways: bool = False, causal: bool = False) -> None:
        super().__init__()
        self.size = size
        self.both_ways = both_ways
        self.causal = causal

    def sees(self, distances: Tensor) -> Tensor:
        """Return a mask that is True at relative positions key - query within the window."""
        seen = distances > -self.size
        if not self.of_encoder:
            return seen
        return seen & (distances < (self.size if self.both_ways else 1))

    def forward(self, mask: Tensor, distances: Tensor) -> Tensor:
        """Return the additive mask (..., T, S) that combines a mask with the window.

        `distances` (..., T, S) are relative positions key - query.
        """
        found = mask + additive(self.sees(distances), mask.dtype)
        return found.masked_fill(distances == 0, 0.0) if self.of_encoder else found

    @property
    def of_encoder(self) -> bool:
        """True if the window itself decides about later tokens, not the mask of a decoder."""
        return self.both_ways or self.causal


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an additive mask: 0 where `mask` is True, a large negative *finite* number elsewhere."""
    return (~mask).to(dtype) * (torch.finfo(dtype).min / 2)


def _beside_heads(vectors: Tensor) -> Tensor:
    """Return vectors (T, S, H) as they are, (B, T, S, H) as (B, 1, T, S, H), to broadcast over heads."""
    return vectors[:, None] if vectors.dim() == 4 else vectors


class Additive(nn.Module):
    """Additive attention (Bahdanau et al. 2015): score = v tanh(q + k) of projected queries and keys, per head."""

    has_operator = False

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads = self.key_heads = heads
        self.score = nn.Parameter(torch.empty(heads, 1, head_size, 1))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `DotProduct.forward`."""
        hidden = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, N, T, S, H)
        scores = (hidden @ self.score).flatten(3)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        return weights @ value, weights


class Attention(nn.Module):
    """Multi-head attention with separate projections, so that keys and values can be cached.

    `over` is "row" for self-attention, which a `window` may limit, or "source" for cross-attention. Queries and keys
    are optionally normalised per head (`query_norm`, `key_norm`), or with `joint_norms` all heads at once, then rotated
    (`rotary`). Before all that, queries, keys and values are clipped to [-`clip`, `clip`], unless it is 0.
    """

    def __init__(
        self,
        width: int,
        core: DotProduct | Additive,
        head_size: int,
        *,
        over: Owner = "row",
        bias: bool = True,
        output_bias: bool | None = None,
        rotary: Rotary | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        joint_norms: bool = False,
        window: Window | None = None,
        clip: float = 0.0,
    ) -> None:
        super().__init__()
        self.over = over
        self.head_size = head_size
        self.core = core
        self.rotary = rotary
        self.window = window
        self.clip = clip
        self.query_norm = query_norm
        self.key_norm = key_norm
        self.joint_norms = joint_norms
        side = "cross_" if over == "source" else ""
        outputs = {"query": core.heads, "key": core.key_heads, "value": core.key_heads}
        for name, heads in outputs.items():
            self.add_module(name, Linear(width, heads * head_size, bias, tag=side + name))
        last = bias if output_bias is None else output_bias
        self.output = Linear(core.heads * head_size, width, last, tag=side + "attention_out")

    query: Linear
    key: Linear
    value: Linear

    def clipped(self, x: Tensor) -> Tensor:
        """Clip projected queries, keys or values, of any shape."""
        return x.clamp(-self.clip, self.clip) if self.clip else x

    def split(self, x: Tensor) -> Tensor:
        """Split projected activations into heads: (B, T, N x H) -> (B, N, T, H)."""
        return unflatten(x, 2, (-1, self.head_size)).transpose(1, 2)

    def queries(self, x: Tensor, places: Tensor | None) -> Tensor:
        """Projected queries (B, T, N x H) at positions (T,) or (B, T) -> (B, N, T, H), after norm and rotation."""
        return self._placed(x, self.query_norm, places)

    def keys(self, x: Tensor, places: Tensor | None) -> Tensor:
        """Projected keys (B, T, G x H) -> (B, G, T, H), after norm and rotation, as they are cached."""
        return self._placed(x, self.key_norm, places)

    def values(self, x: Tensor) -> Tensor:
        """Projected values (B, T, G x H) -> (B, G, T, H), as they are cached."""
        return self.split(self.clipped(x))

    def _placed(self, x: Tensor, norm: nn.Module | None, places: Tensor | None) -> Tensor:
        x = self.clipped(x)
        if norm is not None and self.joint_norms:
            return self.turned(self.split(norm(x)), places)
        heads = self.split(x)
        return self.turned(heads if norm is None else norm(heads), places)

    def turned(self, heads: Tensor, places: Tensor | None) -> Tensor:
        """Apply the rotary position embedding, if there is one, to heads (B, N, T, H)."""
        return heads if self.rotary is None or places is None else self.rotary(heads, places)

    def normalised(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Apply a norm, if there is one, to the heads of projected queries or keys: (..., N x H) -> (..., N x H)."""
        if norm is None:
            return x
        if self.joint_norms:
            return cast(Tensor, norm(x))
        heads: Tensor = norm(unflatten(x, -1, (-1, self.head_size)))
        return heads.flatten(-2)

    @property
    def uses_distances(self) -> bool:
        """True if the attention uses relative positions: its `forward` needs `distances`."""
        core = self.core
        return isinstance(core, DotProduct) and any(
            (core.bias, core.relative_keys, core.relative_values, core.disentangled)
        )

    @property
    def reads_keys(self) -> bool:
        """True if the position bias reads the positions of keys in place of relative ones."""
        return bool(getattr(getattr(self.core, "bias", None), "reads_keys", False))

    def distances(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Return what the position bias reads for positions of keys and of queries, of dims that broadcast."""
        return keys - queries * 0 if self.reads_keys else keys - queries

    def forward(self, x: Tensor, ops: Ops, layer: int) -> Tensor:
        """(..., D) -> (..., D)."""
        return cast(Tensor, self.output(ops.attend(self, x, layer)))
