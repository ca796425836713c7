"""The decoder-only Transformer of Touvron et al. 2023, "LLaMA", and of Llama 2 and 3, Qwen, Mistral and Gemma.

With another head than text, its layers encode whole texts, as in Qwen3-Embedding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import nn

from txport.errors import quoted
from txport.models import heads, sentence
from txport.models.architecture import Architecture
from txport.models.config import LARGEST, LONGEST, Config, choice, layers, real, require_token, size
from txport.models.facts import EXCLUSIVE, MULTI_LABEL, REGRESSION, Facts, Tokens
from txport.models.heads import LABELS, OF_LABELS, SPANS, STATES, TEXT, TOKEN_LABELS
from txport.models.model import Model
from txport.models.parts import (
    NORMS,
    Alibi,
    Attention,
    DotProduct,
    Embedding,
    Experts,
    FeedForward,
    GatedFeedForward,
    Layer,
    Pairing,
    Residual,
    Rotary,
    RoundedAlibi,
    SoftCap,
    Window,
    kept_by_yarn,
    speeds,
)
from txport.models.stacks import DecoderOnly, TextEncoder, causal_facts

Floats = NDArray[np.float64]
SCALED = ("linear", "llama3", "yarn")  # kinds that need rotary_factor >= 1
WITH_ORIGINAL = ("dynamic", "llama3", "yarn", "longrope")
READ_BY = {  # fields of rotary_scaling -> the kinds that read them
    "rotary_factor": ("linear", "llama3", "longrope", "yarn"),
    "rotary_original_length": WITH_ORIGINAL,
    "rotary_low": ("llama3",),
    "rotary_high": ("llama3",),
    "rotary_fast": ("yarn",),
    "rotary_slow": ("yarn",),
    "rotary_truncate": ("yarn",),
}
NOT_WITH_ALIBI = (
    "rotary_scaling",
    "rotary_size",
    "rotary_local_layers",
    "unturned_layers",
    "attention_cap",
    "both_ways",
)
OF_EXPERTS = ("experts_per_token", "expert_size", "experts_normalised", "shared_expert_size", "dense_layers")
OF_TEXT = ("logit_cap", "tied", "projection_bias", "logit_scale")  # fields of the head that writes text


@dataclass(frozen=True, kw_only=True, repr=False)
class LlamaConfig(Config):
    """The sizes and options of one decoder-only Transformer with rotary positions (Touvron et al. 2023).

    `max_length` is the longest sequence in tokens, prompt included. `key_heads` 0 means `heads`; `head_size` 0 means
    D / N. Biases: `attention_bias` for the projections of queries, keys and values, `output_bias` for the output
    projection of attention, `feed_forward_bias` for the feed-forward. `head_norm` normalises each head of queries and
    keys before rotation. `result_norm` normalises the output of each sublayer before the residual addition.
    `attention_scale` multiplies scores; 0 means 1 / sqrt(head_size). `attention_cap` and `logit_cap` are soft caps of
    scores and logits; 0 means no cap. `tied`: projection and token embedding share one matrix. `scale_embedding`
    multiplies token embeddings by sqrt(d_model). `rotary_*` are the rotary positions, see `frequencies`;
    `rotary_local_layers`, counted from 0, use the base `rotary_local_base` without scaling, and `unturned_layers` have
    no positions. `windows` has the size of the sliding window per layer, in tokens; 0 means full attention, and an
    empty list means full attention in all layers. `pad_id` pads the prompts of a batch; padding is masked, so it can be
    any token. `add_bos`: sequences begin with `bos_id`.

    `norm` is the kind of all norms. `parallel`: attention and feed-forward read the same input, with `shared_norm`
    after one norm. `input_norm`: sublayers normalise their input. `joint_norms`: with `head_norm`, all heads of a query
    or key are normalised at once. `gated`: feed-forwards have a gate. `projection_bias`: the projection has a bias.
    Only the first `rotary_size` elements of a head are rotated; 0 means all. `embedding_scale`, `residual_scale` and
    `logit_scale` multiply embeddings, the outputs of sublayers, and the states before the projection.

    With `alibi`, the steepest exponent of `Alibi`, no position is rotated; `alibi_factor`, if it is not 0, is that of
    `RoundedAlibi`.
    `embedding_norm` normalises embeddings. `clip` limits projected queries, keys and values; 0 means not. With
    `attention_sinks`, attention has the sinks of `DotProduct`. `gate_limit` is the limit of `GatedFeedForward`.

    With `experts`, feed-forwards are `Experts` of the inner size `expert_size`, of which a token takes
    `experts_per_token`; `experts_normalised`: their probabilities are divided by their sum. `shared_expert_size`, if it
    is not 0, is the inner size of an expert that all tokens take. With `feed_forward_bias`, the router has a bias too.
    `dense_layers`, counted from 0, have no experts.

    `head` is "text" (logits of the next token), or whole texts are read without a cache: "hidden" gives their last
    hidden states, "labels" logits over `labels` for the last token that is not `pad_id`, "token_labels" logits for each
    token, "spans" those of the first and the last token of an answer. `problem_type` is that of the head "labels":
    exclusive ("single_label_classification"), independent ("multi_label_classification") or numbers ("regression").
    Texts have up to `max_length` tokens, or up to `text_length` if it is not 0, and with `both_ways` tokens attend to
    later ones too, through windows as to earlier ones. `sentence` are the steps from the last hidden states to the
    vector of a text: see `models.sentence`.
    """

    RARE = frozenset(
        {"unturned_layers", "windows", "norm", "parallel", "shared_norm", "input_norm", "joint_norms", "gated"}
        | {"projection_bias", "rotary_size", "embedding_scale", "residual_scale", "logit_scale"}
        | {"alibi", "alibi_factor", "embedding_norm", "clip", "experts", "experts_per_token", "expert_size"}
        | {"experts_normalised", "shared_expert_size", "dense_layers", "rotary_truncate", "attention_sinks"}
        | {"gate_limit", "head", "both_ways", "text_length", "labels", "problem_type", "sentence"}
    )
    vocab_size: int = size()
    d_model: int = size(4096)
    heads: int = size(32)
    key_heads: int = size(0, least=0)
    head_size: int = size(0, least=0)
    decoder_layers: int = layers(32)
    feed_forward: int = size(11008)
    max_length: int = size(2048, least=2, most=LONGEST)
    activation: str = choice("silu", "gelu", "gelu_tanh", "relu", "relu2", "quick_gelu")
    norm_epsilon: float = real(1e-5, above=0, below=1)
    attention_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    head_norm: bool = False
    result_norm: bool = False
    attention_scale: float = real(0.0, least=0, below=LARGEST)
    attention_cap: float = real(0.0, least=0, below=LARGEST)
    logit_cap: float = real(0.0, least=0, below=LARGEST)
    tied: bool = False
    scale_embedding: bool = False
    rotary_pairing: str = choice("halves", "interleaved")
    rotary_base: float = real(10000.0, above=1, below=1e12)
    rotary_scaling: str = choice("none", "linear", "dynamic", "llama3", "yarn", "longrope")
    rotary_factor: float = real(1.0, above=0, below=LARGEST)
    rotary_original_length: int = size(0, least=0, most=LONGEST)
    rotary_low: float = real(1.0, above=0, below=LARGEST)
    rotary_high: float = real(4.0, above=0, below=LARGEST)
    rotary_fast: float = real(32.0, above=0, below=LARGEST)
    rotary_slow: float = real(1.0, above=0, below=LARGEST)
    rotary_truncate: bool = True
    rotary_attention: float = real(0.0, least=0, below=LARGEST)
    rotary_divisors: tuple[float, ...] = ()
    rotary_local_layers: tuple[int, ...] = ()
    rotary_local_base: float = real(10000.0, above=1, below=1e12)
    unturned_layers: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    norm: str = choice("rms", "layer", "layer without bias")
    parallel: bool = False
    shared_norm: bool = False
    input_norm: bool = True
    joint_norms: bool = False
    gated: bool = True
    projection_bias: bool = False
    rotary_size: int = size(0, least=0)
    embedding_scale: float = real(1.0, above=0, below=LARGEST)
    residual_scale: float = real(1.0, above=0, below=LARGEST)
    logit_scale: float = real(1.0, above=0, below=LARGEST)
    alibi: float = real(0.0, least=0, below=LARGEST)
    alibi_factor: float = real(0.0, least=0, below=LARGEST)
    embedding_norm: bool = False
    clip: float = real(0.0, least=0, below=LARGEST)
    attention_sinks: bool = False
    gate_limit: float = real(0.0, least=0, below=LARGEST)
    experts: int = size(0, least=0, most=1 << 10)
    experts_per_token: int = size(0, least=0, most=1 << 10)
    expert_size: int = size(0, least=0)
    experts_normalised: bool = False
    shared_expert_size: int = size(0, least=0)
    dense_layers: tuple[int, ...] = ()
    pad_id: int = 0
    bos_id: int = 1
    eos_ids: tuple[int, ...] = (2,)
    add_bos: bool = True
    head: str = choice(TEXT, STATES, LABELS, TOKEN_LABELS, SPANS)
    labels: tuple[str, ...] = ()
    problem_type: str = choice(EXCLUSIVE, MULTI_LABEL, REGRESSION)
    sentence: tuple[str, ...] = ()
    both_ways: bool = False
    text_length: int = size(0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.key_heads:
            object.__setattr__(self, "key_heads", self.heads)
        if not self.head_size:
            object.__setattr__(self, "head_size", self.d_model // self.heads)

    def problems(self) -> Iterator[str]:
        """See `Config.problems`."""
        if not self.head_size and self.d_model % self.heads:
            yield f"heads must divide d_model, got {self.heads} for {self.d_model}; or give a head_size"
        elif (head_size := self.head_size or self.d_model // self.heads) % 2 and not self.alibi:
            yield f"rotary positions need an even head_size, got {head_size}"
        elif self.rotary_size % 2 or self.rotary_size > head_size:
            yield f"rotary_size must be even and at most the head_size {head_size}, got {self.rotary_size}"
        if self.shared_norm and not (self.parallel and self.input_norm):
            yield "shared_norm needs parallel and input_norm"
        if self.gate_limit and not self.gated:
            yield f"gate_limit is for gated models, got {self.gate_limit}"
        if self.joint_norms and not self.head_norm:
            yield "joint_norms needs head_norm, got false"
        if self.scale_embedding and self.embedding_scale != 1:
            yield f"scale_embedding and embedding_scale exclude each other, got {self.embedding_scale}"
        if self.key_heads and self.heads % self.key_heads:
            yield f"key_heads must divide heads, got {self.key_heads} for {self.heads}"
        yield from _rotary_problems(self)
        yield from _alibi_problems(self)
        yield from _expert_problems(self)
        yield from heads.problems(self, OF_TEXT, ("both_ways",))
        fitting = [each for each in self.windows if 0 <= each <= LONGEST]
        if self.windows and not len(fitting) == len(self.windows) == self.decoder_layers:
            need = f"none, or {self.decoder_layers} numbers from 0 to {LONGEST}, one a layer"
            yield f"windows must be {need}, got {quoted(list(self.windows))}"
        tokens = {"pad_id": self.pad_id, "bos_id": self.bos_id if self.add_bos else 0}
        tokens |= {f"eos_ids[{at}]": each for at, each in enumerate(self.eos_ids)}
        if not self.eos_ids:
            yield "eos_ids must name at least one token"
        for name, token in tokens.items():
            yield from require_token(name, token, "model's", self.vocab_size)


def _rotary_problems(config: LlamaConfig) -> Iterator[str]:
    """Yield a message for each invalid setting of rotary positions, and of the lists of layers."""
    kind = config.rotary_scaling
    original = config.rotary_original_length
    for name, kinds in READ_BY.items():
        value = getattr(config, name)
        if kind not in kinds and value != getattr(LlamaConfig, name):
            yield f"{name} is for rotary_scaling {' or '.join(map(repr, kinds))}, got {value} for {kind!r}"
    if kind in SCALED and config.rotary_factor < 1:
        yield f"rotary_scaling {kind!r} needs a rotary_factor of at least 1, got {config.rotary_factor}"
    if kind in WITH_ORIGINAL and original < 2:
        yield f"rotary_scaling {kind!r} needs the rotary_original_length that the model was trained for, got {original}"
    elif kind == "dynamic" and config.max_length > original:
        yield (
            "rotary_scaling 'dynamic' turns all positions anew for each length beyond rotary_original_length, "
            f"which no cache allows: max_length must be at most {original}, got {config.max_length}"
        )
    if kind == "llama3" and config.rotary_low >= config.rotary_high:
        yield f"rotary_low must be below rotary_high, got {config.rotary_low} and {config.rotary_high}"
    if kind == "yarn" and not 0 < config.rotary_slow <= config.rotary_fast:
        yield f"rotary_slow must be in (0, rotary_fast], got {config.rotary_slow} and {config.rotary_fast}"
    turned = config.rotary_size or config.head_size or config.d_model // config.heads
    pairs = turned // 2 if kind == "longrope" else 0
    if len(config.rotary_divisors) != pairs or not all(0 < each < math.inf for each in config.rotary_divisors):
        count = len(config.rotary_divisors)
        yield f"rotary_divisors must be {pairs} positive numbers for rotary_scaling {kind!r}, got {count}"
    count = config.decoder_layers
    for name in ("rotary_local_layers", "unturned_layers", "dense_layers"):
        some = getattr(config, name)
        if list(some) != sorted(set(some)) or not all(0 <= layer < count for layer in some):
            yield f"{name} must be numbers of layers from 0 to {count - 1} in order, got {quoted(list(some))}"
    if both := sorted(set(config.rotary_local_layers) & set(config.unturned_layers)):
        yield f"rotary_local_layers and unturned_layers must have no layer in common, got {both[0]} in both"


def _alibi_problems(config: LlamaConfig) -> Iterator[str]:
    """Yield a message for each field that has no meaning with ALiBi, or without it."""
    others = NOT_WITH_ALIBI if config.alibi else ("alibi_factor",)
    for name in others:
        if (value := getattr(config, name)) != getattr(LlamaConfig, name):
            yield f"{name} is for models {'without' if config.alibi else 'with'} alibi, got {quoted(value)}"
    if config.alibi_factor and any(config.windows):
        yield f"alibi_factor is for models without windows, got {config.alibi_factor}"


def _expert_problems(config: LlamaConfig) -> Iterator[str]:
    """Yield a message for each setting of experts that has no meaning."""
    if not config.experts:
        for name in OF_EXPERTS:
            if (value := getattr(config, name)) != getattr(LlamaConfig, name):
                yield f"{name} is for models with experts, got {quoted(value)}"
        return
    if not 0 < config.experts_per_token <= config.experts:
        yield f"experts_per_token must be from 1 to the {config.experts} experts, got {config.experts_per_token}"
    if not (config.expert_size and config.gated):
        yield "experts need an expert_size above 0, and are gated"


def frequencies(config: LlamaConfig) -> tuple[Floats, float]:
    """Return the frequency of each pair of a head's elements, (H / 2,) radians per position, and the scale of `Rotary`.

    `rotary_scaling` changes the frequencies base^(-2i / H). With r = rotations within `rotary_original_length`:
    "linear" (Chen et al. 2023): all are divided by `rotary_factor`.
    "dynamic": unchanged, because `max_length` must be at most `rotary_original_length`.
    "llama3": divided if r <= `rotary_low`, kept if r >= `rotary_high`, interpolated linearly in r between them.
    "yarn" (Peng et al. 2023): divided if r <= `rotary_slow`, kept if r >= `rotary_fast`, with a linear ramp over pairs,
    from a whole pair to another one with `rotary_truncate`.
    "longrope" (Ding et al. 2024): each is divided by its number in `rotary_divisors`.
    The scale is `rotary_attention`. If that is 0, the scale is the default of yarn or longrope, and otherwise 1.
    """
    size = config.rotary_size or config.head_size
    own = speeds(config.rotary_base, size)
    kind = config.rotary_scaling
    factor = config.rotary_factor
    original = config.rotary_original_length
    attention = config.rotary_attention
    if kind == "linear":
        own = own / factor
    elif kind == "llama3":
        turns = original * own / (2 * math.pi)
        kept = np.clip((turns - config.rotary_low) / (config.rotary_high - config.rotary_low), 0, 1)
        own = own * (kept + (1 - kept) / factor)
    elif kind == "yarn":
        fast = config.rotary_fast
        slow = config.rotary_slow
        kept = kept_by_yarn(size // 2, config.rotary_base, original, fast, slow, truncate=config.rotary_truncate)
        own = own * (kept + (1 - kept) / factor)
        attention = attention or 0.1 * math.log(factor) + 1
    elif kind == "longrope":
        own = own / np.array(config.rotary_divisors)
        attention = attention or math.sqrt(1 + math.log(max(factor, 1)) / math.log(original))
    return own, attention or 1.0


def facts(config: LlamaConfig) -> Facts:
    """Return the facts about a model of this config."""
    tokens = Tokens(
        size=config.vocab_size,
        longest=config.text_length or config.max_length,
        pad=config.pad_id,
        ends=config.eos_ids,
        before=(config.bos_id,) if config.add_bos else (),
    )
    windows = tuple(sorted({each for each in config.windows if each}))
    if config.head != TEXT:
        return heads.facts_of(config, tokens, windows)
    return causal_facts(
        width=config.d_model,
        target=tokens,
        layers=config.decoder_layers,
        key_heads=config.key_heads,
        head_size=config.head_size,
        has_plain_logits=not (config.logit_cap or config.projection_bias),
        windows=windows,
    )


class Llama(DecoderOnly):
    """The model that writes text."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(
            config,
            facts(config),
            **_stack(config),
            tied=config.tied,
            scale=config.logit_scale,
            output_bias=config.projection_bias,
            logit_cap=_cap(config.logit_cap),
        )


