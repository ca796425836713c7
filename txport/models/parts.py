"""What Transformers are made of, each part written once: in PyTorch it is the reference, and a trace of it is a graph.

A part neither knows how the tokens of a run lie in memory nor what is cached: that is asked of `Ops` (models/ops.py).
Letters in shape comments: B batch, T new tokens, S tokens attended to, N heads, G key/value heads, H head size,
D model size. "..." are the dims of activations: (B, T), or all tokens of a batch in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from txport.models.facts import Owner

if TYPE_CHECKING:
    from txport.models.ops import Ops

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}
unflatten = cast(Callable[[Tensor, int, tuple[int, ...]], Tensor], torch.unflatten)  # which has no types
Pairing = Literal["halves", "interleaved"]
WAVES = (math.sin, math.cos)


class RMSNorm(nn.Module):
    """Zhang and Sennrich 2019: x over the root of its mean square, times a weight; neither mean nor bias."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class UnbiasedNorm(nn.Module):
    """The LayerNorm of The Annotated Transformer: over the unbiased standard deviation plus eps."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size, self.eps = size, eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        wide = x.to(torch.float32) if x.dtype == torch.float16 else x  # in 16 bits, squares overflow
        centred = wide - wide.mean(-1, keepdim=True)
        variance = (centred * centred).sum(-1, keepdim=True) * (1 / (self.size - 1))
        return (centred / (variance.sqrt() + self.eps)).to(x.dtype) * self.weight + self.bias


NORMS: dict[str, Callable[[int, float], nn.Module]] = {
    "layer": lambda size, eps: nn.LayerNorm(size, eps=eps),
    "layer without bias": lambda size, eps: nn.LayerNorm(size, eps=eps, bias=False),
    "rms": RMSNorm,
    "unbiased": UnbiasedNorm,
}
NORM_TYPES = (nn.LayerNorm, RMSNorm, UnbiasedNorm)


class Linear(nn.Linear):
    """A linear map, and what it is for: quantisation and proof go by this tag, never by a name."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, tag: str) -> None:
        super().__init__(inputs, outputs, bias)
        self.tag = tag


@cache
def sinusoids(length: int, size: int, layout: Pairing = "interleaved") -> Tensor:
    """Section 3.5 of Vaswani et al. 2017, sine and cosine in turn or in halves: -> (length, size).

    Not by PyTorch's kernels, which differ in the last bit from one instruction set to the next.
    """
    table = np.empty((length, size), np.float32)
    for place, row in enumerate(table):
        row[:] = [wave(place * 10000.0 ** (-even / size)) for even in range(0, size, 2) for wave in WAVES]
    if layout == "halves":
        table = np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)
    return torch.from_numpy(table)


