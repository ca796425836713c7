"""The encoder of Devlin et al. 2019, "BERT", and of RoBERTa, DistilBERT, MPNet, ELECTRA and ALBERT, with a head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from txport.errors import quoted
from txport.models import sentence
from txport.models.architecture import Architecture
from txport.models.config import LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import (
    END,
    EXCLUSIVE,
    LENGTH,
    MULTI_LABEL,
    REGRESSION,
    START,
    Facts,
    Output,
    Tokens,
    function_of,
)
from txport.models.model import Model, Stack
from txport.models.ops import Ops
from txport.models.parts import (
    ACTIVATIONS,
    NORMS,
    Attention,
    DotProduct,
    Embedding,
    FeedForward,
    GatedFeedForward,
    Layer,
    Linear,
    Pairing,
    RelativeBias,
    Residual,
    Rotary,
    Window,
    speeds,
)
from txport.models.parts.sentence import Sentence
from txport.models.stacks import spans

HIDDEN_STATES = ("hidden", "pooled")
LABELLED = ("labels", "token_labels", "replaced")


@dataclass(frozen=True, kw_only=True, repr=False)
class BertConfig(Config):
    """The sizes and options of one encoder, and its head.

    `head` is "hidden" (last hidden states), "pooled" (last hidden states, and the pooler's output for the first token),
    "tokens" (logits over the vocabulary per token, as of masked language models), "labels" (logits over `labels` per
    text), "token_labels" (logits over `labels` per token) or "replaced" (the logit of one label per token, as of
    ELECTRA's discriminator) or "spans" (two logits per token: of the first and of the last token of an answer, of which
    a text is a question and a context). `problem_type` is for the head "labels": labels are exclusive
    ("single_label_classification"), independent ("multi_label_classification") or numbers ("regression"). The table of
    positions begins with `position_offset` unused rows; RoBERTa has `pad_id` + 1. Texts have up to `max_length` tokens,
    or up to `text_length` if it is not 0. `segment`: add the embedding of token type 0 to each token; if `token_types`,
    the number of types, is not 0, that of the token's type, 0 or 1. `pooler` is the activation after the pooler's
    linear layer. Texts begin with `cls_id` and end with `sep_id`.

    If `embedding_size` is not 0, embeddings have this size, and a linear layer projects them to `d_model`. If
    `distinct_layers` is not 0, only so many of the `encoder_layers` have separate weights, and the others repeat them:
    `repeated` is "runs" (0, 0, 1, 1) or "cycles" (0, 1, 0, 1). If `buckets` is not 0, a relative position bias is added
    to the scores of all layers: each direction has half of the buckets; half of these are for one distance each, the
    others share the distances up to `farthest`.

    With `norm_first`, sublayers normalise their input, the first of all only with `first_norm`, and a final norm
    follows the last layer. `embedding_norm` normalises embeddings. `attention_bias`, `feed_forward_bias`, `norm_bias`
    and `head_bias` (of the first linear layer of a head) say what has a bias. `gated` feed-forwards multiply an
    activated projection with another one. `positions` are "learned" or "rotary"; layers with a window in `windows` have
    the base `rotary_local_base`. `windows` has a number per layer: a token sees itself and less than so many tokens to
    each side, or all if it is 0. With `head_norm`, heads of labels begin as that of masked language models does,
    without a pooler. `pooling`: the head "labels" reads the first token, or the mean of all. `sentence` are the steps
    from the last hidden states to the vector of a text: see `models.sentence`.
    """

    RARE = frozenset(
        {"norm_first", "first_norm", "embedding_norm", "attention_bias", "feed_forward_bias", "norm_bias", "head_bias"}
        | {
            "gated",
            "positions",
            "rotary_base",
            "rotary_local_base",
            "rotary_pairing",
            "windows",
            "head_norm",
            "pooling",
            "sentence",
            "token_types",
        }
    )
    WIDENS_FIRST = False  # a projection of embeddings has no bias, and comes before their norm
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
    token_types: int = size(0, least=0, most=1 << 10)
    norm_first: bool = False
    first_norm: bool = True
    embedding_norm: bool = True
    attention_bias: bool = True
    feed_forward_bias: bool = True
    norm_bias: bool = True
    head_bias: bool = True
    head_norm: bool = False
    pooling: str = choice("first", "mean")
    gated: bool = False
    positions: str = choice("learned", "rotary")
    rotary_base: float = real(10000.0, above=1, below=1e12)
    rotary_local_base: float = real(10000.0, above=1, below=1e12)
    rotary_pairing: str = choice("halves", "interleaved")
    windows: tuple[int, ...] = ()
    norm_epsilon: float = real(1e-12, above=0, below=1)
    activation: str = choice("gelu", "gelu_tanh", "relu", "silu")
    head: str = choice(*HIDDEN_STATES, "tokens", *LABELLED, "spans")
    sentence: tuple[str, ...] = ()
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
        if self.positions == "rotary" and not self.d_model % self.heads and self.d_model // self.heads % 2:
            yield f"rotary positions need an even head size, got {self.d_model // self.heads}"
        if not self.first_norm and not self.norm_first:
            yield "first_norm false needs norm_first true, got false"
        if self.token_types and (self.token_types == 1 or not self.segment):
            yield f"token_types must be 0, or 2 or more with segment, got {self.token_types}"
        yield from _window_problems(self)
        yield from sentence.problems(self.sentence, self.head, HIDDEN_STATES)
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


def _window_problems(config: BertConfig) -> Iterator[str]:
    """Yield a message for windows that are not one for each layer, or that other settings exclude."""
    fitting = [each for each in config.windows if 0 <= each <= LONGEST]
    if config.windows and not len(fitting) == len(config.windows) == config.encoder_layers:
        need = f"none, or {config.encoder_layers} numbers from 0 to {LONGEST}, one a layer"
        yield f"windows must be {need}, got {quoted(list(config.windows))}"
    for name in ("buckets", "distinct_layers"):
        if any(config.windows) and getattr(config, name):
            yield f"windows can't be combined with {name}, got {getattr(config, name)}"


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
        "spans": (Output(START, (LENGTH,)), Output(END, (LENGTH,))),
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
        outputs=(*outputs[config.head], *sentence.outputs_of(config.d_model, config.sentence)),
        labels=config.labels,
        function_to_apply=function_of(config.problem_type, config.labels),
        has_token_types=config.token_types > 0,
        windows=tuple(sorted({each for each in config.windows if each})),
    )


class Bert(Model):
    """The encoder with its head."""

    config: BertConfig

    def __init__(self, config: BertConfig, own: Callable[[], Attention] | None = None) -> None:
        """`own` makes the attention of a layer, in place of BERT's."""
        super().__init__(config, facts(config))
        self._own = own
        widens_first = config.embedding_size > 0 and config.WIDENS_FIRST
        self.source_embedding = Embedding(
            config.vocab_size,
            config.width,
            positions=config.positions,
            longest=config.max_length,
            offset=config.position_offset,
            segment=config.segment,
            types=config.token_types,
            norm=self._norm(config.width) if config.embedding_norm and not widens_first else None,
            dropout=config.dropout,
        )
        width = config.d_model
        if config.embedding_size:
            self.widen = Linear(config.width, width, bias=not widens_first, tag="embedding_in")
        self.widen_norm = self._norm(width) if widens_first and config.embedding_norm else None
        bias = None
        if config.buckets:
            bias = RelativeBias(config.heads, config.buckets, config.farthest, config.max_length, both_ways=True)
        self._neighbourhoods = {size: Window(size, both_ways=True) for size in config.windows if size}
        self._rotaries = [self._rotary(base) for base in (config.rotary_base, config.rotary_local_base)]
        self.encoder = nn.ModuleList(self._layer(number, bias) for number in range(1 + max(config.order)))
        self.encoder_norm = self._norm(width) if config.norm_first else None
        self._add_head(width)
        self.sentence = Sentence(width, config.sentence) if config.sentence else None
        self.initialise()

    def _add_head(self, width: int) -> None:
        config = self.config
        begins = config.head == "tokens" or (config.head in ("labels", "token_labels", "spans") and config.head_norm)
        if config.head in ("pooled", "labels") and not begins:
            self.pooler = Linear(width, width, config.head_bias, tag="pooler")
        if config.head in (*LABELLED, "spans"):
            count = len(config.labels) or 2
            self.classifier = Linear(config.width if begins else width, count, tag="classifier")
        if begins or config.head == "replaced":
            self.transform = Linear(width, config.width if begins else width, config.head_bias, tag="transform")
        if begins:
            self.transform_norm = self._norm(config.width)
        if config.head == "tokens":
            self.projection = Linear(config.width, config.vocab_size, tag="projection")
            self.projection.weight = self.source_embedding.tokens.weight

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """See `Model.stacks`."""
        return (Stack("encoder", self.source_embedding, self.encoder, self.encoder_norm),)

    def encoder_states(self, ids: Tensor, ops: Ops) -> Tensor:
        """See `Model.encoder_states`."""
        x = self.source_embedding(ids, ops)
        if self.config.embedding_size:
            x = self.widen(x)
        if self.widen_norm is not None:
            x = self.widen_norm(x)
        for number, place in enumerate(self.config.order):
            x = self.encoder[place](x, ops, number)
        return cast(Tensor, x if self.encoder_norm is None else self.encoder_norm(x))

    def outputs(self, states: Tensor, ops: Ops) -> tuple[Tensor, ...]:
        """See `Model.outputs`."""
        heads: dict[str, Callable[[], tuple[Tensor, ...]]] = {
            "hidden": lambda: (ops.whole(states),),
            "pooled": lambda: (ops.whole(states), self.pooled(states, ops)),
            "tokens": lambda: (ops.whole(self.token_logits(states)),),
            "labels": lambda: (self.classifier(self.pooled(states, ops)),),
            "token_labels": lambda: (ops.whole(self.classifier(self.begun(states))),),
            "replaced": lambda: (ops.whole(self.classifier(self.transformed(states))),),
            "spans": lambda: spans(ops.whole(self.classifier(self.begun(states)))),
        }
        found = heads[self.config.head]()
        return found if self.sentence is None else (*found, self.sentence(states, ops))

    def pooled(self, states: Tensor, ops: Ops) -> Tensor:
        """Return what a text's labels are computed from: (..., D) -> (B, D)."""
        x = ops.mean(states) if self.config.pooling == "mean" else ops.whole(states)[:, 0]
        return self.begun(x) if self.config.head_norm else ACTIVATIONS[self.config.pooler](self.pooler(x))

    def begun(self, states: Tensor) -> Tensor:
        """Apply the norm that begins a head of labels, if it has one: (..., D) -> (..., D)."""
        return cast(Tensor, self.transform_norm(self.transformed(states))) if self.config.head_norm else states

    def token_logits(self, states: Tensor) -> Tensor:
        """Return the logits over the vocabulary: (..., D) -> (..., V)."""
        return cast(Tensor, self.projection(self.transform_norm(self.transformed(states))))

    def transformed(self, states: Tensor) -> Tensor:
        """Apply the linear layer and activation at the beginning of a head per token: (..., D) -> (..., E)."""
        return ACTIVATIONS[self.config.activation](self.transform(states))

    def _layer(self, number: int, bias: RelativeBias | None) -> Layer:
        config = self.config
        width = config.d_model
        attention = self._own() if self._own is not None else self._attention(number, bias)
        build = GatedFeedForward if config.gated else FeedForward
        feed_forward = build(width, config.feed_forward, config.activation, bias=config.feed_forward_bias)
        before = iter([self._norm(width) if number or config.first_norm else nn.Identity(), self._norm(width)])
        return Layer(
            attention, feed_forward, lambda: Residual(next(before), first=config.norm_first, dropout=config.dropout)
        )

    def _attention(self, number: int, bias: RelativeBias | None) -> Attention:
        config = self.config
        head_size = config.d_model // config.heads
        window = self._neighbourhoods.get(config.windows[number] if config.windows else 0)
        core = DotProduct(config.heads, config.heads, head_size**-0.5, bias=bias)
        rotary = self._rotaries[window is not None]
        return Attention(config.d_model, core, head_size, bias=config.attention_bias, rotary=rotary, window=window)

    def _rotary(self, base: float) -> Rotary | None:
        config = self.config
        if config.positions != "rotary":
            return None
        turns = speeds(base, config.d_model // config.heads)
        return Rotary(turns, config.max_length, cast(Pairing, config.rotary_pairing))

    def _norm(self, width: int) -> nn.Module:
        return NORMS["layer" if self.config.norm_bias else "layer without bias"](width, self.config.norm_epsilon)


NAMES = {  # head -> class name in transformers
    "hidden": "BertModel",
    "pooled": "BertModel",
    "tokens": "BertForMaskedLM",
    "labels": "BertForSequenceClassification",
    "token_labels": "BertForTokenClassification",
    "replaced": "BertForTokenClassification",
    "spans": "BertForQuestionAnswering",
}


def hugging_face(config: BertConfig) -> dict[str, object]:
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
    types = int(rng.choice([0, 2, 3])) if values["head"] in ("labels", "spans") else 0
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
        segment=bool(rng.integers(2)) or bool(types),
        token_types=types,
        norm_epsilon=float(rng.choice([1e-12, 1e-5])),
        pad_id=0,
        cls_id=1,
        sep_id=2,
        mask_id=3,
        **_draw_newer(rng, encoder_layers, has_shared=bool(distinct or buckets), head=values["head"]),
    )


def _draw_newer(rng: np.random.Generator, layers: int, *, has_shared: bool, head: str) -> dict[str, Any]:
    """Return random settings of newer encoders: norms before sublayers, gates, rotary positions, windows."""
    names = ("norm_first", "embedding_norm", "attention_bias", "feed_forward_bias", "norm_bias", "head_bias", "gated")
    found: dict[str, object] = {name: bool(rng.integers(2)) for name in names}
    windows: list[int] = rng.choice([0, 1, 2, 5], layers).tolist() if rng.integers(2) and not has_shared else []
    return found | {
        "first_norm": not found["norm_first"] or bool(rng.integers(2)),
        "head_norm": head in ("labels", "token_labels", "spans") and bool(rng.integers(2)),
        "rotary_base": float(rng.choice([100.0, 1e4])),
        "windows": tuple(windows),
        "sentence": sentence.draw(rng) if head in HIDDEN_STATES else (),
    }


_MODERN: dict[str, Any] = {
    **dict.fromkeys(("norm_first", "gated", "head_norm"), True),
    **dict.fromkeys(("first_norm", "attention_bias", "feed_forward_bias", "norm_bias", "head_bias", "segment"), False),
    "positions": "rotary",
    "rotary_base": 160000.0,
    "norm_epsilon": 1e-5,
    "head": "tokens",
}
_TINY: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "feed_forward", "max_length"), 64),
    "d_model": 32,
    "cls_id": 1,
    "sep_id": 2,
    "mask_id": 3,
}
# `bert-base` is the smaller model of Devlin et al. 2019, and `modernbert-base` that of Warner et al. 2024, with the
# heads of their training; the tiny ones are for tests and first tries.
PRESETS = {
    "bert-tiny": BertConfig(**_TINY, heads=4, encoder_layers=2, head="tokens"),
    "bert-base": BertConfig(head="tokens"),
    "modernbert-tiny": BertConfig(**_MODERN, **_TINY, heads=2, encoder_layers=3, windows=(0, 30, 3)),
    "modernbert-base": BertConfig(
        **_MODERN,
        vocab_size=50368,
        feed_forward=1152,
        encoder_layers=22,
        max_length=8192,
        windows=tuple(65 if layer % 3 else 0 for layer in range(22)),
        pad_id=50283,
        cls_id=50281,
        sep_id=50282,
        mask_id=50284,
    ),
}
ARCHITECTURE = Architecture(config=BertConfig, build=Bert, presets=PRESETS, hugging_face=hugging_face, draw=draw)
