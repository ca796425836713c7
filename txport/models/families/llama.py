"""Llama and its kin: Mistral, Qwen 2 and 3, Gemma, Phi-3, as transformers saves them.

A model that attends to a window of its last tokens alone is the same up to the length of that window, which is then
the longest sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txport.errors import ConfigError, quoted
from txport.models.family import ACTIVATIONS, Family, Published
from txport.models.weights import Drop, Rename, Rule, Split

GEMMA = "gemma"


def config(values: Published) -> dict[str, Any]:
    """The keys of `LlamaConfig`."""
    kind = values.type
    values.require("partial_rotary_factor", 1.0)
    values.require("pretraining_tp", 1)
    name = "hidden_activation" if kind == GEMMA and values.get("hidden_activation") else "hidden_act"
    activation = "gelu_tanh" if kind == GEMMA and name == "hidden_act" else values.word(name, ACTIVATIONS, "silu")
    heads = values.get("num_attention_heads", 32)
    biased = {"qwen2": True}.get(kind, values.get("attention_bias", False))
    begin, longest = values.get("bos_token_id"), _longest(values)
    ends = values.tokens("eos_token_id", 2)
    return {
        "vocab_size": values.get("vocab_size", 32000),
        "d_model": values.get("hidden_size", 4096),
        "heads": heads,
        "key_heads": values.get("num_key_value_heads", heads),
        "head_size": values.get("head_dim", 0),
        "decoder_layers": values.get("num_hidden_layers", 32),
        "feed_forward": values.get("intermediate_size", 11008),
        "max_length": longest,
        "activation": activation,
        "norm_epsilon": values.get("rms_norm_eps", 1e-6),
        "attention_bias": biased,
        "output_bias": biased and kind != "qwen2",
        "feed_forward_bias": values.get("mlp_bias", False),
        "head_norm": kind == "qwen3",
        "tied": values.get("tie_word_embeddings", kind == GEMMA),
        "scale_embedding": kind == GEMMA,
        "rotary_base": values.get("rope_theta", 10000.0),
        **_scaling(values, longest),
        "pad_id": values.get("pad_token_id", ends[0]),
        "bos_id": ends[0] if begin is None else begin,
        "eos_ids": ends,
        "add_bos": begin is not None and not kind.startswith("qwen"),
    }


def _longest(values: Published) -> int:
    """The longest sequence: no longer than a window of attention, nor than what the short factors are for."""
    bounds = [values.get("max_position_embeddings", 2048)]
    if values.get("use_sliding_window", not values.type.startswith("qwen")):
        bounds.append(values.get("sliding_window"))
    scaling = values.get("rope_scaling", {})
    if _kind(scaling) in ("longrope", "dynamic"):
        bounds.append(_original(values, scaling))
    return int(min(each for each in bounds if each is not None))


def _kind(scaling: Mapping[str, Any]) -> str:
    """How positions are stretched; "su" is an older name of longrope."""
    name = scaling.get("rope_type", scaling.get("type", "default"))
    return {"default": "none", "su": "longrope"}.get(str(name), str(name))


def _original(values: Published, scaling: Mapping[str, Any]) -> int:
    found = scaling.get("original_max_position_embeddings")
    own = values.first("original_max_position_embeddings", "max_position_embeddings", default=2048)
    return int(own if found is None else found)


def _scaling(values: Published, longest: int) -> dict[str, Any]:
    """The keys of `LlamaConfig` that say how positions are stretched."""
    scaling = values.get("rope_scaling", {})
    kind = _kind(scaling)
    if kind == "none":
        return {}
    original = _original(values, scaling)
    factor = scaling.get("factor", values.get("max_position_embeddings", 2048) / original)
    made = {"rotary_scaling": kind, "rotary_factor": float(factor)}
    if kind == "dynamic":  # which turns as usual up to the original length, and is exported no longer
        return {}
    if kind == "linear":
        return made
    made["rotary_original_length"] = original
    if kind == "llama3":
        return made | {"rotary_low": scaling["low_freq_factor"], "rotary_high": scaling["high_freq_factor"]}
    if kind == "longrope":
        made |= {"rotary_divisors": tuple(map(float, scaling["short_factor"]))}
    elif kind == "yarn":
        made |= {"rotary_fast": scaling.get("beta_fast", 32.0), "rotary_slow": scaling.get("beta_slow", 1.0)}
        strange = sorted({"mscale", "mscale_all_dim", "truncate"} & scaling.keys())
        if strange:
            raise ConfigError(f"rope_scaling with {', '.join(strange)} can't be expressed")
    else:
        raise ConfigError(f"rope_scaling {quoted(kind)} can't be expressed")
    given = scaling.get("attention_factor")
    return made if given is None else made | {"rotary_attention": given}


WEIGHTS: tuple[Rule, ...] = (
    Drop(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq$"),
    Rename(r"^model\.embed_tokens\.", "target_embedding.tokens."),
    Rename(r"^model\.norm\.", "decoder_norm."),
    Rename(r"^lm_head\.", "projection."),
    Rename(r"^model\.layers\.", "decoder."),
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
TYPES, CLASSES = ("llama", "mistral", "qwen2", "qwen3", "phi3"), ("ForCausalLM", "Model")
FAMILY = Family(types=TYPES, architecture="llama", classes=CLASSES, config=config, weights=WEIGHTS)
