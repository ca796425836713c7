"""T5: Raffel et al. 2020, "Exploring the limits of transfer learning with a unified text-to-text Transformer".

An encoder-decoder with a relative position bias in self-attention and no other positions; norms are RMSNorm, linear
layers have no bias, and scores are not scaled. Versions 1.0 (relu, tied), 1.1 and Flan (gated, not tied) are options of
the config.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from txport.models import heads, sentence
from txport.models.architecture import Architecture
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import EXCLUSIVE, MULTI_LABEL, REGRESSION, Facts, Tokens
from txport.models.heads import LABELS, SPANS, STATES, TEXT
from txport.models.model import Model, Side
from txport.models.parts import (
    Attention,
    DotProduct,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Layer,
    RelativeBias,
    Residual,
    RMSNorm,
    Window,
)
from txport.models.rules import Drop, Rename
from txport.models.stacks import EncoderDecoder, TextEncoder, seq2seq_facts

OF_TEXT = ("tied", "scaled")  # fields of the head that writes text


@dataclass(frozen=True, kw_only=True, repr=False)
class T5Config(Config):
    """The sizes and options of a T5.

    Distances share buckets from `buckets` / 2 on (`buckets` / 4 in the encoder, which is bidirectional), and all
    distances from `farthest` on have the last bucket. `gated`: the feed-forward is `GatedFeedForward`. `tied`:
    projection and embedding share one matrix. `scaled`: the decoder's states are scaled by 1 / sqrt(d_model) before the
    projection; None means if `tied`. The model has no maximum length: `max_length` is the longest sequence that is
    exported, at no cost.

    `head` is "text"; "hidden": the encoder alone gives its last hidden states, and by the steps of `sentence` the
    vector of a text; or "labels" or "spans", as in `TransformerConfig`. `problem_type` and `text_length` are those of
    `LlamaConfig`.
    """

    RARE = frozenset({"head", "labels", "problem_type", "sentence", "text_length"})
    vocab_size: int = size(32128)
    d_model: int = size(512)
    heads: int = size(8)
    head_size: int = size(64)
    feed_forward: int = size(2048)
    encoder_layers: int = layers(6)
    decoder_layers: int = layers(6)
    max_length: int = size(512, most=LONGEST)
    buckets: int = size(32, least=4, most=1 << 12)
    farthest: int = size(128)
    activation: str = choice("relu", "gelu_tanh", "gelu", "silu")
    gated: bool = False
    tied: bool = True
    scaled: bool | None = None
    norm_epsilon: float = real(1e-6, above=0, below=1)
    dropout: float = real(0.1, least=0, below=1)
    pad_id: int = 0
    eos_id: int = 1
    head: str = choice(TEXT, STATES, LABELS, SPANS)
    labels: tuple[str, ...] = ()
    problem_type: str = choice(EXCLUSIVE, MULTI_LABEL, REGRESSION)
    sentence: tuple[str, ...] = ()
    text_length: int = size(0, least=0)

    @property
    def scale(self) -> float:
        """The factor of the decoder's states before the projection."""
        is_scaled = self.tied if self.scaled is None else self.scaled
        return float(self.d_model**-0.5) if is_scaled else 1.0

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if self.buckets % 4:
            yield f"buckets must be a multiple of 4, got {self.buckets}"
        if self.farthest <= self.buckets // 2:
            yield f"farthest must be above half of the {self.buckets} buckets, got {self.farthest}"
        yield from heads.problems(self, (*OF_TEXT, *(["decoder_layers"] if self.head == STATES else [])))
        for name in ("pad_id", "eos_id"):
            yield from require_token(name, getattr(self, name), "shared", self.vocab_size)


