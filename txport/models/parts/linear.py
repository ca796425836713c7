"""Tagged linear layers, and feed-forward blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from txport.models.ops import Ops

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "quick_gelu": lambda x: x * torch.sigmoid(x * 1.702),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu2": lambda x: F.relu(x).square(),
}


class SoftCap(nn.Module):
    """Soft cap (Gemma Team 2024, Gemma 2): limit x tanh(x / limit)."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """Apply the cap to each element of a tensor of any shape."""
        return torch.tanh(x / self.limit) * self.limit


class Linear(nn.Linear):
    """A linear layer with a `tag` that states its purpose: quantisation and proof use this tag, never a name."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, tag: str) -> None:
        super().__init__(inputs, outputs, bias)
        self.tag = tag


class FeedForward(nn.Module):
    """Feed-forward block: outer(activation(inner(x)))."""

    def __init__(self, width: int, inner: int, activation: str, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.inner = Linear(width, inner, bias, tag="ffn_in")
        self.outer = Linear(inner, width, bias, tag="ffn_out")

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        """(..., D) -> (..., D)."""
        return cast(Tensor, self.outer(ACTIVATIONS[self.activation](self.inner(x))))


class GatedFeedForward(nn.Module):
    """Gated feed-forward block (Shazeer 2020, GLU variants): outer(activation(gate(x)) * inner(x)).

    With a `limit` (gpt-oss, 2025), gate(x) is at most the limit, inner(x) is clipped to [-limit, limit], and 1 is added
    to it. 0: no limit.
    """

    def __init__(self, width: int, inner: int, activation: str, *, bias: bool = True, limit: float = 0.0) -> None:
        super().__init__()
        self.activation = activation
        self.limit = limit
        self.gate = Linear(width, inner, bias, tag="ffn_in")
        self.inner = Linear(width, inner, bias, tag="ffn_in")
        self.outer = Linear(inner, width, bias, tag="ffn_out")

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        """(..., D) -> (..., D)."""
        gate, inner = self.limited(*ops.together(x, self.gate, self.inner))
        return cast(Tensor, self.outer(ACTIVATIONS[self.activation](gate) * inner))

    def limited(self, gate: Tensor, inner: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the limit, if there is one, to the outputs (..., I) of the first linear layers."""
        if not self.limit:
            return gate, inner
        return gate.clamp(max=self.limit), inner.clamp(-self.limit, self.limit) + 1
