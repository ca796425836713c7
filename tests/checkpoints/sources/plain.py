"""What Transformers of all trainers are made of, in float64, and how what was loaded is held against it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from txport.checkpoints.checkpoint import config_of, load_checkpoint
from txport.errors import CheckpointError, ConfigError
from txport.models.model import Model

Linear = Callable[[Tensor], Tensor]
Logits = Callable[[Tensor, Tensor], Tensor]  # source (B, S), target (B, T) -> (B, T, V)


def rounded(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Weights that are the same in fp16 and bfloat16."""
    return (rng.integers(-64, 65, shape) / 128).astype(np.float32)


class Drawn:
    """Weights by name (`found`), which are drawn one after the other."""

    def __init__(self) -> None:
        self.found: dict[str, Tensor] = {}
        self._rng = np.random.default_rng(0)

    def add(self, name: str, *shape: int, one: float = 0.0) -> None:
        self.found[name] = torch.from_numpy(rounded(self._rng, *shape)) + one

    def linear(self, name: str, outputs: int, inputs: int, *, bias: bool = True) -> None:
        self.add(f"{name}.weight", outputs, inputs)
        if bias:
            self.add(f"{name}.bias", outputs)

    def norm(self, name: str, names: tuple[str, str] = ("weight", "bias")) -> None:
        self.add(f"{name}.{names[0]}", 16, one=1.0)
        self.add(f"{name}.{names[1]}", 16)


def attention(query: Tensor, key: Tensor, value: Tensor, heads: int, *, is_causal: bool = False) -> Tensor:
    """(B, T, D) over (B, S, D) -> (B, T, D)."""
    split = [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (query, key, value)]
    scores = split[0] @ split[1].transpose(2, 3) / math.sqrt(split[0].shape[-1])
    if is_causal:
        scores = scores + torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype).triu(1)
    return (scores.softmax(-1) @ split[2]).transpose(1, 2).flatten(2)


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)


def tensor2tensor(length: int, size: int, start: int = 0) -> Tensor:
    """Its sinusoids, of so many positions from `start` on."""
    half = size // 2
    frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * -(math.log(10000.0) / (half - 1)))
    angles = torch.arange(start, start + length, dtype=torch.float64)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def interleaved(length: int, size: int) -> Tensor:
    angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, size, 2) * -(math.log(10000.0) / size)).double()
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def loaded(folder: Path) -> Model:
    return load_checkpoint(str(folder)).model.double()


@torch.no_grad()
def check_logits(
    folder: Path, expected: Logits, *, vocabulary: int, cut: int = 0, lengths: tuple[int, int] = (7, 6)
) -> None:
    """The same logits, and the same tokens greedily; of those found, the last `cut` are tokens that nobody writes."""
    model = loaded(folder)
    rng = np.random.default_rng(1)
    source, target = (torch.from_numpy(rng.integers(3, vocabulary, (3, each))) for each in (7, 6))
    start = model.facts.writes.start
    assert start is not None
    target[:, 0] = start
    whole = torch.tensor([source.shape[1]] * 3)
    found = model(source, whole, target)
    wanted = expected(source, target)
    torch.testing.assert_close(found[..., : found.shape[-1] - cut], wanted, rtol=0, atol=1e-5)
    ours = _greedy(lambda tokens: model(source, whole, tokens), target[:, :1])
    theirs = _greedy(lambda tokens: expected(source, tokens), target[:, :1])
    assert ours.tolist() == theirs.tolist()


def _greedy(logits: Callable[[Tensor], Tensor], tokens: Tensor) -> Tensor:
    for _ in range(8):
        tokens = torch.cat([tokens, logits(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens


DAMAGES = ("missing", "extra", "cut", "empty", "nan", "integers")


def damage(weights: Mapping[str, Any], rng: np.random.Generator, kind: str | None = None) -> tuple[str, dict[str, Any]]:
    """NumPy arrays or tensors with one of them damaged, in a way that is drawn or given, and what was done."""
    found = dict(weights)
    kind = kind or str(rng.choice(DAMAGES))
    name = str(rng.choice(sorted(name for name, each in found.items() if each.ndim)))
    whole = found[name]
    if kind == "missing":
        del found[name]
    elif kind == "extra":
        found[f"{name}.more"] = whole
    elif kind == "cut":
        found[name] = whole[:-1]
    elif kind == "empty":
        found[name] = whole[..., :0]
    elif kind == "nan":
        found[name] = whole * float("nan")
    else:
        found[name] = whole.astype(np.int32) if isinstance(whole, np.ndarray) else whole.int()
    return f"{kind} {name}", found


def check_refused(folder: Path) -> str:
    """A folder that was damaged is refused in one line, which names what is wrong."""
    message = ""
    try:
        load_checkpoint(str(folder))
    except (CheckpointError, ConfigError) as error:
        message = str(error)
    assert "\n" not in message
    assert str(folder) in message
    return message


def check_wrong_values(options: Mapping[str, Any], wrong: Sequence[Any], save: Callable[[Any], Path]) -> None:
    """Each option with each wrong value is refused in one line, or read."""
    refused = []
    for name, value in itertools.product(options, wrong):
        try:
            config_of(save({**options, name: value}))
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > len(options) * len(wrong) / 3
    assert not any("\n" in each for each in refused)


def residual(x: Tensor, norm: Linear, sublayer: Linear, *, first: bool) -> Tensor:
    """A sublayer with its norm, before it or behind its residual."""
    return x + sublayer(norm(x)) if first else norm(x + sublayer(x))


class Named:
    """Weights by name in float64, and what is done with them."""

    def __init__(self, weights: Mapping[str, Tensor], heads: int, epsilon: float, *, first: bool) -> None:
        self.weights = {name: each.double() for name, each in weights.items()}
        self.heads = heads
        self.epsilon = epsilon
        self.first = first

    def linear(self, name: str) -> Linear:
        return lambda x: F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str) -> Linear:
        return lambda x: norm(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"), self.epsilon)

    def attend(self, names: tuple[str, str, str, str], over: Tensor | None, *, is_causal: bool = False) -> Linear:
        """Of the maps of queries, keys, values, and what comes out."""
        query, key, value, out = (self.linear(name) for name in names)

        def sublayer(x: Tensor) -> Tensor:
            keys = x if over is None else over
            return out(attention(query(x), key(keys), value(keys), self.heads, is_causal=is_causal))

        return sublayer

    def add(self, x: Tensor, norm: str, sublayer: Linear) -> Tensor:
        return residual(x, self.norm(norm), sublayer, first=self.first)

    def feed_forward(self, inner: str, outer: str, activation: Linear) -> Linear:
        return lambda x: self.linear(outer)(activation(self.linear(inner)(x)))
