"""Norms of activations: (..., D) -> (..., D)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HALVES = (torch.float16, torch.bfloat16)


class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019): weight * x / sqrt(mean(x^2) + eps)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class UnbiasedNorm(nn.Module):
    """The norm of The Annotated Transformer: weight * (x - mean) / (std + eps) + bias, with the unbiased std."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.size = size
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)."""
        wide = x.to(torch.float32) if x.dtype in HALVES else x  # float16: squares overflow; bfloat16: inexact sums
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
