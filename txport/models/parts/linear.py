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
    "tanh": torch.tanh,
}


class SoftCap(nn.Module):
    """Gemma Team 2024 (Gemma 2): numbers that come near a limit, and never exceed it."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """Of any shape."""
        return torch.tanh(x / self.limit) * self.limit


class Linear(nn.Linear):
    """A linear map, and what it is for: quantisation and proof go by this tag, never by a name."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, tag: str) -> None:
        super().__init__(inputs, outputs, bias)
        self.tag = tag


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
