"""Llama and related models as transformers saves them: Mistral, Qwen 2 and 3, Phi-3, SmolLM3."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from txport.checkpoints.families.bert import labelled, labels_of
from txport.checkpoints.family import ACTIVATIONS, BARE, Family, Published
from txport.checkpoints.keys import NOTHING
from txport.errors import ConfigError, quoted
from txport.models.config import MOST_LAYERS
from txport.models.rules import Drop, Rename, Rule, Spare, Split

LLAMA: dict[str, object] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
MISTRAL = {
    **LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
}
QWEN = {
    **LLAMA,
    "vocab_size": 151936,
    "intermediate_size": 22016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": 151645,  # of the published models; the class has no default
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
PHI = {
    **LLAMA,
    "vocab_size": 32064,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 32000,
    "pad_token_id": 32000,
}
SMOL = {
    **LLAMA,
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "pad_token_id": 128004,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "tie_word_embeddings": True,
    "rope_theta": 2e6,
    "no_rope_layer_interval": 4,
    "use_sliding_window": False,
}
DEFAULTS = {
    "llama": LLAMA,
    "mistral": MISTRAL,
    "ministral": MISTRAL,
    "qwen2": QWEN,
    "qwen3": {**QWEN, "head_dim": 128},
    "phi3": PHI,
    "smollm3": SMOL,
}
HEADS = {
    "ForSequenceClassification": "labels",
    "ForTokenClassification": "token_labels",
    "ForQuestionAnswering": "spans",
    BARE: "hidden",
}
CLASSES = "|".join(("ForCausalLM", *HEADS))
OF_TEXT = ("logit_cap", "tied", "projection_bias", "logit_scale")  # values that only classes that write text have
TEXT = "text"
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def of_class(config: Callable[[Published], dict[str, object]]) -> Callable[[Published], dict[str, object]]:
    """Return a function that gives the values of `LlamaConfig` for the class that a checkpoint was saved from.

    `config` gives those of classes that write text.
    """

    def found(values: Published) -> dict[str, object]:
        made = config(values)
        if (head := values.head(HEADS, TEXT)) == TEXT:
            return made
        made = {name: value for name, value in made.items() if name not in OF_TEXT} | {"head": head}
        if head == "token_labels":
            return made | {"labels": labels_of(values)}
        return made | (_labels(values) if head == "labels" else {})

    return found


def _labels(values: Published) -> dict[str, object]:
    """Return the labels and their problem type; raise `ConfigError` without a padding token."""
    if values.get("pad_token_id") is None:
        why = "by it transformers finds the last token of each text"
        raise ConfigError(f"a class with labels needs the pad_token_id, {why}; name it in config.json")
    return labelled(values)


def config(values: Published) -> dict[str, object]:
    """Return the values of `LlamaConfig` for classes that write text."""
    kind = values.type
    heads = values.get("num_attention_heads")
    biased = kind == "qwen2" or values.get("attention_bias", False)
    begin = values.get("bos_token_id")
    ends = values.tokens("eos_token_id")
    scaling = positions(values)
    longest = _longest(values, scaling)
    unturned = _unturned(values) if kind == "smollm3" else ()
    head_size = values.get("head_dim", values.get("hidden_size") // heads)
    return {
        "vocab_size": values.get("vocab_size"),
        "d_model": values.get("hidden_size"),
        "heads": heads,
        "key_heads": values.get("num_key_value_heads", heads),
        "head_size": values.get("head_dim", 0),
        "decoder_layers": values.get("num_hidden_layers"),
        "feed_forward": values.get("intermediate_size"),
        "max_length": longest,
        "activation": values.word("hidden_act", ACTIVATIONS),
        "norm_epsilon": values.get("rms_norm_eps"),
        "attention_bias": biased,
        "output_bias": biased and kind != "qwen2",
        "feed_forward_bias": values.get("mlp_bias", False),
        "head_norm": kind == "qwen3",
        "tied": values.get("tie_word_embeddings"),
        "rotary_base": float(scaling.get("rope_theta", values.get("rope_theta"))),
        "rotary_size": rotary_size(head_size, scaling["part"]),
        **_stretched(values, scaling),
        "unturned_layers": unturned,
        "windows": _windows(values, unturned, longest),
        "pad_id": values.get("pad_token_id", next(iter(ends), 0)),
        "bos_id": next(iter(ends), 0) if begin is None else begin,
        "eos_ids": ends,
        "add_bos": begin is not None and not kind.startswith("qwen"),
    }


def positions(values: Published) -> Mapping[str, Any]:
    """Return the rotary settings: `rope_scaling`, or `rope_parameters` of newer files; "kind" is the type.

    Raises `ConfigError` for unsupported settings.
    """
    found = {**values.get("rope_scaling", {}), **values.get("rope_parameters", {})}
    if any(isinstance(each, dict) for each in found.values()):
        raise ConfigError("rope_parameters per layer type are not supported")
    if strange := sorted(name for name in found.keys() - ROTARY if found[name] is not None):
        raise ConfigError(f"rope_parameters' {strange[0]} {quoted(found[strange[0]])} is not supported")
    kinds = {str(found[name]) for name in ("type", "rope_type") if found.get(name) is not None}
    if len(kinds) > 1:
        raise ConfigError(
            f"rope_scaling has the type {quoted(found['type'])} and another rope_type; they must be the same"
        )
    kind = next(iter(kinds), "default")
    if values.type == "phi3" and kind in ("su", "yarn"):  # older names of longrope
        kind = "longrope"
    part = found.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
    if part != 1 and values.type not in PARTIAL:
        raise ConfigError(f"partial_rotary_factor {quoted(part)} is not supported; it must be 1.0")
    return {**found, "kind": kind, "part": float(part)}


def local_positions(values: Published, kinds: Sequence[str], base: Any) -> tuple[Published, dict[str, object]]:
    """Return `values` with the positions of full attention, and those of layers with a window, without scaling.

    Newer files have `rope_parameters` per kind of layer; for others, `base` is that of layers with a window, if it is
    another one.
    """
    found = values.get("rope_parameters", {})
    base = values.get("rope_theta") if base is None else base
    if LOCAL in found or GLOBAL in found:
        local, values = found[LOCAL], values.changed(rope_parameters=found[GLOBAL])
        if (kind := local.get("rope_type", "default")) != "default":
            raise ConfigError(f"rope_parameters of {LOCAL} with the rope_type {quoted(kind)} are not supported")
        base = local["rope_theta"]
    layers = tuple(number for number, kind in enumerate(kinds) if kind == LOCAL)
    return values, {"rotary_local_layers": layers, "rotary_local_base": float(base)}


def rotary_size(head_size: int, part: float) -> int:
    """Return how many values of a head turn, 0 for all; raise `ConfigError` for a part that is none of them."""
    size = int(head_size * part)
    if size < 1:
        raise ConfigError(f"partial_rotary_factor {part} of heads of {head_size} is not supported: nothing would turn")
    return size if part != 1 else 0


def layer_kinds(values: Published, is_local: Callable[[int], object]) -> list[str]:
    """Return the attention kind of each layer: `layer_types`, or else local attention where `is_local(number)`.

    Raises `ConfigError` for invalid or unsupported `layer_types`.
    """
    count = number_of_layers(values)
    own = [LOCAL if is_local(number) else GLOBAL for number in range(count)]
    found = values.get("layer_types", own)
    if len(found) != count or set(found) - {LOCAL, GLOBAL}:
        raise ConfigError(f"layer_types must be {count} of {LOCAL} and {GLOBAL}, got {quoted(found)}")
    if values.type in ALIKE and list(found) != own:
        raise ConfigError(f"layer_types {quoted(found)} is not supported: all layers of a {values.type} are {own[0]}")
    return list(found)


def number_of_layers(values: Published) -> int:
    """Return `num_hidden_layers`; raise `ConfigError` beyond the limit, before a list of that length is made."""
    count: int = values.get("num_hidden_layers")
    if type(count) is int and count > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers must be at most {MOST_LAYERS}, got {count}")
    return count


ROTARY = {  # keys of rope_scaling and rope_parameters
    *("rope_theta", "rope_type", "type", "factor", "partial_rotary_factor", "original_max_position_embeddings"),
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    *("low_freq_factor", "high_freq_factor", "short_factor", "long_factor"),
}
ALIKE = ("llama", "gemma", "mistral", "phi3")  # all layers have one kind, regardless of layer_types
PARTIAL = ("phi3", "phi", "stablelm", "glm", "glm4", "nemotron", "persimmon", "gpt_neox")  # a part of each head turns
WITHOUT_WINDOWS = ("llama", "gemma")  # their classes have no windows, but their caches do
SWITCHED = ("qwen2", "qwen3", "smollm3")  # their classes check `use_sliding_window`; the others ignore it


def _windows(values: Published, unturned: tuple[int, ...], longest: int) -> tuple[int, ...]:
    """Return the window of each layer, 0 for full attention; () if no sequence is longer than the window."""
    kind = values.type
    size = values.get("sliding_window")
    is_on = values.get("use_sliding_window") if kind in SWITCHED else kind not in WITHOUT_WINDOWS
    is_used = size is not None and is_on
    some = values.get("max_window_layers") if kind.startswith("qwen") else 0  # so many first layers have full attention
    is_local = unturned.__contains__ if kind == "smollm3" else lambda number: number >= some
    kinds = layer_kinds(values, lambda number: is_used and is_local(number))
    if LOCAL not in kinds:
        return ()
    if not is_used or type(size) is not int or size < 1:
        need = f"layers with {LOCAL} need one that is used, of 1 token or more"
        raise ConfigError(f"sliding_window {quoted(size)} is not supported: {need}")
    return tuple(size if each == LOCAL else 0 for each in kinds) if size < longest else ()


def _unturned(values: Published) -> tuple[int, ...]:
    """Return the layers of a SmolLM3 without rotary positions: the last of each interval, or 0 in a list."""
    count = number_of_layers(values)
    interval = values.get("no_rope_layer_interval")
    turned = values.get("no_rope_layers", [int((number + 1) % interval != 0) for number in range(count)])
    if len(turned) != count or any(type(each) is not int or each not in (0, 1) for each in turned):
        raise ConfigError(f"no_rope_layers must be {count} of 0 and 1, got {quoted(turned)}")
    return tuple(number for number, is_turned in enumerate(turned) if not is_turned)


def _longest(values: Published, scaling: Mapping[str, object]) -> int:
    """Return the maximum sequence length for which positions are unscaled and the cache is complete."""
    bounds = [values.get("max_position_embeddings")]
    if values.type in WITHOUT_WINDOWS:
        bounds.append(values.get("sliding_window"))
    if scaling["kind"] == "longrope":
        bounds.append(_original(values, scaling))
    return int(min(each for each in bounds if each is not None))


def _original(values: Published, scaling: Mapping[str, Any]) -> int:
    """Return the length of the first training of a model with scaled positions."""
    found = scaling.get("original_max_position_embeddings")
    own = values.get("original_max_position_embeddings", values.get("max_position_embeddings"))
    longrope = scaling["kind"] == "longrope"
    return int(own if found is None or (longrope and values.get("original_max_position_embeddings")) else found)


def _stretched(values: Published, scaling: Mapping[str, Any]) -> dict[str, object]:
    """Return the values of `LlamaConfig` for scaled positions; "dynamic" is unscaled up to the maximum length."""
    kind = scaling["kind"]
    if kind in ("default", "dynamic"):
        return {}
    if kind not in STRETCHED:
        raise ConfigError(f"rope_scaling {quoted(kind)} is not supported; supported: {', '.join(STRETCHED)}")
    made = {"rotary_scaling": kind, **STRETCHED[kind](values, scaling)}
    attention = scaling.get("attention_factor") if kind in ATTENTION_SCALED else None
    return made if attention is None else made | {"rotary_attention": float(attention)}


def _linear(_: Published, scaling: Mapping[str, Any]) -> dict[str, Any]:
    return {"rotary_factor": float(scaling["factor"])}


def _llama3(_: Published, scaling: Mapping[str, Any]) -> dict[str, object]:
    return {
        "rotary_factor": float(scaling["factor"]),
        "rotary_original_length": scaling["original_max_position_embeddings"],
        "rotary_low": float(scaling["low_freq_factor"]),
        "rotary_high": float(scaling["high_freq_factor"]),
    }


def _yarn(values: Published, scaling: Mapping[str, Any]) -> dict[str, object]:
    if strange := sorted(name for name in ("mscale", "mscale_all_dim") if scaling.get(name) is not None):
        raise ConfigError(f"rope_scaling with {', '.join(strange)} is not supported")
    if {"short_factor", "long_factor"} & scaling.keys():
        raise ConfigError("rope_scaling 'yarn' with short_factor or long_factor is not supported")
    fast = scaling.get("beta_fast")
    slow = scaling.get("beta_slow")
    truncate = scaling.get("truncate")
    return {
        "rotary_truncate": True if truncate is None else truncate,
        "rotary_factor": float(scaling["factor"]),
        "rotary_original_length": _original(values, scaling),
        "rotary_fast": 32.0 if fast is None else float(fast),
        "rotary_slow": 1.0 if slow is None else float(slow),
    }


def _longrope(values: Published, scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Use the short factors, which apply to sequences up to the original length."""
    original = _original(values, scaling)
    factor = values.get("max_position_embeddings") / original
    if not values.get("original_max_position_embeddings"):
        factor = scaling.get("factor", factor)
    return {
        "rotary_factor": float(factor),
        "rotary_original_length": original,
        "rotary_divisors": tuple(map(float, scaling["short_factor"])),
    }


