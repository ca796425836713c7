"""Decoders that differ from Llama in norms, gates, residuals, multipliers or names, as transformers saves them.

GPT-NeoX, GPT-J, CodeGen, Phi, StableLM, StarCoder 2, Cohere 1 and 2, OLMo 1 to 3, Granite, GLM and GLM-4, Helium,
Nemotron, Jais 2, Persimmon, Arcee, ERNIE 4.5, Seed-OSS, EXAONE 4.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from txport.checkpoints.families import llama
from txport.checkpoints.family import Family, Published
from txport.checkpoints.keys import NOTHING, TRAINING
from txport.errors import ConfigError, quoted
from txport.models.rules import Constant, Drop, Rename, Rule, Shift, Split

L = llama.LLAMA
GLM = {
    **L,
    "vocab_size": 151552,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1.5625e-7,
    "pad_token_id": 151329,
    "bos_token_id": None,
    "eos_token_id": 151329,  # of the published models; the class has no default
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
}
GPTJ = {
    **L,
    "vocab_size": 50400,
    "intermediate_size": None,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "rotary_dim": 64,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-5,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
COHERE = {
    **L,
    "vocab_size": 256000,
    "hidden_size": 8192,
    "intermediate_size": 22528,
    "logit_scale": 0.0625,
    "num_hidden_layers": 40,
    "num_attention_heads": 64,
    "max_position_embeddings": 8192,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 5,
    "eos_token_id": 255001,
    "tie_word_embeddings": True,
}
OLMO = {**L, "vocab_size": 50304, "pad_token_id": 1, "bos_token_id": None, "eos_token_id": 50279}
DEFAULTS: dict[str, dict[str, object]] = {
    "gpt_neox": {
        **L,
        "vocab_size": 50432,
        "hidden_size": 6144,
        "num_hidden_layers": 44,
        "num_attention_heads": 64,
        "intermediate_size": 24576,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "partial_rotary_factor": 0.25,
        "use_parallel_residual": True,
        "attention_bias": True,
    },
    "gptj": GPTJ,
    "codegen": GPTJ,
    "phi": {
        **L,
        "vocab_size": 51200,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 24,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    },
    "stablelm": {
        **L,
        "vocab_size": 50304,
        "intermediate_size": 6912,
        "hidden_size": 2560,
        "max_position_embeddings": 4096,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "partial_rotary_factor": 0.25,
    },
    "starcoder2": {
        **L,
        "vocab_size": 49152,
        "hidden_size": 3072,
        "intermediate_size": 12288,
        "num_hidden_layers": 30,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
        "norm_epsilon": 1e-5,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "use_bias": True,
        "tie_word_embeddings": True,
    },
    "cohere": {**COHERE, "rope_theta": 500000.0},
    "cohere2": {**COHERE, "sliding_window": 4096},
    "olmo": {**OLMO, "rms_norm_eps": 1e-5},
    "olmo2": {**OLMO, "rms_norm_eps": 1e-5},
    "olmo3": {**OLMO, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "sliding_window": 4096},
    "exaone4": {
        **L,
        "vocab_size": 102400,
        "intermediate_size": 16384,
        "num_key_value_heads": 32,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 0,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
    },
    "granite": {
        **L,
        **dict.fromkeys(("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier"), 1.0),
    },
    "glm": GLM,
    "glm4": GLM,
    "helium": {
        **L,
        "vocab_size": 48000,
        "hidden_size": 2560,
        "intermediate_size": 7040,
        "num_hidden_layers": 24,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "head_dim": 128,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-8,
        "pad_token_id": 3,
        "rope_theta": 100000.0,
    },
    "nemotron": {
        **L,
        "vocab_size": 256000,
        "hidden_size": 6144,
        "intermediate_size": 24576,
        "num_attention_heads": 48,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "bos_token_id": 2,
        "eos_token_id": 3,
        "partial_rotary_factor": 0.5,
    },
    "jais2": {
        **L,
        "vocab_size": 150272,
        "hidden_size": 3328,
        "intermediate_size": 26624,
        "num_attention_heads": 26,
        "hidden_act": "relu2",
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 150024,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "persimmon": {
        **L,
        "vocab_size": 262144,
        "intermediate_size": 16384,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "hidden_act": "relu2",
        "max_position_embeddings": 16384,
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "qk_layernorm": True,
    },
    "arcee": {
        **L,
        "hidden_size": 2560,
        "intermediate_size": 18432,
        "hidden_act": "relu2",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
    },
    "ernie4_5": {
        **L,
        "vocab_size": 103424,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 18,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
        "rope_theta": 500000.0,
        "use_bias": False,
    },
    "seed_oss": {
        **L,
        "vocab_size": 155136,
        "intermediate_size": 27648,
        "num_hidden_layers": 64,
        "num_attention_heads": 80,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 524288,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "attention_bias": True,
        "attention_out_bias": False,
    },
}
ALIASES = {  # of GPT-NeoX, GPT-J and CodeGen
    "rotary_pct": "partial_rotary_factor",
    "rotary_emb_base": "rope_theta",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "n_inner": "intermediate_size",
    "activation_function": "hidden_act",
    "layer_norm_epsilon": "layer_norm_eps",
}
EPSILONS = ("layer_norm_eps", "norm_epsilon", "norm_eps", "rms_norm_eps")  # a type has one of them
SINGLE = ("gpt_neox", "gptj", "codegen", "persimmon")  # their classes have a key head for each query head
BARE_TEXTS = (*SINGLE[:3], "phi", "stablelm", "starcoder2", "exaone4")  # their tokenizers add no token
MIXED = ("cohere2", "olmo3", "exaone4")  # most layers have a window
BIASES = ("attention_bias", "output_bias", "feed_forward_bias")
INTERLEAVED: dict[str, object] = {"rotary_pairing": "interleaved"}
PLAIN: dict[str, object] = {"norm": "layer", "gated": False}  # LayerNorm, and feed-forwards without a gate
SIDE_BY_SIDE: dict[str, object] = {"parallel": True, "shared_norm": True}


def config(values: Published) -> dict[str, object]:
    """Return the values of `LlamaConfig`; raise `ConfigError` without an epsilon of norms."""
    epsilon = next((found for name in EPSILONS if (found := values.get(name)) is not None), None)
    if epsilon is None:
        raise ConfigError(f"a {values.type} needs a number as its epsilon of norms ({' or '.join(EPSILONS)})")
    own: dict[str, object] = {}
    inner = values.get("intermediate_size", 4 * values.get("hidden_size"))
    if values.type in SINGLE:
        values = values.changed(num_key_value_heads=None)
    if values.type in MIXED:
        values = values.changed(layer_types=llama.layer_kinds(values, _windowed(values)))
    if values.type == "olmo3":
        values, local = llama.local_positions(values, values.get("layer_types"), None)
        own = {**own, **local}
    found = llama.config(values.changed(rms_norm_eps=epsilon, intermediate_size=inner))
    return found | {"add_bos": found["add_bos"] and values.type not in BARE_TEXTS} | own | OWN[values.type](values)


def _windowed(values: Published) -> Callable[[int], object]:
    """Return whether a layer has a window, by its number; raise `ConfigError` for an unknown pattern.

    A pattern is a number, of which each layer in so many has none, or a letter for each layer, L or G for all, again
    and again; the last layer has none then.
    """
    pattern = values.get("sliding_window_pattern", values.get("_sliding_window_pattern", 4))
    if values.get("sliding_window") is None:
        return lambda number: False
    if not isinstance(pattern, str):
        return lambda number: (number + 1) % pattern
    if not re.fullmatch("[LG]+", pattern):
        raise ConfigError(f"sliding_window_pattern {quoted(pattern)} is not supported; it must be of L and G")
    last = llama.number_of_layers(values) - 1
    return lambda number: pattern[number % len(pattern)] == "L" and number != last


def biased(is_on: bool, *others: str) -> dict[str, object]:
    """Return whether attention, feed-forwards and `others` have biases."""
    return dict.fromkeys((*BIASES, *others), is_on)


def _gpt_neox(values: Published) -> dict[str, object]:
    both = values.get("attention_bias")
    own = {"attention_bias": both, "output_bias": both, "feed_forward_bias": True}
    return PLAIN | own | {"parallel": values.get("use_parallel_residual")}


def _gptj(values: Published) -> dict[str, object]:
    own = {"feed_forward_bias": True, "projection_bias": True, "rotary_size": values.get("rotary_dim")}
    return PLAIN | SIDE_BY_SIDE | INTERLEAVED | own


def _phi(values: Published) -> dict[str, object]:
    return PLAIN | SIDE_BY_SIDE | biased(True, "projection_bias") | {"head_norm": values.get("qk_layernorm", False)}


def _stablelm(values: Published) -> dict[str, object]:
    values.require("qk_layernorm", False)
    own: dict[str, object] = {
        "norm": "layer",
        "attention_bias": values.get("use_qkv_bias", False),
        "output_bias": False,
    }
    return own | (SIDE_BY_SIDE if values.get("use_parallel_residual") else {})


def _cohere(values: Published) -> dict[str, object]:
    values.require("use_qk_norm", False)
    values.require("use_embedding_sharing", values.get("tie_word_embeddings"))
    own: dict[str, object] = {"norm": "layer without bias", "logit_scale": float(values.get("logit_scale"))}
    return own | SIDE_BY_SIDE | INTERLEAVED


def _unturned(values: Published) -> dict[str, object]:
    """Return that layers without a window have no positions."""
    kinds = enumerate(values.get("layer_types"))
    return {"unturned_layers": tuple(number for number, kind in kinds if kind == llama.GLOBAL)}


def _olmo(values: Published) -> dict[str, object]:
    return {"norm": "layer without bias", "clip": float(values.get("clip_qkv", 0.0))}


def _olmo2(_: Published) -> dict[str, object]:
    return {"input_norm": False, "result_norm": True, "head_norm": True, "joint_norms": True}


def _exaone4(values: Published) -> dict[str, object]:
    own = {"input_norm": False, "result_norm": True, "head_norm": True}
    return own | ({} if values.get("sliding_window") is None else _unturned(values))


def scales(values: Published) -> dict[str, object]:
    """Return the multipliers of a Granite."""
    names = {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier"}
    names |= {"attention_scale": "attention_multiplier"}
    found: dict[str, object] = {ours: float(values.get(theirs)) for ours, theirs in names.items()}
    return found | {"logit_scale": 1 / float(values.get("logits_scaling"))}


OWN: dict[str, Callable[[Published], dict[str, object]]] = {  # what a type has in place of Llama's
    "gpt_neox": _gpt_neox,
    "gptj": _gptj,
    "codegen": _gptj,
    "phi": _phi,
    "stablelm": _stablelm,
    "starcoder2": lambda values: PLAIN | biased(values.get("use_bias")),
    "cohere": _cohere,
    "cohere2": lambda values: _cohere(values) | _unturned(values),
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo2,
    "exaone4": _exaone4,
    "granite": scales,
    "glm": lambda _: INTERLEAVED | {"output_bias": False},
    "glm4": lambda _: INTERLEAVED | {"output_bias": False, "result_norm": True},
    "helium": lambda _: INTERLEAVED | {"output_bias": False},
    "nemotron": lambda _: PLAIN,
    "jais2": lambda _: PLAIN,
    "persimmon": lambda values: PLAIN | biased(True) | {"head_norm": values.get("qk_layernorm")},
    "arcee": lambda _: {"gated": False},
    "ernie4_5": lambda values: INTERLEAVED | biased(values.get("use_bias")),
    "seed_oss": lambda values: {"output_bias": values.get("attention_out_bias")},
}
PARTS = (".attention.query.", ".attention.key.", ".attention.value.")
ONES = (Constant(r"(decoder\.\d+\.\w+_residual\.norm|decoder_norm)\.weight", 1.0),)
RESULTS = (
    Rename(r"\.post_attention_layernorm\.", ".attention_residual.result_norm."),
    Rename(r"\.post_feedforward_layernorm\.", ".feed_forward_residual.result_norm."),
)
OWN_WEIGHTS: dict[str, Callable[[Any], tuple[Rule, ...]]] = {
    "gpt_neox": lambda config: (Split(r"\.attention\.query_key_value\.", PARTS, groups=config.heads),),
    "persimmon": lambda config: (Split(r"\.self_attn\.query_key_value\.", PARTS, groups=config.heads),),
    "codegen": lambda _: (Split(r"\.attn\.qkv_proj\.", (PARTS[0], PARTS[2], PARTS[1]), groups=4),),
    "olmo": lambda _: ONES,
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), lambda _: RESULTS),
    "nemotron": lambda _: (Shift(r"norm\.weight$", 1.0),),
}
WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(gpt_neox|transformer)\.", ""),
    Drop(r"(layers|h)\.\d+\.(attention|attn)\.(bias|masked_bias|causal_mask|rotary_emb\.inv_freq|embed_positions)$"),
    Rename(r"^(embed_in|wte)\.", "target_embedding.tokens."),
    Rename(r"^embed_out\.", "projection."),
    Rename(r"^(model\.)?(final_layernorm|final_layer_norm|ln_f)\.", "decoder_norm."),
    Rename(r"^h\.", "decoder."),
    Rename(r"\.attn\.(q|k|v)_proj\.", r".self_attn.\1_proj."),
    Rename(r"\.(self_attn\.dense|attention\.dense|attn\.out_proj)\.", ".attention.output."),
    Rename(r"\.self_attn\.(q|k)_layernorm\.", r".self_attn.\1_norm."),
    Rename(r"\.mlp\.(fc1|c_fc|fc_in|dense_h_to_4h)\.", ".feed_forward.inner."),
    Rename(r"\.mlp\.(fc2|c_proj|fc_out|dense_4h_to_h)\.", ".feed_forward.outer."),
    Rename(r"\.ln_1\.", ".attention_residual.norm."),
    Rename(r"\.post_self_attn_layernorm\.", ".attention_residual.result_norm."),
    Rename(r"\.post_mlp_layernorm\.", ".feed_forward_residual.result_norm."),
    *llama.WEIGHTS,
)
UNUSED = {
    **llama.UNUSED,
    **dict.fromkeys(("hidden_dropout", "residual_dropout", "embedding_dropout", "n_ctx"), TRAINING),
    **dict.fromkeys(("scale_attn_weights", "summary_type", "summary_use_proj", "summary_activation"), NOTHING),
    **dict.fromkeys(("summary_proj_to_labels", "summary_first_dropout", "mlp_bias", "rms_norm_eps"), NOTHING),
    **dict.fromkeys(("layer_switch", "use_parallel_embedding"), NOTHING),  # of Command R7B
}
OFF = {  # what the first releases of GPT-J, StarCoder2 and Command R7B say, and their classes do in any case
    **llama.OFF,
    "rotary": (True,),
    "mlp_type": ("default",),
    "norm_type": ("layer_norm",),
    "order_of_interleaved_layers": ("local_attn_first",),
    "position_embedding_type": ("rope_gptj",),
    "use_gated_activation": (True,),
    "use_parallel_block": (True,),
}
FAMILY = Family(
    defaults=DEFAULTS,
    architecture="llama",
    classes=llama.CLASSES,
    config=llama.of_class(config),
    weights=WEIGHTS,
    own_weights=llama.of_head(DEFAULTS, OWN_WEIGHTS),
    aliases=ALIASES,
    unused=UNUSED,
    off=OFF,
)