def constant_table(shape: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
    """A table that follows from the config; where only shapes are wanted (the device "meta"), none is computed."""
    nothing = torch.empty(shape)
    return nothing if nothing.is_meta else make().clone()


class Embedding(nn.Module):
    """Tokens looked up, times `scale`, plus their positions where the model adds some, and normalised where it does.

    `positions` is "sinusoidal", "learned" or None; the position of the first token is `offset`. With a `segment`, each
    token gets one more vector, the same for all: of models that tell texts of a pair apart, that of the first text.
    """

    def __init__(
        self,
        size: int,
        width: int,
        *,
        scale: float = 1.0,
        positions: str | None = None,
        longest: int = 0,
        offset: int = 0,
        layout: Pairing = "interleaved",
        segment: bool = False,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.scale, self.offset = scale, offset
        self.tokens = nn.Embedding(size, width)
        shape = (longest + offset, width)
        if positions == "learned":
            self.positions: Tensor | None = nn.Parameter(torch.empty(shape))
        elif positions == "sinusoidal":
            table = constant_table(shape, lambda: sinusoids(*shape, layout))
            self.register_buffer("positions", table, persistent=False)
        else:
            self.positions = None
        self.segment = nn.Parameter(torch.empty(width)) if segment else None
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, ops: Ops) -> Tensor:
        """Token ids (B, T) -> (..., D)."""
        x = self.tokens(ops.lay_out(ids))
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            x = ops.add_positions(x, self.positions, self.offset)
        if self.segment is not None:
            x = x + self.segment
        return cast(Tensor, self.dropout(x if self.norm is None else self.norm(x)))


class Rotary(nn.Module):
    """Su et al. 2021: pairs of a head's numbers turned by an angle that grows with the position.

    `frequencies` (H / 2,) are radians a position; a pair is a number and the one half a head further ("halves"), or its
    neighbour ("interleaved"). `scale` multiplies what is turned, as YaRN does.
    """

    def __init__(
        self, frequencies: NDArray[np.float64], longest: int, pairing: Pairing = "halves", scale: float = 1.0
    ) -> None:
        super().__init__()
        self.pairing, self.scale, self.size = pairing, scale, 2 * len(frequencies)
        shape = (longest, len(frequencies))
        for name, wave in (("cos", np.cos), ("sin", np.sin)):
            table = constant_table(shape, lambda wave=wave: waves(frequencies, longest, wave, scale))  # type: ignore[misc]
            self.register_buffer(name, table, persistent=False)

    cos: Tensor
    sin: Tensor

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Heads (B, N, T, H) at positions (T,) or (B, T) -> (B, N, T, H)."""
        cos, sin = (F.embedding(places, table) for table in (self.cos, self.sin))
        if places.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]  # (B, 1, T, H / 2)
        if self.pairing == "halves":
            first, second = x.chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        pairs = unflatten(x, -1, (-1, 2))  # (B, N, T, H / 2, 2)
        first, second = (each.flatten(-2) for each in pairs.chunk(2, -1))
        turned = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat([each.unsqueeze(-1) for each in turned], -1).flatten(-2)


def waves(
    frequencies: NDArray[np.float64], longest: int, wave: Callable[[NDArray[Any]], NDArray[Any]], scale: float
) -> Tensor:
    """Sine or cosine of each angle (longest, H / 2); angles are rounded to fp32, as they were in training."""
    angles = np.arange(longest, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return torch.from_numpy((wave(angles.astype(np.float64)) * scale).astype(np.float32))


class RelativeBias(nn.Module):
    """Raffel et al. 2020 (T5): a learned number for each head and each bucket of distances, added to scores."""

    def __init__(self, heads: int, buckets: int, farthest: int, longest: int, *, both_ways: bool) -> None:
        super().__init__()
        self.longest, self.buckets, self.farthest, self.both_ways = longest, buckets, farthest, both_ways
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        shape = (2 * longest + 1,)
        table = constant_table(shape, lambda: bucket_table(buckets, farthest, longest, both_ways=both_ways))
        self.register_buffer("bucket", table.long(), persistent=False)

    bucket: Tensor

    def forward(self, distances: Tensor) -> Tensor:
        """How far each key lies behind each query (..., T, S), negative before it -> (..., N, T, S)."""
        found = F.embedding(torch.take(self.bucket, distances + self.longest), self.weight)
        return found.movedim(-1, -3)


def bucket_table(buckets: int, farthest: int, longest: int, *, both_ways: bool) -> Tensor:
    """The bucket of each distance from -longest to longest: the near ones have one each, the others share.

    Every step is rounded to fp32, as it was in training: at the edge of a bucket, the last bit decides.
    """
    distances = np.arange(-longest, longest + 1)
    base = np.zeros_like(distances)
    if both_ways:
        buckets //= 2
        base = np.where(distances > 0, buckets, 0)
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    own, single = buckets // 2, np.float32
    logarithms = np.log((np.maximum(far, 1) / own).astype(single).astype(np.float64)).astype(single)
    ratio = logarithms / single(math.log(farthest / own)) * single(buckets - own)
    shared = np.minimum(own + ratio.astype(np.int64), buckets - 1)
    return torch.from_numpy(base + np.where(far < own, far, shared))


class RelativeVectors(nn.Module):
    """Shaw et al. 2018: a learned vector for each distance up to `farthest`; beyond, that of the farthest."""

    def __init__(self, size: int, farthest: int) -> None:
        super().__init__()
        self.farthest = farthest
        self.weight = nn.Parameter(torch.empty(2 * farthest + 1, size))

    def forward(self, distances: Tensor) -> Tensor:
        """(..., T, S) -> (..., T, S, H)."""
        return F.embedding(distances.clamp(-self.farthest, self.farthest) + self.farthest, self.weight)


class DotProduct(nn.Module):
    """Scaled dot-product attention of N heads over G heads of keys and values, with what positions add to scores."""

    def __init__(
        self,
        heads: int,
        key_heads: int,
        scale: float,
        *,
        bias: RelativeBias | None = None,
        relative_keys: RelativeVectors | None = None,
        relative_values: RelativeVectors | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.scale = heads, key_heads, scale
        self.bias, self.relative_keys, self.relative_values = bias, relative_keys, relative_values

    @property
    def has_operator(self) -> bool:
        """Whether the fused attention operators compute it."""
        return self.relative_keys is None and self.relative_values is None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, N, T, H) over (B, G, S, H) -> (B, N, T, H), and the weight of each key (B, N, T, S).

        `mask` (..., T, S) is added to the scores; `distances` (..., T, S) are wanted where positions add something.
        """
        scores = self.grouped(query, key.transpose(2, 3)) * self.scale
        if self.bias is not None and distances is not None:
            scores = scores + self.bias(distances)
        if self.relative_keys is not None and distances is not None:
            vectors = _beside_heads(self.relative_keys(distances))  # (..., T, S, H)
            scores = scores + (vectors @ query[:, :, :, :, None]).flatten(3) * self.scale
        weights = torch.softmax(scores + mask, dim=-1)
        mixed = self.grouped(weights, value)
        if self.relative_values is not None and distances is not None:
            vectors = _beside_heads(self.relative_values(distances))
            mixed = mixed + (weights[:, :, :, None] @ vectors).flatten(3)
        return mixed, weights

    def grouped(self, x: Tensor, y: Tensor) -> Tensor:
        """The product of each of N heads (B, N, T, a) with its one of G heads (B, G, a, b) -> (B, N, T, b)."""
        if self.heads == self.key_heads:
            return x @ y
        groups = (self.key_heads, self.heads // self.key_heads)
        return (unflatten(x, 1, groups) @ y[:, :, None]).flatten(1, 2)


def _beside_heads(vectors: Tensor) -> Tensor:
    """Vectors (T, S, H) for all rows, or (B, T, S, H), so that they fit beside heads (B, N, T, 1, H)."""
    return vectors[:, None] if vectors.dim() == 4 else vectors


class Additive(nn.Module):
    """Bahdanau et al. 2015: scores v tanh(q + k) of projected queries and keys, for each head."""

    has_operator = False

    def __init__(self, heads: int, head_size: int) -> None:
        super().__init__()
        self.heads = self.key_heads = heads
        self.score = nn.Parameter(torch.empty(heads, 1, head_size, 1))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `DotProduct.forward`."""
        hidden = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, N, T, S, H)
        scores = (hidden @ self.score).flatten(3)
        weights = torch.softmax(scores + mask, dim=-1)
        return weights @ value, weights


class Attention(nn.Module):
    """Multi-head attention, its projections kept apart so that a cache can stand between them.

    `over` says what it attends to: the row's own tokens, or the source. Queries and keys are turned by `rotary`, and
    normalised before by a norm of each head's numbers where the model has one.
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
    ) -> None:
        super().__init__()
        self.over, self.head_size, self.core, self.rotary = over, head_size, core, rotary
        self.query_norm, self.key_norm = query_norm, key_norm
        side = "cross_" if over == "source" else ""
        outputs = {"query": core.heads, "key": core.key_heads, "value": core.key_heads}
        for name, heads in outputs.items():
            self.add_module(name, Linear(width, heads * head_size, bias, tag=side + name))
        last = bias if output_bias is None else output_bias
        self.output = Linear(core.heads * head_size, width, last, tag=side + "attention_out")

    query: Linear
    key: Linear
    value: Linear

    def split(self, x: Tensor) -> Tensor:
        """(B, T, N x H) -> (B, N, T, H)."""
        return unflatten(x, 2, (-1, self.head_size)).transpose(1, 2)

    def queries(self, x: Tensor, places: Tensor | None) -> Tensor:
        """Projected queries (B, T, N x H) at positions (T,) or (B, T) -> (B, N, T, H), as they meet keys."""
        return self._placed(self.split(x), self.query_norm, places)

    def keys(self, x: Tensor, places: Tensor | None) -> Tensor:
        """Projected keys (B, T, G x H) -> (B, G, T, H), as they are cached."""
        return self._placed(self.split(x), self.key_norm, places)

    def _placed(self, heads: Tensor, norm: nn.Module | None, places: Tensor | None) -> Tensor:
        return self.turned(heads if norm is None else norm(heads), places)

    def turned(self, heads: Tensor, places: Tensor | None) -> Tensor:
        """Heads (B, N, T, H) as rotary positions leave them, where there are some."""
        return heads if self.rotary is None or places is None else self.rotary(heads, places)

    def normalised(self, x: Tensor, norm: nn.Module) -> Tensor:
        """Projected queries or keys (..., N x H), each head's numbers by a norm -> (..., N x H)."""
        heads: Tensor = norm(unflatten(x, -1, (-1, self.head_size)))
        return heads.flatten(-2)

    @property
    def uses_distances(self) -> bool:
        """Whether its scores depend on how far keys lie from queries."""
        core = self.core
        return isinstance(core, DotProduct) and any((core.bias, core.relative_keys, core.relative_values))

    def forward(self, x: Tensor, ops: Ops, layer: int) -> Tensor:
        """(..., D) -> (..., D)."""
        return cast(Tensor, self.output(ops.attend(self, x, layer)))


class FeedForward(nn.Module):
    """Two position-wise linear maps with an activation between them."""

    def __init__(self, width: int, inner: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.inner = Linear(width, inner, bias, tag="ffn_in")
        self.outer = Linear(inner, width, bias, tag="ffn_out")

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        """(..., D) -> (..., D)."""
        return cast(Tensor, self.outer(ACTIVATIONS[self.activation](self.inner(x))))


class GatedFeedForward(nn.Module):
    """Shazeer 2020 (GLU variants): what one map gives, activated, times what another gives, then a third."""

    def __init__(self, width: int, inner: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.gate = Linear(width, inner, bias, tag="ffn_in")
        self.inner = Linear(width, inner, bias, tag="ffn_in")
        self.outer = Linear(inner, width, bias, tag="ffn_out")

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        """(..., D) -> (..., D)."""
        gate, inner = ops.together(x, self.gate, self.inner)
        return cast(Tensor, self.outer(ACTIVATIONS[self.activation](gate) * inner))


class Residual(nn.Module):
    """The norm, dropout and residual around a sublayer, norm first ("pre") or last ("post")."""

    def __init__(self, norm: nn.Module, *, first: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.norm = first, norm
        self.dropout = nn.Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer sees."""
        return self.norm(x) if self.first else x

    def after(self, x: Tensor, result: Tensor) -> Tensor:
        """What the next sublayer gets: the sublayer's input plus its result."""
        x = x + self.dropout(result)
        return x if self.first else self.norm(x)


class Layer(nn.Module):
    """One layer: attention over the row's own tokens, over the source where there is one, then feed-forward.

    `residual` makes the norm and residual around each of them.
    """

    cross_attention: Attention | None
    cross_attention_residual: Residual

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward | GatedFeedForward,
        residual: Callable[[], Residual],
        cross_attention: Attention | None = None,
    ) -> None:
        super().__init__()
        self.attention, self.attention_residual = attention, residual()
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_residual = residual()
        self.feed_forward, self.feed_forward_residual = feed_forward, residual()

    def forward(self, x: Tensor, ops: Ops, number: int) -> Tensor:
        """(..., D) -> (..., D), as layer `number` of its stack."""
        x = self.attention_residual.after(x, self.attention(self.attention_residual.before(x), ops, number))
        if self.cross_attention is not None:
            around = self.cross_attention_residual
            x = around.after(x, self.cross_attention(around.before(x), ops, number))
        return self.feed_forward_residual.after(x, self.feed_forward(self.feed_forward_residual.before(x), ops))
