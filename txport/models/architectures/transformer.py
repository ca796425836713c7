"""The encoder-decoder Transformer of Vaswani et al. 2017, "Attention is all you need", and its common variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
from torch import nn

from txport.models import heads
from txport.models.architecture import Architecture
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import EXCLUSIVE, MULTI_LABEL, REGRESSION, Facts, Tokens
from txport.models.heads import LABELS, OF_LABELS, SPANS, TEXT
from txport.models.model import Side
from txport.models.parts import NORMS, Additive, Attention, DotProduct, Embedding, FeedForward, Layer, Residual, Window
from txport.models.rules import Drop, Rename, Split
from txport.models.stacks import EncoderDecoder, seq2seq_facts

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}  # -> in transformers
OF_TEXT = ("output", "output_bias")  # fields of the head that writes text


@dataclass(frozen=True, kw_only=True, repr=False)
class TransformerConfig(Config):
    """The sizes and options of one encoder-decoder Transformer (Vaswani et al. 2017).

    `norm` is "pre" (before each sublayer) or "post" (after its residual). `final_norm`: each stack has a final norm;
    None means True for "pre" and False for "post". `tied` shares the projection's matrix with the target embedding
    ("target"), with both embeddings ("all") or with neither ("none"). `max_length` is the longest source and the
    longest target in tokens, special tokens included. The table of positions begins with `position_offset` unused rows.
    `head_size` 0 means D / N. `output` is "logits" or "log_probs" (their log-softmax). `add_source_bos` and
    `add_source_eos` state whether sources began with `bos_id` and ended with `eos_id` in training; targets always end
    with `eos_id`, and start from `start_id`, or from `bos_id` if that is None.

    `head` is "text", or "labels": the decoder reads the whole source, too, and gives logits over `labels` for the last
    `eos_id`, as BART does for natural language inference. It reads each token one place later, after the start of
    targets, or after the source's last token if `wraps_last` (mBART). Or "spans": so it gives
    for each token the logits of the first and the last token of an answer. `problem_type` and `text_length` are those
    of `LlamaConfig`.
    """

    RARE = frozenset({"head", "labels", "problem_type", "wraps_last", "text_length"})
    source_vocab_size: int = size()
    target_vocab_size: int = size()
    d_model: int = size(512)
    heads: int = size(8)
    head_size: int = size(0, least=0)
    feed_forward: int = size(2048)
    encoder_layers: int = layers(6)
    decoder_layers: int = layers(6)
    max_length: int = size(512, most=LONGEST)
    norm: str = choice("post", "pre")
    final_norm: bool | None = None
    norm_epsilon: float = real(1e-5, above=0, below=1)
    embedding_norm: bool = False
    positions: str = choice("sinusoidal", "learned")
    sinusoids: str = choice("interleaved", "halves", "fairseq")
    position_offset: int = size(0, least=0)
    activation: str = choice(*ACTIVATIONS)
    bias: bool = True
    output_bias: bool = False
    output: str = choice("logits", "log_probs")
    tied: str = choice("all", "none", "target")
    scale_embedding: bool = True
    dropout: float = real(0.1, least=0, below=1)
    pad_id: int = 0
    bos_id: int = 1
    start_id: int | None = None
    eos_id: int = 2
    add_source_bos: bool = False
    add_source_eos: bool = True
    head: str = choice(TEXT, LABELS, SPANS)
    labels: tuple[str, ...] = ()
    problem_type: str = choice(EXCLUSIVE, MULTI_LABEL, REGRESSION)
    wraps_last: bool = False
    text_length: int = size(0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_size:
            object.__setattr__(self, "head_size", self.d_model // self.heads)

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if not self.head_size and self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}; or give a head_size"
        if self.positions == "sinusoidal" and self.d_model % 2:
            yield f"sinusoidal positions need an even d_model, got {self.d_model}"
        if self.positions not in ("sinusoidal", "learned") and self.position_offset:
            yield f"position_offset is for a table of positions, got {self.position_offset} for {self.positions!r}"
        if self.positions != "sinusoidal" and self.sinusoids != "interleaved":
            yield f"sinusoids is for sinusoidal positions, got {self.sinusoids!r} for {self.positions!r}"
        if self.sinusoids == "fairseq" and self.d_model < 4:
            yield f"sinusoids 'fairseq' need a d_model of at least 4, got {self.d_model}"
        if self.source_vocab_size != self.target_vocab_size and (self.tied == "all" or self.head != TEXT):
            sizes = f"{self.source_vocab_size} and {self.target_vocab_size}"
            what = "tied 'all'" if self.tied == "all" else f"the head {self.head!r}"
            yield f"{what} needs one vocabulary for source and target, got sizes {sizes}"
        yield from heads.problems(self, OF_TEXT, ("wraps_last",))
        in_sources = {"pad_id": True, "bos_id": self.add_source_bos, "eos_id": self.add_source_eos}
        if self.start_id is not None:
            yield from require_token("start_id", self.start_id, "target", self.target_vocab_size)
        for name, is_in_sources in in_sources.items():
            found = list(require_token(name, getattr(self, name), "target", self.target_vocab_size))
            if not found and is_in_sources:
                found = list(require_token(name, getattr(self, name), "source", self.source_vocab_size))
            yield from found


MakeCore = Callable[[Any], "DotProduct | Additive"]


def facts(config: TransformerConfig) -> Facts:
    """Return the facts about a model of this config."""
    pad = config.pad_id
    longest = config.max_length
    source = Tokens(
        size=config.source_vocab_size,
        longest=longest,
        pad=pad,
        before=(config.bos_id,) if config.add_source_bos else (),
        after=(config.eos_id,) if config.add_source_eos else (),
    )
    start = config.bos_id if config.start_id is None else config.start_id
    ends = (config.eos_id,)
    if config.head != TEXT:
        longest = config.text_length or longest
        first = None if config.wraps_last else start
        return heads.facts_of(config, replace(source, longest=longest, start=first, ends=ends))
    return seq2seq_facts(
        width=config.d_model,
        source=source,
        target=Tokens(size=config.target_vocab_size, longest=longest, pad=pad, start=start, ends=ends),
        decoder_layers=config.decoder_layers,
        heads=config.heads,
        head_size=config.head_size,
        has_plain_logits=not config.output_bias and config.output == "logits",
    )


def dot_product(config: TransformerConfig) -> DotProduct:
    """Return a dot-product attention that scales scores by 1 / sqrt(head_size)."""
    return DotProduct(config.heads, config.heads, config.head_size**-0.5)


class Transformer(EncoderDecoder):
    """The complete model; `own` and `cross` create the cores of each layer's self-attention and cross-attention."""

    config: TransformerConfig

    def __init__(self, config: TransformerConfig, own: MakeCore = dot_product, cross: MakeCore = dot_product) -> None:
        super().__init__(
            config,
            facts(config),
            embedding=partial(_embedding, config),
            layer=partial(_layer, config, own, cross, Window(config.max_length, causal=True)),
            final_norm=partial(_final_norm, config),
            layers=(config.encoder_layers, config.decoder_layers),
            tied=config.tied,
            output_bias=config.output_bias,
            log_probs=config.output == "log_probs",
        )


