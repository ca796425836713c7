"""An architecture with parts of its own: a position bias, a mixture of experts, a gate, a norm and a layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.architecture import Architecture
from txport.models.config import Config, choice, layers, size
from txport.models.facts import Facts, Tokens
from txport.models.ops import Ops
from txport.models.parts import Attention, DotProduct, Embedding, FeedForward, Layer, Residual
from txport.models.stacks import DecoderOnly, causal_facts

KINDS = ("alibi", "experts", "gate", "plain", "scale_norm", "parallel")


@dataclass(frozen=True, kw_only=True)
class MineConfig(Config):
    """The sizes, and which part is of its own."""

    kind: str = choice(*KINDS)
    vocab_size: int = size(64)
    d_model: int = size(32)
    heads: int = size(4)
    decoder_layers: int = layers(2)
    max_length: int = size(64, least=2)

    def problems(self) -> Iterator[str]:
        if self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}"


class Alibi(nn.Module):
    """A position bias from a buffer: each head has a slope (Press et al. 2022)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / heads) for head in range(heads)])
        self.register_buffer("slopes", slopes[:, None, None], persistent=False)

    slopes: Tensor

    def forward(self, distances: Tensor) -> Tensor:
        return -distances.abs()[..., None, :, :] * self.slopes


class Experts(nn.Module):
    """A mixture of experts: a plain linear layer, softmax, top-k and a comparison choose them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, 2 * width, "relu") for _ in range(4))

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        shares = torch.softmax(self.router(x), -1)
        best = torch.topk(shares, 2).values
        kept = shares * (shares >= best[..., -1:])
        kept = kept / kept.sum(-1, keepdim=True)
        found = [kept[..., at : at + 1] * expert(x, ops) for at, expert in enumerate(self.experts)]
        return torch.stack(found).sum(0)


class Gate(FeedForward):
    """A feed-forward with a parameter and a sigmoid."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 2 * width, "relu")
        self.gamma = nn.Parameter(torch.linspace(0.5, 2, 2 * width))

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        inner = self.inner(x)
        gated: Tensor = self.outer(inner * torch.sigmoid(inner * (1 + self.gamma)))
        return gated


class Plain(nn.Sequential):
    """PyTorch's own modules."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, ops: Ops) -> Tensor:
        found: Tensor = super().forward(x)
        return found


class ScaleNorm(nn.Module):
    """One learned length of all vectors (Nguyen and Salazar 2019)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.length = nn.Parameter(torch.tensor(width**0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.length * x / x.norm(dim=-1, keepdim=True).clamp(min=1e-5)


class Parallel(nn.Module):
    """A layer whose attention and feed-forward read the same values."""

    def __init__(self, attention: Attention, feed_forward: FeedForward, norm: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.norm = norm

    def forward(self, x: Tensor, ops: Ops, number: int) -> Tensor:
        read = self.norm(x)
        found: Tensor = x + self.attention(read, ops, number) + self.feed_forward(read, ops)
        return found


def _layer(config: MineConfig) -> nn.Module:
    width = config.d_model
    head_size = width // config.heads
    bias: Any = Alibi(config.heads) if config.kind == "alibi" else None
    attention = Attention(width, DotProduct(config.heads, config.heads, head_size**-0.5, bias=bias), head_size)
    inner: Any = {"experts": Experts, "gate": Gate, "plain": Plain}.get(config.kind)
    feed_forward = inner(width) if inner else FeedForward(width, 2 * width, "gelu")
    if config.kind == "parallel":
        return Parallel(attention, feed_forward, nn.LayerNorm(width))
    norm = ScaleNorm if config.kind == "scale_norm" else nn.LayerNorm
    return Layer(attention, feed_forward, lambda: Residual(norm(width), first=True))


class MineModel(DecoderOnly):
    """The whole model."""

    def __init__(self, config: MineConfig) -> None:
        positions = None if config.kind == "alibi" else "learned"
        width = config.d_model
        layer: Any = partial(_layer, config)
        embedding = Embedding(config.vocab_size, width, positions=positions, longest=config.max_length)
        super().__init__(
            config,
            facts(config),
            embedding=embedding,
            layer=layer,
            layers=config.decoder_layers,
            final_norm=nn.LayerNorm(width),
            tied=True,
        )


def facts(config: MineConfig) -> Facts:
    return causal_facts(
        width=config.d_model,
        target=Tokens(size=config.vocab_size, longest=config.max_length, pad=2, ends=(2,)),
        layers=config.decoder_layers,
        key_heads=config.heads,
        head_size=config.d_model // config.heads,
    )


def draw(rng: np.random.Generator) -> MineConfig:
    return MineConfig(kind=str(rng.choice(KINDS)))


ARCHITECTURE = Architecture(
    config=MineConfig,
    build=MineModel,
    presets={f"mine-{kind.replace('_', '-')}-tiny": MineConfig(kind=kind) for kind in KINDS},
    hugging_face=lambda config: {},
    draw=draw,
)
