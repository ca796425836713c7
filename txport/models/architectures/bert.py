"""The encoder of Devlin et al. 2019, "BERT", and of RoBERTa, DistilBERT, MPNet, ELECTRA and ALBERT, with a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from txport.models.architecture import Architecture
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import LENGTH, Facts, Output, Tokens, function_of
from txport.models.model import Model, Stack
from txport.models.ops import Ops
from txport.models.parts import (
    ACTIVATIONS,
    Attention,
    DotProduct,
    Embedding,
    FeedForward,
    Layer,
    Linear,
    RelativeBias,
    Residual,
)

LABELLED = ("labels", "token_labels", "replaced")
EXCLUSIVE, MULTI_LABEL, REGRESSION = "single_label_classification", "multi_label_classification", "regression"


@dataclass(frozen=True, kw_only=True)
class BertConfig(Config):
    """The sizes and options of one encoder, and its head.

    `head` is "hidden" (last hidden states), "pooled" (last hidden states, and the pooler's output for the first token),
    "tokens" (logits over the vocabulary per token, as of masked language models), "labels" (logits over `labels` per
    text), "token_labels" (logits over `labels` per token) or "replaced" (the logit of one label per token, as of
    ELECTRA's discriminator). `problem_type` is for the head "labels": labels are exclusive
    ("single_label_classification"), independent ("multi_label_classification") or numbers ("regression"). The table of
    positions begins with `position_offset` unused rows; RoBERTa has `pad_id` + 1. Texts have up to `max_length` tokens,
    or up to `text_length` if it is not 0. `segment`: add the embedding of token type 0 to each token. `pooler` is the
    activation after the pooler's linear layer. Texts begin with `cls_id` and end with `sep_id`.

    If `embedding_size` is not 0, embeddings have this size, and a linear layer projects them to `d_model`. If
    `distinct_layers` is not 0, only so many of the `encoder_layers` have separate weights, and the others repeat them:
    `repeated` is "runs" (0, 0, 1, 1) or "cycles" (0, 1, 0, 1). If `buckets` is not 0, a relative position bias is added
    to the scores of all layers: each direction has half of the buckets; half of these are for one distance each, the
    others share the distances up to `farthest`.
    """

    vocab_size: int = size(30522)
    d_model: int = size(768)
    heads: int = size(12)
    feed_forward: int = size(3072)
    encoder_layers: int = layers(12)
    embedding_size: int = size(0, least=0)
    distinct_layers: int = size(0, least=0)
    repeated: str = choice("runs", "cycles")
    buckets: int = size(0, least=0, most=1 << 12)
    farthest: int = size(128)
    max_length: int = size(512, most=LONGEST)
    text_length: int = size(0, least=0)
    position_offset: int = size(0, least=0)
    segment: bool = True
    norm_epsilon: float = real(1e-12, above=0, below=1)
    activation: str = choice("gelu", "gelu_tanh", "relu", "silu")
    head: str = choice("hidden", "pooled", "tokens", *LABELLED)
    labels: tuple[str, ...] = ()
    problem_type: str = choice(EXCLUSIVE, MULTI_LABEL, REGRESSION)
    pooler: str = choice("tanh", "relu", "gelu")
    dropout: float = real(0.1, least=0, below=1)
    pad_id: int = 0
    cls_id: int = 101
    sep_id: int = 102
    mask_id: int = 103

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}"
        if self.distinct_layers and self.encoder_layers % self.distinct_layers:
            both = f"{self.distinct_layers} of {self.encoder_layers}"
            yield f"encoder_layers must be a multiple of distinct_layers, got {both}"
        if self.repeated != BertConfig.repeated and not self.distinct_layers:
            yield f"repeated {self.repeated!r} needs distinct_layers that are repeated, got 0"
        if self.buckets % 4:
            yield f"buckets must be a multiple of 4, got {self.buckets}"
        if self.buckets and self.farthest <= self.buckets // 2:
            yield f"farthest must be above half of the {self.buckets} buckets, got {self.farthest}"
        if self.farthest != BertConfig.farthest and not self.buckets:
            yield f"farthest needs distance buckets, got {self.farthest} for 0 buckets"
        if self.text_length > self.max_length:
            yield f"text_length must be at most max_length {self.max_length}, got {self.text_length}"
        if self.head in LABELLED and not self.labels:
            yield f"the head {self.head!r} needs labels, got none"
        if self.labels and self.head not in LABELLED:
            yield f"labels are for the heads {', '.join(LABELLED)}, got {len(self.labels)} for {self.head!r}"
        if self.head == "replaced" and len(self.labels) > 1:
            yield f"the head 'replaced' has one label, got {len(self.labels)}"
        if self.problem_type != EXCLUSIVE and self.head != "labels":
            yield f"the problem_type {self.problem_type!r} is for the head 'labels', got {self.head!r}"
        if len(set(self.labels)) != len(self.labels):
            yield "labels must differ from each other, got one twice"
        for name in ("pad_id", "cls_id", "sep_id", "mask_id"):
            yield from require_token(name, getattr(self, name), "source", self.vocab_size)

    @property
    def width(self) -> int:
        """Size of the embeddings, before they are projected to `d_model` if they are."""
        return self.embedding_size or self.d_model

    @property
    def order(self) -> list[int]:
        """The index of the distinct layer that runs as each of the `encoder_layers`."""
        distinct = self.distinct_layers or self.encoder_layers
        if self.repeated == "cycles":
            return [number % distinct for number in range(self.encoder_layers)]
        return [number * distinct // self.encoder_layers for number in range(self.encoder_layers)]


def facts(config: BertConfig) -> Facts:
    """Return the facts about a model of this config."""
    hidden = Output("last_hidden_state", (LENGTH, config.d_model))
    labels = len(config.labels)
    outputs = {
        "hidden": (hidden,),
        "pooled": (hidden, Output("pooler_output", (config.d_model,))),
        "tokens": (Output("logits", (LENGTH, config.vocab_size)),),
        "labels": (Output("logits", (labels,)),),
        "token_labels": (Output("logits", (LENGTH, labels)),),
        "replaced": (Output("logits", (LENGTH, labels)),),
    }
    source = Tokens(
        size=config.vocab_size,
        longest=config.text_length or config.max_length,
        pad=config.pad_id,
        before=(config.cls_id,),
        after=(config.sep_id,),
        mask=config.mask_id,
    )
    return Facts(
        task="encode",
        width=config.d_model,
        source=source,
        outputs=outputs[config.head],
        labels=config.labels,
        function_to_apply=function_of(config.problem_type, config.labels),
    )


class Bert(Model):
    """The encoder with its head."""

    config: BertConfig

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config, facts(config))
        self.source_embedding = Embedding(
            config.vocab_size,
            config.width,
            positions="learned",
            longest=config.max_length,
            offset=config.position_offset,
            segment=config.segment,
            norm=self._norm(config.width),
            dropout=config.dropout,
        )
        width = config.d_model
        if config.embedding_size:
            self.widen = Linear(config.width, width, tag="embedding_in")
        bias = None
        if config.buckets:
            bias = RelativeBias(config.heads, config.buckets, config.farthest, config.max_length, both_ways=True)
        self.encoder = nn.ModuleList(self._layer(bias) for _ in range(1 + max(config.order)))
        if config.head in ("pooled", "labels"):
            self.pooler = Linear(width, width, tag="pooler")
        if config.head in LABELLED:
            self.classifier = Linear(width, len(config.labels), tag="classifier")
        if config.head == "tokens":
            self.transform = Linear(width, config.width, tag="transform")
            self.transform_norm = self._norm(config.width)
            self.projection = Linear(config.width, config.vocab_size, tag="projection")
            self.projection.weight = self.source_embedding.tokens.weight
        if config.head == "replaced":
            self.transform = Linear(width, width, tag="transform")
        self.initialise()

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """See `Model.stacks`."""
        return (Stack("encoder", self.source_embedding, self.encoder, None),)

    def encoder_states(self, ids: Tensor, ops: Ops) -> Tensor:
        """See `Model.encoder_states`."""
        x = self.source_embedding(ids, ops)
        if self.config.embedding_size:
            x = self.widen(x)
        for number, place in enumerate(self.config.order):
            x = self.encoder[place](x, ops, number)
        return cast(Tensor, x)

    def outputs(self, states: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """See `Model.outputs`."""
        heads: dict[str, Callable[[], tuple[Tensor, ...]]] = {
            "hidden": lambda: (ops.whole(states),),
            "pooled": lambda: (ops.whole(states), self.pooled(states, ops)),
            "tokens": lambda: (ops.whole(self.token_logits(states)),),
            "labels": lambda: (self.classifier(self.pooled(states, ops)),),
            "token_labels": lambda: (ops.whole(self.classifier(states)),),
            "replaced": lambda: (ops.whole(self.classifier(self.transformed(states))),),
        }
        return heads[self.config.head]()

    def pooled(self, states: Tensor, ops: Ops) -> Tensor:
        """Return the pooler's output, which is computed from the first token: (..., D) -> (B, D)."""
        return ACTIVATIONS[self.config.pooler](self.pooler(ops.whole(states)[:, 0]))

    def token_logits(self, states: Tensor) -> Tensor:
        """Return the logits over the vocabulary: (..., D) -> (..., V)."""
        return cast(Tensor, self.projection(self.transform_norm(self.transformed(states))))

    def transformed(self, states: Tensor) -> Tensor:
        """Apply the linear layer and activation at the beginning of a head per token: (..., D) -> (..., E)."""
        return ACTIVATIONS[self.config.activation](self.transform(states))

    def _layer(self, bias: RelativeBias | None) -> Layer:
        config = self.config
        head_size = config.d_model // config.heads
        core = DotProduct(config.heads, config.heads, head_size**-0.5, bias=bias)
        attention = Attention(config.d_model, core, head_size)
        feed_forward = FeedForward(config.d_model, config.feed_forward, config.activation)
        return Layer(
            attention, feed_forward, lambda: Residual(self._norm(config.d_model), first=False, dropout=config.dropout)
        )

    def _norm(self, width: int) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=self.config.norm_epsilon)


NAMES = {  # head -> class name in transformers
    "hidden": "BertModel",
    "pooled": "BertModel",
    "tokens": "BertForMaskedLM",
    "labels": "BertForSequenceClassification",
    "token_labels": "BertForTokenClassification",
    "replaced": "BertForTokenClassification",
}


def hugging_face(config: BertConfig) -> dict[str, Any]:
    """Return the `config.json` of a BERT, which Optimum and transformers.js support."""
    return {
        "model_type": "bert",
        "architectures": [NAMES[config.head]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": config.encoder_layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.feed_forward,
        "hidden_act": "gelu_new" if config.activation == "gelu_tanh" else config.activation,
        "max_position_embeddings": config.max_length,
        "layer_norm_eps": config.norm_epsilon,
    }


def draw(rng: np.random.Generator) -> BertConfig:
    """Return a small random config of any variant."""
    values: dict[str, Any] = {name: str(rng.choice(allowed)) for name, allowed in BertConfig.choices().items()}
    if values["head"] in LABELLED:
        count = 1 if values["head"] == "replaced" else int(rng.integers(1, 6))
        values["labels"] = tuple(f"label {number}" for number in range(count))
    if values["head"] != "labels":
        values["problem_type"] = EXCLUSIVE
    heads = int(rng.choice([1, 2, 4]))
    distinct = int(rng.integers(4))
    buckets = int(rng.choice([0, 4, 8]))
    if not distinct:
        values["repeated"] = BertConfig.repeated
    vocab_size = int(rng.integers(8, 60))
    d_model = heads * int(rng.choice([8, 16]))
    feed_forward = int(rng.integers(8, 40))
    encoder_layers = distinct * int(rng.integers(1, 3)) or int(rng.integers(1, 4))
    embedding_size = int(rng.choice([0, 8, 12]))
    farthest = buckets // 2 + int(rng.integers(1, 20))
    return BertConfig(
        **values,
        vocab_size=vocab_size,
        d_model=d_model,
        heads=heads,
        feed_forward=feed_forward,
        encoder_layers=encoder_layers,
        embedding_size=embedding_size,
        distinct_layers=distinct,
        buckets=buckets,
        farthest=farthest if buckets else BertConfig.farthest,
        max_length=int(rng.integers(4, 40)),
        position_offset=int(rng.integers(3)),
        segment=bool(rng.integers(2)),
        norm_epsilon=float(rng.choice([1e-12, 1e-5])),
        pad_id=0,
        cls_id=1,
        sep_id=2,
        mask_id=3,
    )


# `bert-base` is the smaller model of Devlin et al. 2019, with the head of its training; `bert-tiny` is for tests and
# first tries.
PRESETS = {
    "bert-tiny": BertConfig(
        vocab_size=64,
        d_model=32,
        heads=4,
        feed_forward=64,
        encoder_layers=2,
        max_length=64,
        head="tokens",
        cls_id=1,
        sep_id=2,
        mask_id=3,
    ),
    "bert-base": BertConfig(head="tokens"),
}
ARCHITECTURE = Architecture(config=BertConfig, build=Bert, presets=PRESETS, hugging_face=hugging_face, draw=draw)
