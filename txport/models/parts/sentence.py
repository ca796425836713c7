"""The vector of a text, from the vectors of its tokens: a pooling, then linear layers and norms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from txport.models.parts.linear import ACTIVATIONS, Linear
from txport.models.parts.norms import HALVES
from txport.models.sentence import IDENTITY, LAYER_NORM, NORMALIZE, dense_of, widths

if TYPE_CHECKING:
    from txport.models.ops import Ops

TINY = 1e-12  # least length by which a vector is divided, as in PyTorch
EPSILON = 1e-5  # of the layer norm, as in sentence-transformers


class Sentence(nn.Module):
    """The steps of `models.sentence`. `layers` are those with weights, in order."""

    def __init__(self, width: int, steps: Sequence[str]) -> None:
        super().__init__()
        self.steps = tuple(steps)
        self.layers = nn.ModuleList()
        for size, step in zip([width, *widths(width, steps)], steps, strict=False):
            if dense := dense_of(step):
                self.layers.append(Linear(size, dense.size, dense.bias, tag="dense"))
            elif step == LAYER_NORM:
                self.layers.append(nn.LayerNorm(size, eps=EPSILON))

    def forward(self, states: Tensor, ops: Ops) -> Tensor:
        """(..., D) -> (B, E). Sums are in float32 if the states are halves, whose range ends at 65504 in float16."""
        x = POOLINGS[self.steps[0]](_wide(states), ops).to(states.dtype)
        layers = iter(self.layers)
        for step in self.steps[1:]:
            if step == NORMALIZE:
                x = normalized(x)
                continue
            x = next(layers)(x)
            if (dense := dense_of(step)) and dense.activation != IDENTITY:
                x = ACTIVATIONS[dense.activation](x)
        return x


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float32) if x.dtype in HALVES else x


def normalized(x: Tensor) -> Tensor:
    """Scale vectors (B, E) to length 1."""
    wide = _wide(x)
    return (wide / (wide * wide).sum(-1, keepdim=True).sqrt().clamp(min=TINY)).to(x.dtype)


def _largest(x: Tensor, ops: Ops) -> Tensor:
    return ops.whole(x).masked_fill(~ops.seen()[:, :, None], torch.finfo(x.dtype).min).amax(1)


def _weighted_mean(x: Tensor, ops: Ops) -> Tensor:
    """Weigh the first token of a text with 1, the second one with 2, and so on."""
    seen = ops.seen().to(x.dtype)
    weights = (seen.cumsum(1) * seen)[:, :, None]  # (B, T, 1)
    return (ops.whole(x) * weights).sum(1) / weights.sum(1)


POOLINGS: dict[str, Callable[[Tensor, Ops], Tensor]] = {
    "mean": lambda x, ops: ops.mean(x),
    "first": lambda x, ops: ops.whole(x)[:, 0],
    "last": lambda x, ops: ops.last_token(x, ops.seen()),
    "max": _largest,
    "weighted-mean": _weighted_mean,
}