def facts(config: T5Config) -> Facts:
    """Return the facts about a model of this config: generation starts from the padding token."""
    longest = config.text_length or config.max_length
    tokens = partial(Tokens, size=config.vocab_size, longest=longest, pad=config.pad_id)
    source = tokens(after=(config.eos_id,))
    if config.head != TEXT:
        return heads.facts_of(config, replace(source, start=config.pad_id, ends=(config.eos_id,)))
    return seq2seq_facts(
        width=config.d_model,
        source=source,
        target=tokens(start=config.pad_id, ends=(config.eos_id,)),
        decoder_layers=config.decoder_layers,
        heads=config.heads,
        head_size=config.head_size,
        has_plain_logits=True,
    )


def build(config: T5Config) -> Model:
    """Build a model of this config; all layers of a stack share one relative position bias."""
    sides: tuple[Side, ...] = ("encoder", "decoder")
    biases = {
        side: RelativeBias(
            config.heads, config.buckets, config.farthest, config.max_length, both_ways=side == "encoder"
        )
        for side in sides
    }
    embedding = partial(Embedding, width=config.d_model, dropout=config.dropout)
    layer = partial(_layer, config, biases, Window(config.max_length, causal=True))
    final_norm = partial(RMSNorm, config.d_model, config.norm_epsilon)
    if config.head == STATES:
        return TextEncoder(
            config,
            facts(config),
            embedding=embedding(config.vocab_size),
            layer=partial(layer, "encoder"),
            layers=config.encoder_layers,
            final_norm=final_norm(),
            sentence=config.sentence,
            side="encoder",
        )
    return EncoderDecoder(
        config,
        facts(config),
        embedding=embedding,
        layer=layer,
        final_norm=final_norm,
        layers=(config.encoder_layers, config.decoder_layers),
        tied="all" if config.tied else "embeddings",
        scale=config.scale,
    )


def _layer(config: T5Config, biases: Mapping[Side, RelativeBias], window: Window, side: Side) -> Layer:
    hides = side == "decoder" and config.head != TEXT
    feed_forward = GatedFeedForward if config.gated else FeedForward
    attention = partial(Attention, config.d_model, head_size=config.head_size, bias=False)
    score = partial(DotProduct, config.heads, config.heads, 1.0)
    return Layer(
        attention(score(bias=biases[side]), window=window if hides else None),
        feed_forward(config.d_model, config.feed_forward, config.activation, bias=False),
        lambda: Residual(RMSNorm(config.d_model, config.norm_epsilon), first=True, dropout=config.dropout),
        attention(score(), over="source") if side == "decoder" else None,
    )


NAMES = {  # head -> class name in transformers
    TEXT: "T5ForConditionalGeneration",
    STATES: "T5EncoderModel",
    LABELS: "T5ForSequenceClassification",
    SPANS: "T5ForQuestionAnswering",
}


def hugging_face(config: T5Config) -> dict[str, object]:
    """Return the `config.json` of a T5; Optimum computes a head's size as `d_model` / `num_heads`, not from `d_kv`."""
    # in a gated feed-forward of transformers, "gelu" is the approximation by tanh
    activation = config.activation if config.activation != "gelu_tanh" else "gelu" if config.gated else "gelu_new"
    return {
        "model_type": "t5",
        "architectures": [NAMES[config.head]],
        "is_encoder_decoder": config.head != STATES,
        "vocab_size": config.vocab_size,
        "d_model": config.heads * config.head_size,
        "d_kv": config.head_size,
        "d_ff": config.feed_forward,
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "num_heads": config.heads,
        "relative_attention_num_buckets": config.buckets,
        "relative_attention_max_distance": config.farthest,
        "feed_forward_proj": f"gated-{activation}" if config.gated else activation,
        "layer_norm_epsilon": config.norm_epsilon,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scale != 1,
        "n_positions": config.max_length,
    }