ATTENTION_SCALED = ("yarn", "longrope")  # the kinds for which transformers reads attention_factor
STRETCHED = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(model|transformer)\.", ""),  # the latter of some classes for questions
    Drop(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq$"),
    Rename(r"^embed_tokens\.", "target_embedding.tokens."),
    Rename(r"^norm\.", "decoder_norm."),
    Rename(r"^lm_head\.", "projection."),
    Rename(r"^(score|qa_outputs)\.", "classifier."),
    Rename(r"^layers\.", "decoder."),
    Split(r"\.self_attn\.qkv_proj\.", (".attention.query.", ".attention.key.", ".attention.value.")),  # of Phi-3
    Split(r"\.mlp\.gate_up_proj\.", (".feed_forward.gate.", ".feed_forward.inner.")),
    Rename(r"\.self_attn\.q_proj\.", ".attention.query."),
    Rename(r"\.self_attn\.k_proj\.", ".attention.key."),
    Rename(r"\.self_attn\.v_proj\.", ".attention.value."),
    Rename(r"\.self_attn\.o_proj\.", ".attention.output."),
    Rename(r"\.self_attn\.q_norm\.", ".attention.query_norm."),
    Rename(r"\.self_attn\.k_norm\.", ".attention.key_norm."),
    Rename(r"\.mlp\.gate_proj\.", ".feed_forward.gate."),
    Rename(r"\.mlp\.up_proj\.", ".feed_forward.inner."),
    Rename(r"\.mlp\.down_proj\.", ".feed_forward.outer."),
    Rename(r"\.input_layernorm\.", ".attention_residual.norm."),
    Rename(r"\.post_attention_layernorm\.", ".feed_forward_residual.norm."),
)
UNWRITTEN = (Spare(r"projection\."),)  # the head of text is unused in models that write none


