"""The Annotated Transformer against modules written again from its description, by their own names."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from tests.runtimes.driven import ENGINES
from tests.seeded import bundle_of, check_steps
from txport import runtimes
from txport.checkpoints.checkpoint import Checkpoint, load_checkpoint
from txport.errors import CheckpointError, ConfigError
from txport.models.architectures.annotated import PRESETS, AnnotatedConfig

TINY = dataclasses.replace(PRESETS["annotated-tiny"], target_vocab_size=40, max_length=30)
EPS = TINY.norm_epsilon


class Norm(nn.Module):
    """Over the standard deviation as `Tensor.std` gives it, plus epsilon."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(width))
        self.b_2 = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + EPS) + self.b_2


class Sublayer(nn.Module):
    """The residual around a norm and what follows it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = Norm(width)

    def forward(self, x: Tensor, inner: Any) -> Tensor:
        return x + inner(self.norm(x))


class Heads(nn.Module):
    """Multi-head attention: three maps before it and one behind."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, query: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            linear(x).view(len(x), -1, self.heads, x.shape[-1] // self.heads).transpose(1, 2)
            for linear, x in zip(self.linears, (query, memory, memory), strict=False)
        )
        scores = (query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])).masked_fill(~mask, -1e9)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        return self.linears[3](mixed)


class Positionwise(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, inner)
        self.w_2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w_2(self.w_1(x).relu())


class Lookup(nn.Module):
    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.lut = nn.Embedding(size, width)

    def forward(self, ids: Tensor) -> Tensor:
        return self.lut(ids) * math.sqrt(self.lut.embedding_dim)


class Positions(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        angles = torch.arange(length)[:, None] * torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], 2).flatten(1)[None])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pe[:, : x.shape[1]]


class StackLayer(nn.Module):
    def __init__(self, config: AnnotatedConfig, *, cross: bool) -> None:
        super().__init__()
        width = config.d_model
        self.self_attn = Heads(config.heads, width)
        if cross:
            self.src_attn = Heads(config.heads, width)
        self.feed_forward = Positionwise(width, config.feed_forward)
        self.sublayer = nn.ModuleList(Sublayer(width) for _ in range(3 if cross else 2))

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None, source_mask: Any = None) -> Tensor:
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, mask))
        if memory is not None:
            x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, source_mask))
        return self.sublayer[-1](x, self.feed_forward)


class Stack(nn.Module):
    def __init__(self, config: AnnotatedConfig, *, cross: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(StackLayer(config, cross=cross) for _ in range(config.layers))
        self.norm = Norm(config.d_model)

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *rest)
        return self.norm(x)


class Generator(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).log_softmax(-1)


class Annotated(nn.Module):
    def __init__(self, config: AnnotatedConfig) -> None:
        super().__init__()
        self.encoder = Stack(config, cross=False)
        self.decoder = Stack(config, cross=True)
        for side, size in (("src", config.source_vocab_size), ("tgt", config.target_vocab_size)):
            places = Positions(config.d_model, 100)
            self.add_module(f"{side}_embed", nn.Sequential(Lookup(size, config.d_model), places))
        self.generator = Generator(config.d_model, config.target_vocab_size)

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        memory = self.encoder(self.src_embed(source), source_mask)
        return self.generator(self.decoder(self.tgt_embed(target), seen, memory, source_mask))


@torch.no_grad()
def original(config: AnnotatedConfig) -> Annotated:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = Annotated(config).eval()
        for name, parameter in model.named_parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
            if name.endswith("lut.weight"):
                parameter.mul_(config.d_model**-0.5)
        if config.tied != "none":
            model.tgt_embed[0].lut.weight = model.generator.proj.weight
        if config.tied == "all":
            model.src_embed[0].lut.weight = model.generator.proj.weight
    return model


def loaded(model: nn.Module, config: AnnotatedConfig, folder: Path) -> Checkpoint:
    """As a user saves it: the state dict as it is."""
    folder.mkdir()
    values = {"architecture": "annotated", **config.to_dict()}
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    save_file({name: copy.deepcopy(each) for name, each in model.state_dict().items()}, folder / "model.safetensors")
    return load_checkpoint(str(folder))


def inputs(config: AnnotatedConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Sources (3, 12) of lengths (3,), and targets (3, 25)."""
    drawn = torch.Generator().manual_seed(4)
    source = torch.randint(3, config.source_vocab_size, (3, 12), generator=drawn)
    return source, torch.tensor([12, 1, 7]), torch.randint(0, config.target_vocab_size, (3, 25), generator=drawn)


@pytest.mark.parametrize("tied", ["none", "target", "all"])
@torch.no_grad()
def test_a_state_dict_of_its_own_modules_loads_and_says_the_same(tied: str, tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, tied=tied, source_vocab_size=40)
    model = original(config)
    checkpoint = loaded(model, config, tmp_path / "model")
    source, lengths, target = inputs(config)
    mask = (torch.arange(12) < lengths[:, None])[:, None, None, :]
    expected = model(source, mask, target)
    assert expected.std() > 0.5  # a model that says nothing would agree with itself
    torch.testing.assert_close(checkpoint.model(source, lengths, target), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("target", ENGINES)
@torch.no_grad()
def test_its_exported_graphs_say_the_same(target: str, tmp_path: Path) -> None:
    """As the original in float64."""
    model = original(TINY)
    bundle = bundle_of(loaded(model, TINY, tmp_path / "model"), tmp_path / "bundle", target)
    source, lengths, tokens = inputs(TINY)
    mask = (torch.arange(12) < lengths[:, None])[:, None, None, :]
    check_steps(bundle, source, lengths, tokens, model.double()(source, mask, tokens))


def test_what_is_missing_is_named_as_the_model_has_it(tmp_path: Path) -> None:
    model = original(TINY)
    del model.decoder.layers[1].src_attn.linears[2].bias
    with pytest.raises(CheckpointError, match=r"missing decoder\.1\.cross_attention\.value\.bias \(32,\)"):
        loaded(model, TINY, tmp_path / "model")


def test_squares_of_large_numbers_do_not_overflow_in_half_precision(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, layers=1)
    model = original(config)
    with torch.no_grad():
        model.src_embed[0].lut.weight.mul_(2000)
    runtime = runtimes.load("ort", bundle_of(loaded(model, config, tmp_path / "model"), tmp_path / "bundle",
                                             "portable", "fp16"))  # fmt: skip
    source, lengths, tokens = inputs(config)
    state = runtime.start(source.numpy(), lengths.numpy(), max_length=4)
    scores, _ = runtime.step(tokens[:, 0].numpy(), state)
    with torch.no_grad():
        expected = model(source, (torch.arange(12) < lengths[:, None])[:, None, None, :], tokens[:, :1]).numpy()
    np.testing.assert_allclose(scores.values, expected[:, 0], rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"heads": 3}, "heads must divide d_model, got 3 for 32"),
        ({"d_model": 15, "heads": 1}, "sinusoidal positions need an even d_model, got 15"),
        ({"tied": "all"}, "tied 'all' needs one vocabulary for source and target, got sizes 64 and 40"),
        ({"pad_id": 40}, "pad_id must lie in the smaller vocabulary of 40, got 40"),
    ],
)
def test_a_config_that_does_not_go_together_says_why(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(TINY, **changes)
    assert str(error.value) == problem
