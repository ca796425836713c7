"""A model for tests, of any of the parts that there are, and faults to plant into the module that is traced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from txport.checkpoints.checkpoint import Checkpoint
from txport.models.config import Config, choice, real, size
from txport.models.facts import CrossAttention, Facts, Tokens, by_layer, key_values
from txport.models.model import Side
from txport.models.ops import Ops
from txport.models.parts import (
    ACTIVATIONS,
    NORMS,
    Additive,
    Attention,
    DotProduct,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Layer,
    RelativeBias,
    RelativeVectors,
    Residual,
    Rotary,
    SoftCap,
    UnbiasedNorm,
    unflatten,
)
from txport.models.stacks import EncoderDecoder

WIDTH, HEADS, HEAD, INNER, LONGEST, VOCABULARY = 16, 4, 16, 20, 24, 30
BUCKETS, FARTHEST, CLIP, CAP = 8, 16, 3, 2.0
Plant = Callable[[EncoderDecoder], None]


@dataclass(frozen=True, kw_only=True)
class AnyConfig(Config):
    norm: str = choice("rms", "unbiased", "layer")
    positions: str = choice("rotary", "neighbours", "bias", "vectors", "learned")
    additive: bool = False
    gated: bool = False
    shared: bool = False  # the layers of the encoder are one
    key_heads: int = size(HEADS)
    capped: bool = False
    result_norm: bool = False
    sinks: bool = False
    limit: float = real(0.0)


def layers_of(config: AnyConfig) -> int:
    """Layers on either side: one, and a second where layers are shared, or faults may be told of the wrong layer."""
    return 2 if config.shared or config.capped or config.result_norm or config.key_heads < HEADS else 1


def facts(config: AnyConfig) -> Facts:
    tokens = Tokens(size=VOCABULARY, longest=LONGEST, pad=0, start=1, ends=(2,))
    layers = layers_of(config)
    state = by_layer(key_values(layers, "row", config.key_heads, HEAD), key_values(layers, "source", HEADS, HEAD))
    return Facts(
        task="seq2seq",
        width=WIDTH,
        source=tokens,
        target=tokens,
        state=state,
        attention=CrossAttention(layers - 1, HEADS),
    )


def rotary(config: AnyConfig, base: float = 1e4) -> Rotary:
    speeds = base ** (-np.arange(HEAD // 2) / (HEAD // 2))
    return Rotary(speeds, LONGEST, "interleaved" if config.positions == "neighbours" else "halves")


def core_of(config: AnyConfig, side: Side) -> DotProduct | Additive:
    if config.additive:
        return Additive(HEADS, HEAD)
    added: dict[str, Any] = {"cap": SoftCap(CAP)} if config.capped else {}
    if config.positions == "bias":
        added["bias"] = RelativeBias(HEADS, BUCKETS, FARTHEST, LONGEST, both_ways=side == "encoder")
    if config.positions == "vectors":
        added = {name: RelativeVectors(HEAD, CLIP) for name in ("relative_keys", "relative_values")}
    return DotProduct(HEADS, config.key_heads, HEAD**-0.5, sinks=config.sinks, **added)


def layer_of(config: AnyConfig, side: Side) -> Layer:
    turned = rotary(config) if config.positions in ("rotary", "neighbours") else None
    own = Attention(WIDTH, core_of(config, side), HEAD, rotary=turned)
    kind = partial(GatedFeedForward, limit=config.limit) if config.gated else FeedForward
    feed_forward = kind(WIDTH, INNER, "silu")
    norm = partial(NORMS[config.norm], WIDTH, 1e-5)
    residual = lambda: Residual(norm(), first=True, result_norm=norm() if config.result_norm else None)  # noqa: E731
    return Layer(own, feed_forward, residual, _cross(side))


def _cross(side: Side) -> Attention | None:
    core = DotProduct(HEADS, HEADS, HEAD**-0.5)
    return Attention(WIDTH, core, HEAD, over="source") if side == "decoder" else None


def build(config: AnyConfig) -> EncoderDecoder:
    one = layer_of(config, "encoder")
    positions = "learned" if config.positions == "learned" else None
    return EncoderDecoder(
        config,
        facts(config),
        embedding=lambda vocabulary: Embedding(
            vocabulary, WIDTH, scale=WIDTH**0.5, positions=positions, longest=LONGEST, offset=2 if positions else 0
        ),
        layer=lambda side: one if config.shared and side == "encoder" else layer_of(config, side),
        final_norm=lambda: NORMS[config.norm](WIDTH, 1e-5),
        layers=(layers_of(config), layers_of(config)),
        tied="all",
    )


def checkpoint_of(seed: int = 0, **changes: Any) -> Checkpoint:
    """Random weights with biases and norms that count."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = build(AnyConfig(**changes)).eval()
        for parameter in model.parameters():
            start = 0.0 if parameter.dim() > 1 else 1.0
            parameter.copy_(start + 0.5 * torch.randn(parameter.shape))
    return Checkpoint("any", model, "0" * 64)