def of_head(
    kinds: Iterable[str], own: Mapping[str, Callable[[object], tuple[Rule, ...]]] | None = None
) -> dict[str, Callable[[object], tuple[Rule, ...]]]:
    """Return rules per `model_type`, given the config: those of `own`, and those of the model's head."""

    def rules(config: Any, first: Callable[[Any], tuple[Rule, ...]]) -> tuple[Rule, ...]:
        return (*first(config), *(() if config.head == TEXT else UNWRITTEN))

    return {kind: partial(rules, first=(own or {}).get(kind, lambda _: ())) for kind in kinds}


UNUSED = {
    "attention_bias": "the classes of Qwen 2 always have biases of queries, keys and values",
    "pretraining_tp": "it computes the same products in parts",
    **dict.fromkeys(("use_sliding_window", "max_window_layers"), "only Qwen's and SmolLM3's classes ask for it"),
    **dict.fromkeys(("max_sequence_length", "model_max_length"), NOTHING),
}
OFF: dict[str, tuple[object, ...]] = {"rope_interleaved": (False,), "use_mrope": (False,)}
PHI3 = {"full_attn_mod": (1,), "interpolate_factor": (1,), "lm_head_bias": (False,)}  # of Phi-4-mini
FAMILY = Family(
    defaults=DEFAULTS,
    architecture="llama",
    classes=CLASSES,
    config=of_class(config),
    weights=WEIGHTS,
    own_weights=of_head(DEFAULTS),
    unused=UNUSED,
    off={**OFF, **PHI3},
)