def draw(rng: np.random.Generator) -> T5Config:
    """Return a small random config of any variant."""
    buckets = 4 * int(rng.integers(1, 5))
    config = T5Config(
        vocab_size=int(rng.integers(8, 60)),
        d_model=int(rng.choice([16, 24, 32])),
        heads=int(rng.choice([1, 2, 4])),
        head_size=int(rng.choice([8, 16])),
        feed_forward=int(rng.integers(8, 40)),
        encoder_layers=int(rng.integers(1, 3)),
        decoder_layers=int(rng.integers(1, 4)),
        max_length=int(rng.integers(4, 40)),
        buckets=buckets,
        farthest=buckets // 2 + int(rng.integers(1, 20)),
        activation=str(rng.choice(T5Config.choices()["activation"])),
        gated=bool(rng.integers(2)),
        tied=bool(rng.integers(2)),
        scaled=(None, False, True)[rng.integers(3)],
    )
    return config if rng.integers(4) else _reading(config, rng)


def _reading(config: T5Config, rng: np.random.Generator) -> T5Config:
    """Return a config of the same layers, for whole texts."""
    config = replace(config, **{name: getattr(T5Config, name) for name in OF_TEXT})
    if rng.integers(2):
        return replace(config, head=STATES, decoder_layers=T5Config.decoder_layers, sentence=sentence.draw(rng))
    kind = str(rng.choice(T5Config.choices()["problem_type"]))
    labels = tuple(f"label {number}" for number in range(1 + rng.integers(4)))
    found = replace(config, head=LABELS, labels=labels, problem_type=kind)
    return found if rng.integers(3) else replace(config, head=SPANS)


# renames the modules of transformers' T5ForConditionalGeneration, and the tensors of its checkpoints
WEIGHTS = (
    Rename(r"^transformer\.", ""),  # of T5ForSequenceClassification
    Drop(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\."),  # in old files, but never used
    Rename(r"^(shared|(encoder|decoder)\.embed_tokens)\.", "source_embedding.tokens."),
    Rename(r"^lm_head\.", "projection."),
    Rename(r"^classification_head\.dense\.", "pooler."),
    Rename(r"^(classification_head\.out_proj|qa_outputs)\.", "classifier."),
    Rename(r"^(encoder|decoder)\.final_layer_norm\.", r"\1_norm."),
    Rename(r"\.block\.(\d+)\.layer\.(\d)\.", r".\1.layer.\2."),
    Rename(r"\.layer\.0\.layer_norm\.", ".attention_residual.norm."),
    Rename(r"^(decoder\.\d+)\.layer\.1\.layer_norm\.", r"\1.cross_attention_residual.norm."),
    Rename(r"\.layer\.\d\.layer_norm\.", ".feed_forward_residual.norm."),
    Rename(r"\.layer\.0\.SelfAttention\.", ".attention."),
    Rename(r"\.layer\.1\.EncDecAttention\.", ".cross_attention."),
    Rename(r"\.layer\.\d\.DenseReluDense\.", ".feed_forward."),
    Rename(r"attention\.q\.", "attention.query."),
    Rename(r"attention\.k\.", "attention.key."),
    Rename(r"attention\.v\.", "attention.value."),
    Rename(r"attention\.o\.", "attention.output."),
    Rename(r"attention\.relative_attention_bias\.", "attention.core.bias."),
    Rename(r"feed_forward\.wi_0\.", "feed_forward.gate."),
    Rename(r"feed_forward\.wi(_1)?\.", "feed_forward.inner."),
    Rename(r"feed_forward\.wo\.", "feed_forward.outer."),
)
# `t5-small` has the published sizes; `t5-tiny` is for tests and first tries.
PRESETS = {
    "t5-tiny": T5Config(
        vocab_size=64,
        d_model=32,
        heads=4,
        head_size=8,
        feed_forward=64,
        encoder_layers=2,
        decoder_layers=2,
        max_length=64,
        buckets=16,
        farthest=32,
    ),
    "t5-small": T5Config(),
}
ARCHITECTURE = Architecture(
    config=T5Config, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw, weights=WEIGHTS
)