def _embedding(config: TransformerConfig, vocabulary: int) -> Embedding:
    return Embedding(
        vocabulary,
        config.d_model,
        scale=math.sqrt(config.d_model) if config.scale_embedding else 1.0,
        positions=config.positions,
        longest=config.max_length,
        offset=config.position_offset,
        layout=cast(Any, config.sinusoids),
        norm=_norm(config) if config.embedding_norm else None,
        dropout=config.dropout,
    )


def _layer(config: TransformerConfig, own: MakeCore, cross: MakeCore, window: Window, side: Side) -> Layer:
    hides = side == "decoder" and config.head != TEXT
    feed_forward = FeedForward(config.d_model, config.feed_forward, config.activation, bias=config.bias)
    attention = partial(Attention, config.d_model, head_size=config.head_size, bias=config.bias)
    over_own = attention(own(config), window=window if hides else None)
    over_source = attention(cross(config), over="source") if side == "decoder" else None
    return Layer(over_own, feed_forward, partial(_residual, config), over_source)


def _residual(config: TransformerConfig) -> Residual:
    return Residual(_norm(config), first=config.norm == "pre", dropout=config.dropout)


def _norm(config: TransformerConfig) -> nn.Module:
    kind = "layer" if config.bias else "layer without bias"
    return NORMS[kind](config.d_model, config.norm_epsilon)


def _final_norm(config: TransformerConfig) -> nn.Module:
    """Return the final norm of a stack; by default pre-norm has one, because it leaves the output unnormalised."""
    has_norm = config.norm == "pre" if config.final_norm is None else config.final_norm
    return _norm(config) if has_norm else nn.Identity()


NAMES = {  # head -> type and class name in transformers
    TEXT: ("marian", "MarianMTModel"),
    LABELS: ("bart", "BartForSequenceClassification"),
    SPANS: ("bart", "BartForQuestionAnswering"),
}


def hugging_face(config: TransformerConfig) -> dict[str, Any]:
    """Return the `config.json` of a Marian model, or of a BART with another head.

    Optimum and transformers.js take `d_model` / heads as head size.
    """
    kind, name = NAMES[config.head]
    return {
        "model_type": kind,
        "architectures": [name],
        "is_encoder_decoder": True,
        "vocab_size": config.target_vocab_size,
        "decoder_vocab_size": config.target_vocab_size,
        "d_model": config.heads * config.head_size,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "num_hidden_layers": config.encoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.feed_forward,
        "decoder_ffn_dim": config.feed_forward,
        "activation_function": ACTIVATIONS[config.activation],
        "scale_embedding": config.scale_embedding,
        "max_position_embeddings": config.max_length,
    }


