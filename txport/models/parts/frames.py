"""The input layer of an encoder that reads frames of features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from txport.models.parts.linear import ACTIVATIONS

if TYPE_CHECKING:
    from txport.models.ops import Ops

KERNEL = 3


class Frames(nn.Module):
    """Two 1-D convolutions, each with an activation, the second with stride 2; plus learned positions."""

    def __init__(self, size: int, width: int, places: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.first = nn.Conv1d(size, width, KERNEL, padding=1)
        self.second = nn.Conv1d(width, width, KERNEL, stride=2, padding=1)
        self.positions = nn.Parameter(torch.empty(places, width))

    def forward(self, frames: Tensor, ops: Ops) -> Tensor:
        """Features (B, M, F) -> activations (..., D) of F / 2 positions."""
        activate = ACTIVATIONS[self.activation]
        x = activate(self.second(activate(self.first(frames))))  # (B, D, F / 2)
        return ops.lay_out(x.transpose(1, 2) + self.positions)