class LlamaEncoder(TextEncoder):
    """The model that encodes whole texts."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, facts(config), **_stack(config), sentence=config.sentence)


def build(config: LlamaConfig) -> Model:
    """Build a model of this config."""
    return Llama(config) if config.head == TEXT else LlamaEncoder(config)


def _stack(config: LlamaConfig) -> dict[str, Any]:
    """Return the embedding, the layers and the last norm, as `DecoderOnly` and `TextEncoder` take them."""
    pairing = cast(Pairing, config.rotary_pairing)
    turns, scale = frequencies(config)
    alibi = _alibi(config) if config.alibi else None
    rotary = None if config.alibi else Rotary(turns, config.max_length, pairing, scale)
    local = Rotary(speeds(config.rotary_local_base, 2 * len(turns)), config.max_length, pairing)
    others = dict.fromkeys(config.rotary_local_layers, local) | dict.fromkeys(config.unturned_layers)
    windows = _windows(config)
    sizes = config.windows or (0,) * config.decoder_layers
    kinds = iter([(number, others.get(number, rotary), windows.get(size)) for number, size in enumerate(sizes)])
    norm = NORMS[config.norm](config.d_model, config.norm_epsilon) if config.embedding_norm else None
    factor = math.sqrt(config.d_model) if config.scale_embedding else config.embedding_scale
    return {
        "embedding": Embedding(config.vocab_size, config.d_model, scale=factor, norm=norm),
        "layer": lambda: _layer(config, *next(kinds), alibi),
        "layers": config.decoder_layers,
        "final_norm": NORMS[config.norm](config.d_model, config.norm_epsilon),
    }


def _windows(config: LlamaConfig) -> dict[int, Window]:
    """Return the window for each size in the config; 0 stands for all tokens, before or to both sides."""
    causal = config.head != TEXT and not config.both_ways
    windows = {size: Window(size, both_ways=config.both_ways, causal=causal) for size in config.windows if size}
    return windows | ({0: Window(config.max_length, causal=True)} if causal else {})


def _alibi(config: LlamaConfig) -> Alibi | RoundedAlibi:
    if config.alibi_factor:
        return RoundedAlibi(config.heads, config.alibi, config.max_length, config.alibi_factor)
    return Alibi(config.heads, config.alibi)


def _cap(limit: float) -> SoftCap | None:
    return SoftCap(limit) if limit else None


def _layer(
    config: LlamaConfig, number: int, rotary: Rotary | None, window: Window | None, alibi: Alibi | RoundedAlibi | None
) -> Layer:
    norm = partial(NORMS[config.norm], config.d_model, config.norm_epsilon)
    many = (config.heads, config.key_heads) if config.joint_norms else (1, 1)
    head_norms = [NORMS[config.norm](each * config.head_size, config.norm_epsilon) for each in many]
    scale = config.attention_scale or config.head_size**-0.5
    cap, sinks = _cap(config.attention_cap), config.attention_sinks
    attention = Attention(
        config.d_model,
        DotProduct(config.heads, config.key_heads, scale, bias=alibi, cap=cap, sinks=sinks),
        config.head_size,
        bias=config.attention_bias,
        output_bias=config.output_bias,
        rotary=rotary,
        query_norm=head_norms[0] if config.head_norm else None,
        key_norm=head_norms[1] if config.head_norm else None,
        joint_norms=config.joint_norms,
        window=window,
        clip=config.clip,
    )
    shared = norm() if config.shared_norm else None

    def around() -> Residual:
        before = shared or (norm() if config.input_norm else nn.Identity())
        return Residual(
            before, first=True, result_norm=norm() if config.result_norm else None, scale=config.residual_scale
        )

    return Layer(attention, _feed_forward(config, number), around, parallel=config.parallel)


def _feed_forward(config: LlamaConfig, number: int) -> FeedForward | GatedFeedForward | Experts:
    """Return the feed-forward of a layer."""
    if not config.experts or number in config.dense_layers:
        build = partial(GatedFeedForward, limit=config.gate_limit) if config.gated else FeedForward
        return build(config.d_model, config.feed_forward, config.activation, bias=config.feed_forward_bias)
    bias = config.feed_forward_bias
    expert = partial(GatedFeedForward, config.d_model, activation=config.activation, bias=bias, limit=config.gate_limit)
    return Experts(
        config.d_model,
        partial(expert, inner=config.expert_size),
        config.experts,
        config.experts_per_token,
        normalised=config.experts_normalised,
        bias=bias,
        shared=expert(inner=config.shared_expert_size) if config.shared_expert_size else None,
    )


def hugging_face(config: LlamaConfig) -> dict[str, object]:
    """Return the `config.json` of a model that Optimum and transformers.js support.

    It is a Gemma 3 with `result_norm`, a Qwen 3 with only `head_norm`, otherwise a Llama. A Llama is replaced by a
    SmolLM3 if some layers have no positions, else by a Mistral if all layers have windows, or a Qwen 2 if some have.
    These models have one window size: the largest is written, and the graphs have the actual ones. If heads x head_size
    is not D, it is a Gemma or Gemma 3, because `head_dim` is read only for these.
    """
    kind, name = PUBLISHED[config.head_norm, config.result_norm]
    some: dict[str, object] = {}
    if any(config.windows):
        kinds = ["sliding_attention" if each else "full_attention" for each in config.windows]
        largest = max(config.windows)
        size = 2 * (largest - 1) if config.both_ways else largest  # transformers halves it
        some = {"sliding_window": size, "use_sliding_window": True, "layer_types": kinds}
    if kind == "llama" and config.unturned_layers:
        kind = "smollm3"
        name = "SmolLM3"
        some["no_rope_layers"] = [int(layer not in config.unturned_layers) for layer in range(config.decoder_layers)]
    elif kind == "llama" and some:
        kind, name = ("mistral", "Mistral") if all(config.windows) else ("qwen2", "Qwen2")
    if config.heads * config.head_size != config.d_model:
        kind, name = ("gemma3_text", "Gemma3") if any(config.windows) or config.result_norm else ("gemma", "Gemma")
        some.pop("no_rope_layers", None)
    if kind == "mistral":
        some = {"sliding_window": some["sliding_window"]}  # all layers of a Mistral are the same
    of_texts = "Text" if kind == "gemma3_text" and config.head != TEXT else ""
    return {
        "model_type": kind,
        "architectures": [f"{name}{of_texts}{SUFFIXES[config.head]}"],
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": config.feed_forward,
        "num_hidden_layers": config.decoder_layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.key_heads,
        "head_dim": config.head_size,
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation),
        "max_position_embeddings": config.max_length,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "tie_word_embeddings": config.tied,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.feed_forward_bias,
        **some,
        **({"use_bidirectional_attention": True} if config.both_ways else {}),
    }


SUFFIXES = {
    TEXT: "ForCausalLM",
    STATES: "Model",
    LABELS: "ForSequenceClassification",
    TOKEN_LABELS: "ForTokenClassification",
    SPANS: "ForQuestionAnswering",
}  # head -> end of the name of a class in transformers
# By head_norm and result_norm. Gemma 2 is not used: Optimum assumes that its caches have as many heads as its queries.
PUBLISHED = {
    (False, False): ("llama", "Llama"),
    (True, False): ("qwen3", "Qwen3"),
    (False, True): ("gemma3_text", "Gemma3"),
    (True, True): ("gemma3_text", "Gemma3"),
}


DRAWN_LAST = ("attention_sinks", "rotary_truncate")  # so that a seed draws the same other fields as before


def draw(rng: np.random.Generator) -> LlamaConfig:
    """Return a small random config of any variant."""
    choices = {name: allowed for name, allowed in LlamaConfig.choices().items() if name not in ("head", *OF_LABELS)}
    values: dict[str, Any] = {name: str(rng.choice(allowed)) for name, allowed in choices.items()}
    for each in dataclasses.fields(LlamaConfig):
        if each.type == "bool" and each.name not in DRAWN_LAST:
            values[each.name] = each.name != "both_ways" and bool(rng.integers(2))
    for name, some in {"attention_scale": (0.1, 0.5), "attention_cap": (2.0, 50.0), "logit_cap": (3.0, 30.0)}.items():
        values[name] = float(rng.choice([0.0, *some]))
    key_heads = int(rng.choice([1, 2]))
    head_size = int(rng.choice([16, 32]))
    layers = int(rng.integers(1, 4))
    longest = int(rng.integers(8, 40))
    values["rotary_size"] = int(rng.choice([0, 16]))
    values["shared_norm"] &= values["parallel"] and values["input_norm"]
    values["joint_norms"] &= values["head_norm"]
    values["embedding_scale"] = 1.0 if values["scale_embedding"] else float(rng.choice([0.5, 12.0]))
    values["residual_scale"] = float(rng.choice([1.0, 0.3]))
    values["logit_scale"] = float(rng.choice([1.0, 0.2]))
    kind = values["rotary_scaling"]
    if kind in SCALED:
        values["rotary_factor"] = float(rng.choice([2.0, 8.0]))
    if kind in WITH_ORIGINAL:
        values["rotary_original_length"] = longest if kind == "dynamic" else max(4, longest // 2)
    if kind == "longrope":
        values["rotary_divisors"] = tuple(
            float(each) for each in rng.uniform(1, 4, (values["rotary_size"] or head_size) // 2)
        )
    layered = _draw_layers(rng, layers)
    if kind == "none" and rng.integers(2):
        values |= {"alibi": 8.0, "rotary_size": 0, "attention_cap": 0.0}
        layered = {"windows": layered["windows"]}
        values["alibi_factor"] = 0.0 if layered["windows"] else float(rng.choice([0.0, 0.3]))
    if values["gated"] and not values["feed_forward_bias"] and rng.integers(2):
        count = int(rng.integers(1, 6))
        values |= {"experts": count, "experts_per_token": int(rng.integers(1, count + 1)), "expert_size": 32}
        values |= {"shared_expert_size": int(rng.choice([0, 16])), "dense_layers": (0,) if rng.integers(2) else ()}
    values["experts_normalised"] &= "experts" in values
    config = LlamaConfig(
        **values,
        clip=float(rng.choice([0.0, 1.0])),
        vocab_size=int(rng.integers(8, 60)),
        d_model=int(rng.choice([16, 24, 32])),
        heads=key_heads * int(rng.choice([1, 2, 3])),
        key_heads=key_heads,
        head_size=head_size,
        decoder_layers=layers,
        feed_forward=int(rng.integers(8, 40)),
        max_length=longest,
        rotary_local_base=float(rng.choice([100.0, 1e4])),
        **layered,
    )
    found = config if rng.integers(4) else _encoding(config, rng)
    last: dict[str, Any] = {
        "attention_sinks": bool(rng.integers(2)),
        "rotary_truncate": kind != "yarn" or bool(rng.integers(2)),
        "gate_limit": float(rng.choice([0.0, 0.5])) if config.gated else 0.0,
        "feed_forward_bias": config.feed_forward_bias or (bool(config.experts) and bool(rng.integers(2))),
    }
    return dataclasses.replace(found, **last)


def _encoding(config: LlamaConfig, rng: np.random.Generator) -> LlamaConfig:
    """Return a config of the same layers, for whole texts."""
    usual = {name: getattr(LlamaConfig, name) for name in OF_TEXT}
    labels = tuple(f"label {number}" for number in range(rng.integers(4)))
    own: dict[str, Any] = {"head": TOKEN_LABELS if labels and rng.integers(2) else LABELS if labels else STATES}
    if own["head"] == LABELS:
        own["problem_type"] = str(rng.choice(LlamaConfig.choices()["problem_type"]))
    elif not labels:
        own["sentence"] = sentence.draw(rng)
        own = own if own["sentence"] or rng.integers(2) else {"head": SPANS}
    return dataclasses.replace(
        config, **usual, **own, labels=labels, both_ways=not config.alibi and bool(rng.integers(2))
    )


def _draw_layers(rng: np.random.Generator, layers: int) -> dict[str, Any]:
    """Return random per-layer settings: rotary positions, and windows so short that sequences are longer."""
    kinds = rng.choice(["local", "none", "scaled"], layers, p=[0.3, 0.2, 0.5])
    windows: list[int] = rng.choice([0, 1, 2, 5], layers).tolist() if rng.integers(2) else []
    return {
        "rotary_local_layers": tuple(at for at, kind in enumerate(kinds) if kind == "local"),
        "unturned_layers": tuple(at for at, kind in enumerate(kinds) if kind == "none"),
        "windows": tuple(windows),
    }


SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "d_model": 32,
    "heads": 4,
    "key_heads": 2,
    "head_size": 16,
    "decoder_layers": 2,
    "feed_forward": 64,
    "max_length": 64,
}
# Those that end with `-tiny` are for tests and first tries; `llama-125m` has about as many parameters as the smallest
# GPT-2, in the proportions of this family.
PRESETS = {
    "llama-tiny": LlamaConfig(
        vocab_size=64, d_model=64, heads=4, key_heads=2, decoder_layers=2, feed_forward=128, max_length=64
    ),
    "llama-windows-tiny": LlamaConfig(**SMALL | {"decoder_layers": 3}, unturned_layers=(2,), windows=(4, 3, 0)),
    "llama-alibi-tiny": LlamaConfig(**SMALL, alibi=8.0, clip=0.5, embedding_norm=True, norm="layer", gated=False),
    "llama-experts-tiny": LlamaConfig(
        **SMALL, experts=4, experts_per_token=2, expert_size=32, experts_normalised=True, shared_expert_size=32
    ),
    "llama-sinks-tiny": LlamaConfig(
        **SMALL,
        attention_sinks=True,
        windows=(4, 0),
        experts=4,
        experts_per_token=2,
        expert_size=32,
        experts_normalised=True,
        feed_forward_bias=True,
        gate_limit=0.3,
        activation="quick_gelu",
    ),
    "llama-125m": LlamaConfig(
        vocab_size=32000,
        d_model=768,
        heads=12,
        key_heads=4,
        decoder_layers=14,
        feed_forward=2560,
        max_length=2048,
        tied=True,
    ),
}
ARCHITECTURE = Architecture(config=LlamaConfig, build=build, presets=PRESETS, hugging_face=hugging_face, draw=draw)
