"""The decoder-only Transformer of Radford et al. 2019, "Language models are unsupervised multitask learners"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from txport.models.architecture import Architecture
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import Facts, Tokens
from txport.models.parts import NORMS, Attention, DotProduct, Embedding, FeedForward, Layer, Residual
from txport.models.stacks import DecoderOnly, causal_facts

VOCABULARY, END = 50257, 50256  # size and end token of the byte-level vocabulary of GPT-2
ACTIVATIONS = {"gelu_tanh": "gelu_new", "gelu": "gelu", "relu": "relu"}  # -> in transformers


@dataclass(frozen=True, kw_only=True)
class GPT2Config(Config):
    """The sizes and options of one GPT-2: pre-norm with a final norm, LayerNorm, learned positions.

    `max_length` is the longest sequence in tokens, prompt included. `feed_forward` 0 means 4 D. `tied`: projection and
    token embedding share one matrix. `bias`: linear layers and norms have a bias. `pad_id` pads the prompts of a batch;
    padding is masked, so it can be any token.
    """

    vocab_size: int = size(VOCABULARY)
    d_model: int = size(768)
    heads: int = size(12)
    decoder_layers: int = layers(12)
    feed_forward: int = size(0, least=0)
    max_length: int = size(1024, least=2, most=LONGEST)
    activation: str = choice(*ACTIVATIONS)
    norm_epsilon: float = real(1e-5, above=0, below=1)
    bias: bool = True
    tied: bool = True
    dropout: float = real(0.1, least=0, below=1)
    pad_id: int = END
    eos_id: int = END

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.feed_forward:
            object.__setattr__(self, "feed_forward", 4 * self.d_model)

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}"
        for name in ("pad_id", "eos_id"):
            yield from require_token(name, getattr(self, name), "model's", self.vocab_size)

    @property
    def head_size(self) -> int:
        """H, the size of one head."""
        return self.d_model // self.heads


def facts(config: GPT2Config) -> Facts:
    """Return the facts about a model of this config."""
    target = Tokens(size=config.vocab_size, longest=config.max_length, pad=config.pad_id, ends=(config.eos_id,))
    return causal_facts(
        width=config.d_model,
        target=target,
        layers=config.decoder_layers,
        key_heads=config.heads,
        head_size=config.head_size,
    )


class GPT2(DecoderOnly):
    """The complete model."""

    config: GPT2Config

    def __init__(self, config: GPT2Config) -> None:
        super().__init__(
            config,
            facts(config),
            embedding=Embedding(
                config.vocab_size,
                config.d_model,
                positions="learned",
                longest=config.max_length,
                dropout=config.dropout,
            ),
            layer=partial(_layer, config),
            layers=config.decoder_layers,
            final_norm=_norm(config),
            tied=config.tied,
        )


def _layer(config: GPT2Config) -> Layer:
    core = DotProduct(config.heads, config.heads, config.head_size**-0.5)
    return Layer(
        Attention(config.d_model, core, config.head_size, bias=config.bias),
        FeedForward(config.d_model, config.feed_forward, config.activation, bias=config.bias),
        lambda: Residual(_norm(config), first=True, dropout=config.dropout),
    )


def _norm(config: GPT2Config) -> nn.Module:
    return NORMS["layer" if config.bias else "layer without bias"](config.d_model, config.norm_epsilon)


def hugging_face(config: GPT2Config) -> dict[str, object]:
    """Return the `config.json` of a `GPT2LMHeadModel`."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_embd": config.d_model,
        "n_head": config.heads,
        "n_layer": config.decoder_layers,
        "n_positions": config.max_length,
        "n_inner": config.feed_forward,
        "activation_function": ACTIVATIONS[config.activation],
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
    }


def draw(rng: np.random.Generator) -> GPT2Config:
    """Return a small random config of any variant."""
    vocabulary = int(rng.integers(8, 60))
    return GPT2Config(
        vocab_size=vocabulary,
        heads=(heads := int(rng.choice([1, 2, 4]))),
        d_model=heads * int(rng.choice([8, 16])),
        decoder_layers=int(rng.integers(1, 4)),
        feed_forward=int(rng.integers(8, 40)),
        max_length=int(rng.integers(4, 40)),
        activation=str(rng.choice(list(ACTIVATIONS))),
        bias=bool(rng.integers(2)),
        tied=bool(rng.integers(2)),
        pad_id=int(rng.integers(vocabulary)),
        eos_id=int(rng.integers(vocabulary)),
    )


def _preset(layers: int, heads: int, width: int, positions: int = 2048) -> GPT2Config:
    return GPT2Config(decoder_layers=layers, heads=heads, d_model=width, max_length=positions)


# Layers, heads and width are from table 1 of Zhang et al. 2022 ("OPT"), which are those of table 2.1 of Brown et al.
# 2020 with heads that divide the width; both have 2,048 positions. `gpt2-125m` is the smallest published GPT-2, which
# has 1,024 positions. `gpt2-tiny` is for tests and first tries.
PRESETS = {
    "gpt2-tiny": GPT2Config(vocab_size=64, d_model=32, heads=4, decoder_layers=2, max_length=64, pad_id=0, eos_id=1),
    "gpt2-125m": _preset(12, 12, 768, positions=1024),
    "gpt2-350m": _preset(24, 16, 1024),
    "gpt2-1.3b": _preset(24, 32, 2048),
    "gpt2-2.7b": _preset(32, 32, 2560),
    "gpt2-6.7b": _preset(32, 32, 4096),
    "gpt2-13b": _preset(40, 40, 5120),
    "gpt2-30b": _preset(48, 56, 7168),
    "gpt2-66b": _preset(64, 72, 9216),
    "gpt2-175b": _preset(96, 96, 12288),
}
ARCHITECTURE = Architecture(config=GPT2Config, build=GPT2, presets=PRESETS, hugging_face=hugging_face, draw=draw)
