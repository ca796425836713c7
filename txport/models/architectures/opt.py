"""The decoder-only Transformer of Zhang et al. 2022, "OPT: Open Pre-trained Transformer Language Models"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import nn

from txport.models.architecture import Architecture
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import Facts, Tokens
from txport.models.parts import NORMS, Attention, DotProduct, Embedding, FeedForward, Layer, Linear, Residual
from txport.models.rules import Rename
from txport.models.stacks import DecoderOnly, causal_facts

UNUSED_POSITIONS = 2  # unused rows at the beginning of the table of positions
EPSILON = 1e-5  # epsilon of norms


@dataclass(frozen=True, kw_only=True)
class OPTConfig(Config):
    """The sizes and options of one OPT: learned positions, relu, biases, projection tied to the embedding.

    `embedding_width` is the size of the token embeddings: if it is not D, linear layers without bias project from it to
    D before the first layer, and back after the last; 0 means D. `feed_forward` 0 means 4 D. `norm` is "pre" (before
    each sublayer, and a final norm) or "post" (after each sublayer, as in the 350m model). `max_length` is the longest
    sequence in tokens, prompt included. Prompts begin with `bos_id`.
    """

    vocab_size: int = size(50272)
    d_model: int = size(768)
    embedding_width: int = size(0, least=0)
    heads: int = size(12)
    decoder_layers: int = layers(12)
    feed_forward: int = size(0, least=0)
    max_length: int = size(2048, least=2, most=LONGEST)
    norm: str = choice("pre", "post")
    dropout: float = real(0.1, least=0, below=1)
    pad_id: int = 1
    bos_id: int = 2
    eos_id: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "embedding_width", self.embedding_width or self.d_model)
        object.__setattr__(self, "feed_forward", self.feed_forward or 4 * self.d_model)

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}"
        for name in ("pad_id", "bos_id", "eos_id"):
            yield from require_token(name, getattr(self, name), "model's", self.vocab_size)

    @property
    def head_size(self) -> int:
        """H, the size of one head."""
        return self.d_model // self.heads


def facts(config: OPTConfig) -> Facts:
    """Return the facts about a model of this config."""
    target = Tokens(
        size=config.vocab_size,
        longest=config.max_length,
        pad=config.pad_id,
        ends=(config.eos_id,),
        before=(config.bos_id,),
    )
    return causal_facts(
        width=config.embedding_width,  # size of the states that are projected to logits
        target=target,
        layers=config.decoder_layers,
        key_heads=config.heads,
        head_size=config.head_size,
    )


class OPT(DecoderOnly):
    """The complete model."""

    config: OPTConfig

    def __init__(self, config: OPTConfig) -> None:
        width = config.d_model
        inner = config.embedding_width
        super().__init__(
            config,
            facts(config),
            embedding=Embedding(
                config.vocab_size,
                width,
                inner=None if inner == width else inner,
                positions="learned",
                longest=config.max_length,
                offset=UNUSED_POSITIONS,
            ),
            layer=partial(_layer, config),
            layers=config.decoder_layers,
            final_norm=_norm(config) if config.norm == "pre" else nn.Identity(),
            tied=True,
            embedding_out=None if inner == width else Linear(width, inner, bias=False, tag="embedding_out"),
        )


def _layer(config: OPTConfig) -> Layer:
    core = DotProduct(config.heads, config.heads, config.head_size**-0.5)
    return Layer(
        Attention(config.d_model, core, config.head_size),
        FeedForward(config.d_model, config.feed_forward, "relu"),
        lambda: Residual(_norm(config), first=config.norm == "pre", dropout=config.dropout),
    )


def _norm(config: OPTConfig) -> nn.Module:
    return NORMS["layer"](config.d_model, EPSILON)


def hugging_face(config: OPTConfig) -> dict[str, object]:
    """Return the `config.json` of an `OPTForCausalLM`."""
    return {
        "model_type": "opt",
        "architectures": ["OPTForCausalLM"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "word_embed_proj_dim": config.embedding_width,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.decoder_layers,
        "ffn_dim": config.feed_forward,
        "max_position_embeddings": config.max_length,
        "bos_token_id": config.bos_id,
        "do_layer_norm_before": config.norm == "pre",
        "activation_function": "relu",
        "tie_word_embeddings": True,
    }


def draw(rng: np.random.Generator) -> OPTConfig:
    """Return a small random config of any variant."""
    vocabulary = int(rng.integers(8, 60))
    return OPTConfig(
        vocab_size=vocabulary,
        heads=(heads := int(rng.choice([1, 2, 4]))),
        d_model=heads * int(rng.choice([8, 16])),
        embedding_width=int(rng.choice([0, 8, 20])),
        decoder_layers=int(rng.integers(1, 4)),
        feed_forward=int(rng.integers(8, 40)),
        max_length=int(rng.integers(4, 40)),
        norm=str(rng.choice(OPTConfig.choices()["norm"])),
        pad_id=int(rng.integers(vocabulary)),
        bos_id=int(rng.integers(vocabulary)),
        eos_id=int(rng.integers(vocabulary)),
    )


# renames the modules of transformers' OPTForCausalLM
WEIGHTS = (
    Rename(r"^lm_head\.", "projection."),
    Rename(r"^model\.decoder\.", "decoder."),
    Rename(r"^decoder\.embed_tokens\.", "target_embedding.tokens."),
    Rename(r"^decoder\.embed_positions\.weight$", "target_embedding.positions"),
    Rename(r"^decoder\.project_in\.", "target_embedding.widen."),
    Rename(r"^decoder\.project_out\.", "embedding_out."),
    Rename(r"^decoder\.final_layer_norm\.", "decoder_norm."),
    Rename(r"\.layers\.", "."),
    Rename(r"\.self_attn_layer_norm\.", ".attention_residual.norm."),
    Rename(r"\.final_layer_norm\.", ".feed_forward_residual.norm."),
    Rename(r"\.self_attn\.q_proj\.", ".attention.query."),
    Rename(r"\.self_attn\.k_proj\.", ".attention.key."),
    Rename(r"\.self_attn\.v_proj\.", ".attention.value."),
    Rename(r"\.self_attn\.out_proj\.", ".attention.output."),
    Rename(r"\.fc1\.", ".feed_forward.inner."),
    Rename(r"\.fc2\.", ".feed_forward.outer."),
)
# `opt-tiny` is for tests and first tries; the others have the sizes of table 1 of the paper.
PRESETS = {
    "opt-tiny": OPTConfig(vocab_size=64, d_model=32, heads=4, decoder_layers=2, max_length=64),
    "opt-125m": OPTConfig(),
    "opt-350m": OPTConfig(d_model=1024, embedding_width=512, heads=16, decoder_layers=24, norm="post"),
    "opt-1.3b": OPTConfig(d_model=2048, heads=32, decoder_layers=24),
    "opt-2.7b": OPTConfig(d_model=2560, heads=32, decoder_layers=32),
    "opt-6.7b": OPTConfig(d_model=4096, heads=32, decoder_layers=32),
}
ARCHITECTURE = Architecture(
    config=OPTConfig, build=OPT, presets=PRESETS, hugging_face=hugging_face, draw=draw, weights=WEIGHTS
)
