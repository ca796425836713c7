"""Input embeddings of tokens, and the input layer of an encoder that reads frames of features."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from txport.models.parts.linear import ACTIVATIONS, Linear
from txport.models.parts.positions import Layout, constant_table, sinusoids

if TYPE_CHECKING:
    from txport.models.ops import Ops


class Embedding(nn.Module):
    """Token embeddings times `scale`, plus position embeddings, then an optional norm.

    `positions` is "sinusoidal" or "learned"; anything else means none. The first token has position `offset`. With
    `segment`, the embedding of token type 0 is added to each token. If `types`, the number of types, is not 0, that of
    the token's type is added: an id from `size` on is that of a token of type 1. `inner` is the size of the token
    embeddings if it is not `width`; a linear layer then projects them to `width`.
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
        layout: Layout = "interleaved",
        segment: bool = False,
        types: int = 0,
        inner: int | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.offset = offset
        self.tokens = nn.Embedding(size, inner or width)
        self.widen = Linear(inner, width, bias=False, tag="embedding_in") if inner else None
        shape = (longest + offset, width)
        if positions == "learned":
            self.positions: Tensor | None = nn.Parameter(torch.empty(shape))
        elif positions == "sinusoidal":
            table = constant_table(shape, lambda: sinusoids(*shape, layout))
            self.register_buffer("positions", table, persistent=False)
        else:
            self.positions = None
        self.segment = nn.Parameter(torch.empty(width)) if segment and not types else None
        self.segments = nn.Parameter(torch.empty(types, width)) if types else None
        self.norm = norm
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, ops: Ops) -> Tensor:
        """Token ids (B, T) -> embeddings (..., D)."""
        ids = ops.lay_out(ids)
        segment: Tensor | None = self.segment
        if self.segments is not None:
            size = self.tokens.num_embeddings
            is_second = ids >= size
            ids = torch.where(is_second, ids - size, ids)
            segment = torch.where(is_second[..., None], self.segments[1], self.segments[0])
        x = self.tokens(ids)
        if self.scale != 1:
            x = x * self.scale
        if self.widen is not None:
            x = self.widen(x)
        if self.positions is not None:
            x = ops.add_positions(x, self.positions, self.offset)
        if segment is not None:
            x = x + segment
        return cast(Tensor, self.dropout(x if self.norm is None else self.norm(x)))


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
        """Features (B, M, F) -> activations (..., D) of F / 2 positions, at most as many as the model has."""
        activate = ACTIVATIONS[self.activation]
        x = activate(self.second(activate(self.first(frames))))  # (B, D, F / 2)
        x = x.transpose(1, 2)
        places = self.positions if x.shape[1] == len(self.positions) else self.positions[: x.shape[1]]
        return ops.lay_out(x + places)
