"""Layers: sublayers with norm and residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from txport.models.parts.attention import Attention
from txport.models.parts.experts import Experts
from txport.models.parts.linear import FeedForward, GatedFeedForward

if TYPE_CHECKING:
    from txport.models.ops import Ops


class Residual(nn.Module):
    """The norm, dropout and residual around a sublayer: pre-norm if `first` is True, otherwise post-norm.

    `result_norm` normalises the sublayer's output before it is added, and `scale` multiplies it.
    """

    def __init__(
        self,
        norm: nn.Module,
        *,
        first: bool,
        dropout: float = 0.0,
        result_norm: nn.Module | None = None,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.first = first
        self.norm = norm
        self.result_norm = result_norm
        self.scale = scale
        self.dropout = nn.Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the sublayer."""
        return self.norm(x) if self.first else x

    def after(self, x: Tensor, result: Tensor) -> Tensor:
        """Return `x` plus the sublayer's output `result`, normalised if post-norm: the input of the next sublayer."""
        if self.result_norm is not None:
            result = self.result_norm(result)
        if self.scale != 1:
            result = result * self.scale
        x = x + self.dropout(result)
        return x if self.first else self.norm(x)


class Layer(nn.Module):
    """One layer: self-attention, optional cross-attention, then feed-forward.

    `residual` creates the norm and residual around each sublayer. With `parallel`, attention and feed-forward read the
    same input, side by side; their residuals may share a norm.
    """

    cross_attention: Attention | None
    cross_attention_residual: Residual

    def __init__(
        self,
        attention: Attention,
        feed_forward: FeedForward | GatedFeedForward | Experts,
        residual: Callable[[], Residual],
        cross_attention: Attention | None = None,
        *,
        parallel: bool = False,
    ) -> None:
        super().__init__()
        self.parallel = parallel
        self.attention = attention
        self.attention_residual = residual()
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    @property
    def sublayers(self) -> tuple[tuple[nn.Module, Residual], ...]:
        """The sublayers with the residuals around them, in the order in which they run."""
        own = (self.attention, self.attention_residual)
        last = (self.feed_forward, self.feed_forward_residual)
        if self.cross_attention is None:
            return (own, last)
        return (own, (self.cross_attention, self.cross_attention_residual), last)

    def forward(self, x: Tensor, ops: Ops, number: int) -> Tensor:
        """Run as layer `number` of its stack: (..., D) -> (..., D)."""
        given = self.attention_residual.before(x)
        result, x = (ops.wanted(each, number) for each in (self.attention(given, ops, number), x))
        attended = self.attention_residual.after(x, result)
        if self.parallel:
            is_shared = self.feed_forward_residual.norm is self.attention_residual.norm
            own = ops.wanted(given, number) if is_shared else self.feed_forward_residual.before(x)
            return self.feed_forward_residual.after(attended, self.feed_forward(own, ops))
        x = attended
        if self.cross_attention is not None:
            around = self.cross_attention_residual
            x = around.after(x, self.cross_attention(around.before(x), ops, number))
        return self.feed_forward_residual.after(x, self.feed_forward(self.feed_forward_residual.before(x), ops))
