"""The Transformer of "The Annotated Transformer" (Rush 2018; Huang et al. 2022), whose code many models are based on.

It differs from the paper that it annotates: it is pre-norm with a final norm per stack, its norms divide by the
unbiased standard deviation plus epsilon, its projection has a bias, and its outputs are log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from txport.models.architecture import Architecture
from txport.models.architectures import transformer
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import Facts, Tokens
from txport.models.model import Model, Side
from txport.models.parts import Attention, DotProduct, Embedding, FeedForward, Layer, Residual, UnbiasedNorm
from txport.models.rules import Drop, Rename
from txport.models.stacks import EncoderDecoder, seq2seq_facts


@dataclass(frozen=True, kw_only=True)
class AnnotatedConfig(Config):
    """The arguments of its `make_model`, and the special tokens of its vocabularies.

    `tied` shares the projection's matrix with the target embedding ("target"), with both embeddings ("all") or with
    neither ("none"). `max_length` is the longest source and the longest target in tokens, special tokens included.
    `add_source_bos` and `add_source_eos` state whether sources began with `bos_id` and ended with `eos_id` in training.
    """

    source_vocab_size: int = size()
    target_vocab_size: int = size()
    layers: int = layers(6)
    d_model: int = size(512)
    feed_forward: int = size(2048)
    heads: int = size(8)
    max_length: int = size(512, most=LONGEST)
    tied: str = choice("none", "target", "all")
    norm_epsilon: float = real(1e-6, above=0, below=1)
    dropout: float = real(0.1, least=0, below=1)
    bos_id: int = 0
    eos_id: int = 1
    pad_id: int = 2
    add_source_bos: bool = True
    add_source_eos: bool = True

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}"
        if self.d_model % 2:
            yield f"sinusoidal positions need an even d_model, got {self.d_model}"
        if self.tied == "all" and self.source_vocab_size != self.target_vocab_size:
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            yield f"tied 'all' needs one vocabulary for source and target, got sizes {sizes}"
        for name in ("bos_id", "eos_id", "pad_id"):
            smaller = min(self.source_vocab_size, self.target_vocab_size)
            yield from require_token(name, getattr(self, name), "smaller", smaller)


def facts(config: AnnotatedConfig) -> Facts:
    """Return the facts about a model of this config."""
    tokens = partial(Tokens, longest=config.max_length, pad=config.pad_id)
    before = (config.bos_id,) if config.add_source_bos else ()
    after = (config.eos_id,) if config.add_source_eos else ()
    return seq2seq_facts(
        width=config.d_model,
        source=tokens(size=config.source_vocab_size, before=before, after=after),
        target=tokens(size=config.target_vocab_size, start=config.bos_id, ends=(config.eos_id,)),
        decoder_layers=config.layers,
        heads=config.heads,
        head_size=config.d_model // config.heads,
        has_plain_logits=False,
    )


def build(config: AnnotatedConfig) -> Model:
    """Build a model of this config."""
    return EncoderDecoder(
        config,
        facts(config),
        embedding=partial(
            Embedding,
            width=config.d_model,
            scale=math.sqrt(config.d_model),
            positions="sinusoidal",
            longest=config.max_length,
            dropout=config.dropout,
        ),
        layer=partial(_layer, config),
        final_norm=partial(UnbiasedNorm, config.d_model, config.norm_epsilon),
        layers=(config.layers, config.layers),
        tied=config.tied,
        output_bias=True,
        log_probs=True,
    )


def _layer(config: AnnotatedConfig, side: Side) -> Layer:
    head_size = config.d_model // config.heads
    attention = partial(Attention, config.d_model, DotProduct(config.heads, config.heads, head_size**-0.5), head_size)
    return Layer(
        attention(),
        FeedForward(config.d_model, config.feed_forward, "relu"),
        lambda: Residual(UnbiasedNorm(config.d_model, config.norm_epsilon), first=True, dropout=config.dropout),
        attention(over="source") if side == "decoder" else None,
    )


def hugging_face(config: AnnotatedConfig) -> dict[str, object]:
    """Return the `config.json` of the architecture `transformer`, because transformers has no such model."""
    return transformer.hugging_face(
        transformer.TransformerConfig(
            source_vocab_size=config.source_vocab_size,
            target_vocab_size=config.target_vocab_size,
            d_model=config.d_model,
            heads=config.heads,
            feed_forward=config.feed_forward,
            encoder_layers=config.layers,
            decoder_layers=config.layers,
            max_length=config.max_length,
            tied="none",
        )
    )


def draw(rng: np.random.Generator) -> AnnotatedConfig:
    """Return a small random config of any variant."""
    source, target = (int(each) for each in rng.integers(8, 60, 2))
    tied = str(rng.choice(AnnotatedConfig.choices()["tied"]))
    heads = int(rng.choice([1, 2, 4]))
    return AnnotatedConfig(
        source_vocab_size=target if tied == "all" else source,
        target_vocab_size=target,
        layers=int(rng.integers(1, 4)),
        d_model=heads * int(rng.choice([8, 16])),
        feed_forward=int(rng.integers(8, 40)),
        heads=heads,
        max_length=int(rng.integers(4, 40)),
        tied=tied,
        norm_epsilon=float(rng.choice([1e-6, 1e-3])),
        add_source_bos=bool(rng.integers(2)),
        add_source_eos=bool(rng.integers(2)),
    )


# renames the modules of its code
WEIGHTS = (
    Drop(r"src_embed\.1\.pe$", "source_embedding.positions"),
    Drop(r"tgt_embed\.1\.pe$", "target_embedding.positions"),
    Rename(r"^src_embed\.0\.lut\.", "source_embedding.tokens."),
    Rename(r"^tgt_embed\.0\.lut\.", "target_embedding.tokens."),
    Rename(r"^generator\.proj\.", "projection."),
    Rename(r"\.a_2$", ".weight"),
    Rename(r"\.b_2$", ".bias"),
    Rename(r"^(encoder|decoder)\.norm\.", r"\1_norm."),
    Rename(r"\.layers\.", "."),
    Rename(r"\.sublayer\.0\.", ".attention_residual."),
    Rename(r"^(encoder\.\d+)\.sublayer\.1\.", r"\1.feed_forward_residual."),
    Rename(r"\.sublayer\.1\.", ".cross_attention_residual."),
    Rename(r"\.sublayer\.2\.", ".feed_forward_residual."),
    Rename(r"\.self_attn\.linears\.", ".attention."),
    Rename(r"\.src_attn\.linears\.", ".cross_attention."),
    Rename(r"attention\.0\.", "attention.query."),
    Rename(r"attention\.1\.", "attention.key."),
    Rename(r"attention\.2\.", "attention.value."),
    Rename(r"attention\.3\.", "attention.output."),
    Rename(r"\.feed_forward\.w_1\.", ".feed_forward.inner."),
    Rename(r"\.feed_forward\.w_2\.", ".feed_forward.outer."),
)
# `annotated-base` has the default sizes of `make_model`; `annotated-tiny` is for tests and first tries.
PRESETS = {
    "annotated-tiny": AnnotatedConfig(
        source_vocab_size=64, target_vocab_size=64, layers=2, d_model=32, feed_forward=64, heads=4, max_length=64
    ),
    "annotated-base": AnnotatedConfig(source_vocab_size=32000, target_vocab_size=32000),
}
ARCHITECTURE = Architecture(
    config=AnnotatedConfig, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw, weights=WEIGHTS
)
