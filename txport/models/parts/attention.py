"""Attention: scores, weights and mixed values of heads, and the projections around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from txport.models.facts import Owner
from txport.models.parts.linear import Linear, SoftCap
from txport.models.parts.positions import RelativeBias, RelativeVectors, Rotary, unflatten

if TYPE_CHECKING:
    from txport.models.ops import Ops


class DotProduct(nn.Module):
    """Scaled dot-product attention of N heads over G heads of keys and values, with what positions add to scores.

    A `cap` is for models whose positions add nothing.
    """

    def __init__(
        self,
        heads: int,
        key_heads: int,
        scale: float,
        *,
        bias: RelativeBias | None = None,
        relative_keys: RelativeVectors | None = None,
        relative_values: RelativeVectors | None = None,
        cap: SoftCap | None = None,
    ) -> None:
        super().__init__()
        assert cap is None or (bias is None and relative_keys is None)
        self.heads = heads
        self.key_heads = key_heads
        self.scale = scale
        self.bias = bias
        self.relative_keys = relative_keys
        self.relative_values = relative_values
        self.cap = cap

    @property
    def has_operator(self) -> bool:
        """Whether the fused attention operators compute it."""
        return self.relative_keys is None and self.relative_values is None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, N, T, H) over (B, G, S, H) -> (B, N, T, H), and the weight of each key (B, N, T, S).

        `mask` (..., T, S) is added to the scores, None where all is seen; `distances` (..., T, S) are wanted where
        positions add something.
        """
        scores = self.grouped(query, key.transpose(2, 3)) * self.scale
        if self.cap is not None:
            scores = self.cap(scores)
        if self.bias is not None and distances is not None:
            scores = scores + self.bias(distances)
        if self.relative_keys is not None and distances is not None:
            vectors = _beside_heads(self.relative_keys(distances))  # (..., T, S, H)
            scores = scores + (vectors @ query[:, :, :, :, None]).flatten(3) * self.scale
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
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


class Window(nn.Module):
    """Attention to so many of the last tokens alone, a query's own counted (Beltagy et al. 2020, "Longformer")."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, mask: Tensor, distances: Tensor) -> Tensor:
        """What is added to scores (..., T, S), that of a mask and of the window.

        `distances` (..., T, S) are how far each key lies behind each query, negative before it.
        """
        return mask + additive(distances > -self.size, mask.dtype)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where the mask is True, a large negative *finite* number elsewhere, to be added to scores."""
    return (~mask).to(dtype) * (torch.finfo(dtype).min / 2)


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
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, distances: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """See `DotProduct.forward`."""
        hidden = torch.tanh(query[:, :, :, None] + key[:, :, None])  # (B, N, T, S, H)
        scores = (hidden @ self.score).flatten(3)
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        return weights @ value, weights


class Attention(nn.Module):
    """Multi-head attention, its projections kept apart so that a cache can stand between them.

    `over` says what it attends to: the row's own tokens, of which a `window` may hide the earlier ones, or the source.
    Queries and keys are turned by `rotary`, and normalised before by a norm of each head's numbers where the model has
    one.
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
        window: Window | None = None,
    ) -> None:
        super().__init__()
        self.over = over
        self.head_size = head_size
        self.core = core
        self.rotary = rotary
        self.window = window
        self.query_norm = query_norm
        self.key_norm = key_norm
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

    def normalised(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """Projected queries or keys (..., N x H), each head's numbers by a norm, if there is one -> (..., N x H)."""
        if norm is None:
            return x
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
