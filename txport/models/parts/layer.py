"""Layers: sublayers with norm and residual."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor, nn

from txport.models.parts.attention import Attention
from txport.models.parts.linear import FeedForward, GatedFeedForward

if TYPE_CHECKING:
    from txport.models.ops import Ops


class Residual(nn.Module):
    """The norm, dropout and residual around a sublayer, norm first ("pre") or last ("post").

    With a `result_norm`, what the sublayer gives is normalised too, before it is added.
    """

    def __init__(
        self, norm: nn.Module, *, first: bool, dropout: float = 0.0, result_norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.first = first
        self.norm = norm
        self.result_norm = result_norm
        self.dropout = nn.Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the sublayer sees."""
        return self.norm(x) if self.first else x

    def after(self, x: Tensor, result: Tensor) -> Tensor:
        """What the next sublayer gets: the sublayer's input plus its result."""
        if self.result_norm is not None:
            result = self.result_norm(result)
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
        self.attention = attention
        self.attention_residual = residual()
        self.cross_attention = cross_attention
        if cross_attention is not None:
            self.cross_attention_residual = residual()
        self.feed_forward = feed_forward
        self.feed_forward_residual = residual()

    @property
    def sublayers(self) -> tuple[tuple[nn.Module, Residual], ...]:
        """Each sublayer with the residual around it, in the order in which they run."""
        own = (self.attention, self.attention_residual)
        last = (self.feed_forward, self.feed_forward_residual)
        if self.cross_attention is None:
            return (own, last)
        return (own, (self.cross_attention, self.cross_attention_residual), last)

    def forward(self, x: Tensor, ops: Ops, number: int) -> Tensor:
        """(..., D) -> (..., D), as layer `number` of its stack."""
        x = self.attention_residual.after(x, self.attention(self.attention_residual.before(x), ops, number))
        if self.cross_attention is not None:
            around = self.cross_attention_residual
            x = around.after(x, self.cross_attention(around.before(x), ops, number))
        return self.feed_forward_residual.after(x, self.feed_forward(self.feed_forward_residual.before(x), ops))