def faulty(checkpoint: Checkpoint, plant: Plant) -> Checkpoint:
    """The same checkpoint for whoever asks, with another model to be traced."""
    model: Any = copy.deepcopy(checkpoint.model)
    plant(model)
    return Checkpoint(checkpoint.name, model.eval(), checkpoint.sha256)


ARCHITECTURE = SimpleNamespace(hugging_face=lambda config: {"model_type": "any"})


# --- faults -----------------------------------------------------------------------------------------------------


def part(path: str, **changes: Any) -> Plant:
    """Set attributes of a part."""

    def plant(model: EncoderDecoder) -> None:
        for name, value in changes.items():
            setattr(model.get_submodule(path), name, value)

    return plant


def of_class(path: str, kind: type[nn.Module], *more: str) -> Plant:
    """Let parts compute otherwise, with what they have."""

    def plant(model: EncoderDecoder) -> None:
        for each in (path, *more):
            model.get_submodule(each).__class__ = kind  # type: ignore[assignment]

    return plant


def norm(path: str, kind: str) -> Plant:
    """Another norm of the same weight and, where both have one, bias."""

    def plant(model: EncoderDecoder) -> None:
        owner, _, name = path.rpartition(".")
        old = model.get_submodule(path)
        new = NORMS[kind](WIDTH, 1e-5)
        new.weight = old.weight
        if getattr(new, "bias", None) is not None and getattr(old, "bias", None) is not None:
            new.bias = old.bias
        setattr(model.get_submodule(owner), name, new)

    return plant


def turned(path: str, positions: str = "rotary", base: float = 1e4) -> Plant:
    return lambda model: part(path, rotary=rotary(AnyConfig(positions=positions), base))(model)


def exchanged(path: str) -> Plant:
    def plant(model: EncoderDecoder) -> None:
        feed_forward: Any = model.get_submodule(path)
        feed_forward.gate, feed_forward.inner = feed_forward.inner, feed_forward.gate

    return plant


def times(name: str, factor: float) -> Plant:
    def plant(model: EncoderDecoder) -> None:
        with torch.no_grad():
            model.get_parameter(name).mul_(factor)

    return plant


def buckets(path: str, change: Callable[[Tensor], Tensor]) -> Plant:
    def plant(model: EncoderDecoder) -> None:
        bias: Any = model.get_submodule(path)
        bias.bucket = change(bias.bucket)

    return plant


class Biased(UnbiasedNorm):
    """As many write it who look up no formula: epsilon is beside the root of the biased variance."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred * centred).sum(-1, keepdim=True) * (1 / self.size)
        return centred / (variance.sqrt() + self.eps) * self.weight + self.bias


class PlainQueries(Attention):
    def queries(self, x: Tensor, places: Tensor | None) -> Tensor:
        return self.split(x)


class PlainKeys(Attention):
    def keys(self, x: Tensor, places: Tensor | None) -> Tensor:
        return self.split(x)


class LateKeys(Attention):
    def keys(self, x: Tensor, places: Tensor | None) -> Tensor:
        assert places is not None
        return super().keys(x, places + 1)


class InterleavedHeads(Attention):
    def split(self, x: Tensor) -> Tensor:
        return unflatten(x, 2, (self.head_size, -1)).transpose(2, 3).transpose(1, 2)


class Crossed(GatedFeedForward):
    def forward(self, x: Tensor, ops: Ops) -> Any:
        gate, inner = ops.together(x, self.gate, self.inner)
        return self.outer(ACTIVATIONS[self.activation](inner) * gate)


class Ungated(GatedFeedForward):
    def forward(self, x: Tensor, ops: Ops) -> Any:
        return self.outer(ops.together(x, self.gate, self.inner)[1])


class AddedGate(GatedFeedForward):
    def forward(self, x: Tensor, ops: Ops) -> Any:
        gate, inner = ops.together(x, self.gate, self.inner)
        return self.outer(ACTIVATIONS[self.activation](gate) + inner)


class GateAlone(GatedFeedForward):
    def forward(self, x: Tensor, ops: Ops) -> Any:
        return self.outer(ACTIVATIONS[self.activation](ops.together(x, self.gate, self.inner)[0]))


class InTurn(DotProduct):
    def grouped(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ torch.cat([y, y], 1)


class Halved(Residual):
    def after(self, x: Tensor, result: Tensor) -> Tensor:
        return super().after(0.5 * x, result)


class Backwards(RelativeBias):
    def forward(self, distances: Tensor) -> Tensor:
        return super().forward(0 * distances - distances)


class Clipped(RelativeVectors):
    def forward(self, distances: Tensor) -> Tensor:
        return super().forward(distances.clamp(-CLIP + 1, CLIP - 1))


class Late(RelativeVectors):
    def forward(self, distances: Tensor) -> Tensor:
        return super().forward(distances + 1)