def draw(rng: np.random.Generator) -> TransformerConfig:
    """Return a small random config of any variant."""
    values = drawn_values(rng, TransformerConfig.choices())
    start = int(rng.integers(values["target_vocab_size"])) if rng.integers(2) else None
    final = (None, True, False)[rng.integers(3)]
    config = TransformerConfig(**values, start_id=start, final_norm=final)
    return config if rng.integers(4) else _labelled(config, rng)


def _labelled(config: TransformerConfig, rng: np.random.Generator) -> TransformerConfig:
    """Return a config of the same layers, with labels or spans."""
    usual: dict[str, Any] = {name: getattr(TransformerConfig, name) for name in OF_TEXT}
    kind = str(rng.choice(TransformerConfig.choices()["problem_type"]))
    found = replace(
        config,
        **usual,
        target_vocab_size=config.source_vocab_size,
        start_id=None,
        head=LABELS,
        labels=tuple(f"label {number}" for number in range(1 + rng.integers(4))),
        problem_type=kind,
        wraps_last=bool(rng.integers(2)),
    )
    return found if rng.integers(3) else replace(found, head=SPANS, labels=(), problem_type=EXCLUSIVE)


def drawn_values(rng: np.random.Generator, choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the values of a small random config of any variant within these choices."""
    choices = {name: allowed for name, allowed in choices.items() if name not in ("head", *OF_LABELS)}
    values: dict[str, object] = {name: str(rng.choice(allowed)) for name, allowed in choices.items()}
    for name in ("bias", "output_bias", "embedding_norm", "scale_embedding", "add_source_bos", "add_source_eos"):
        values[name] = bool(rng.integers(2))
    heads = int(rng.choice([1, 2, 4]))
    head_size = int(rng.choice([8, 16]))
    if values["positions"] != "sinusoidal":
        values["sinusoids"] = "interleaved"
    if values["positions"] in ("learned", "sinusoidal"):
        values["position_offset"] = int(rng.integers(3))
    source, target = (int(each) for each in rng.integers(8, 60, 2))
    sizes = {
        "source_vocab_size": target if values["tied"] == "all" else source,
        "target_vocab_size": target,
        "d_model": int(rng.choice([heads * head_size, 16, 24])),
        "heads": heads,
        "head_size": head_size,
        "feed_forward": int(rng.integers(8, 40)),
        "encoder_layers": int(rng.integers(1, 3)),
        "decoder_layers": int(rng.integers(1, 4)),
        "max_length": int(rng.integers(4, 40)),
    }
    return values | sizes


# Sizes are from table 3 of Vaswani et al. 2017, with the shared 32,000-token vocabulary of its English-French model;
# `tiny` is for tests and first tries.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("source_vocab_size", "target_vocab_size", "feed_forward", "max_length"), 64),
    "d_model": 32,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
}
PRESETS = {
    "tiny": TransformerConfig(**SMALL),
    "base": TransformerConfig(source_vocab_size=32000, target_vocab_size=32000),
    "big": TransformerConfig(
        source_vocab_size=32000, target_vocab_size=32000, d_model=1024, heads=16, feed_forward=4096, dropout=0.3
    ),
}
# renames the modules of `torch.nn.Transformer`, and the modules around it in PyTorch's translation tutorial
PARTS = ("query.", "key.", "value.")
WEIGHTS = (
    Drop(r"positional_encoding\.pos_embedding$", "source_embedding.positions"),
    Rename(r"^(\w+\.)?(transformer_)?(encoder|decoder)\.(layers|norm)\.", r"\3.\4."),
    Rename(r"^(encoder|decoder)\.norm\.", r"\1_norm."),
    Rename(r"^(encoder|decoder)\.layers\.", r"\1."),
    Split(r"\.self_attn\.in_proj_(?=weight$|bias$)", tuple(f".attention.{part}" for part in PARTS)),
    Split(r"\.multihead_attn\.in_proj_(?=weight$|bias$)", tuple(f".cross_attention.{part}" for part in PARTS)),
    Rename(r"\.self_attn\.out_proj\.", ".attention.output."),
    Rename(r"\.multihead_attn\.out_proj\.", ".cross_attention.output."),
    Rename(r"\.linear1\.", ".feed_forward.inner."),
    Rename(r"\.linear2\.", ".feed_forward.outer."),
    Rename(r"\.norm1\.", ".attention_residual.norm."),
    Rename(r"^(encoder\.\d+)\.norm2\.", r"\1.feed_forward_residual.norm."),
    Rename(r"\.norm2\.", ".cross_attention_residual.norm."),
    Rename(r"\.norm3\.", ".feed_forward_residual.norm."),
    Rename(r"^src_tok_emb\.embedding\.", "source_embedding.tokens."),
    Rename(r"^tgt_tok_emb\.embedding\.", "target_embedding.tokens."),
    Rename(r"^generator\.", "projection."),
)
ARCHITECTURE = Architecture(
    config=TransformerConfig, build=Transformer, presets=PRESETS, hugging_face=hugging_face, draw=draw, weights=WEIGHTS
)
