"""Mixtures of experts as transformers saves them: Mixtral, Qwen 2 and 3 MoE, OLMoE, Granite MoE, gpt-oss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txport.checkpoints.families import llama, llama_kin
from txport.checkpoints.family import Family, Published
from txport.checkpoints.keys import NOTHING, RETURNED, TRAINING
from txport.errors import ConfigError
from txport.models.rules import Rename, Reshape, Rule, Split, Transpose, Unstack

QWEN = {
    **llama.QWEN,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
}
DEFAULTS: dict[str, dict[str, object]] = {
    "mixtral": {
        **llama.LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen2_moe": {
        **QWEN,
        "intermediate_size": 5632,
        "num_key_value_heads": 16,
        "num_local_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "qkv_bias": True,
    },
    "qwen3_moe": {
        **QWEN,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "olmoe": {
        **llama_kin.OLMO,
        "hidden_size": 2048,
        "intermediate_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "num_local_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": False,
    },
    "granitemoe": {**llama_kin.DEFAULTS["granite"], "num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt_oss": {
        **llama.LLAMA,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 36,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "bos_token_id": None,
        "eos_token_id": 200002,  # of the published models; the class has no default
        "rope_theta": 150000.0,
        "attention_bias": True,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_limit": 7.0,
    },
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `LlamaConfig`."""
    own = OWN[values.type](values)
    if values.type == "gpt_oss":
        values = _of_layers(values)
    if values.type.startswith("qwen"):
        values.require("use_sliding_window", False)
        values = values.changed(sliding_window=None, max_window_layers=None)
    return {
        **llama.config(values),
        "experts": values.get("num_local_experts"),
        "experts_per_token": values.get("num_experts_per_tok"),
        "expert_size": values.get("moe_intermediate_size", values.get("intermediate_size")),
        "experts_normalised": values.get("norm_topk_prob", True),
        **own,
    }


def _dense(values: Published) -> dict[str, object]:
    """Return the layers of a Qwen without experts."""
    step = values.get("decoder_sparse_step")
    only = values.get("mlp_only_layers", [])
    layers = range(llama.number_of_layers(values))
    return {"dense_layers": tuple(each for each in layers if each in only or (each + 1) % step)}


def _qwen2(values: Published) -> dict[str, object]:
    own = {"attention_bias": values.get("qkv_bias"), "output_bias": False}
    return own | {"shared_expert_size": values.get("shared_expert_intermediate_size"), **_dense(values)}


def _olmoe(values: Published) -> dict[str, object]:
    values.require("clip_qkv", None)
    return {"head_norm": True, "joint_norms": True}


def _gpt_oss(values: Published) -> dict[str, object]:
    """Return what is fixed in the class of gpt-oss, and the limit of its gates."""
    values.require("swiglu_alpha", 1.702)  # of quick_gelu
    limit = float(values.get("swiglu_limit"))
    if limit <= 0:
        raise ConfigError(f"swiglu_limit {limit} is not supported; it must be above 0")
    own = {"activation": "quick_gelu", "gate_limit": limit, "feed_forward_bias": True}
    return own | {"attention_sinks": True, "add_bos": False}


def _of_layers(values: Published) -> Published:
    """Return the values of a gpt-oss with the defaults of its class for kinds of layers and positions."""
    if not (values.get("rope_scaling") or values.get("rope_parameters")):
        values = values.changed(rope_scaling=YARN)
    return values.changed(layer_types=llama.layer_kinds(values, lambda number: number % 2 == 0))


OWN: dict[str, Callable[[Published], dict[str, object]]] = {
    "mixtral": lambda _: {},
    "qwen2_moe": _qwen2,
    "qwen3_moe": lambda values: {"head_norm": True, **_dense(values)},
    "olmoe": _olmoe,
    "granitemoe": llama_kin.scales,
    "gpt_oss": _gpt_oss,
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}
EXPERT = r"\.mlp\.experts\.(\d+)\."
GATES = (r".feed_forward.experts.\1.gate.", r".feed_forward.experts.\1.inner.")


def _of_gpt_oss(config: Any) -> tuple[Rule, ...]:
    """Return the rules of a gpt-oss: matrices are (in, out), and rows of gates and up projections alternate."""
    return (
        Rename(r"\.mlp\.router\.", ".feed_forward.router."),
        Rename(r"\.mlp\.experts\.(gate_up|down)_proj$", r".mlp.experts.\1_proj_weight"),
        Unstack(r"\.mlp\.experts\.(gate_up|down)_proj_(weight|bias)$", r".mlp.experts.{}.\1_proj.\2"),
        Transpose(rf"{EXPERT}(gate_up|down)_proj\.weight$"),
        Split(rf"{EXPERT}gate_up_proj\.", GATES, groups=config.expert_size),
        Reshape(r"\.self_attn\.sinks$", (-1, 1, 1)),
        Rename(r"\.self_attn\.sinks$", ".attention.core.sinks"),
    )


WEIGHTS: tuple[Rule, ...] = (
    Rename(r"\.block_sparse_moe\.", ".mlp."),
    Rename(r"\.mlp\.(gate|router\.layer)\.weight$", ".feed_forward.router.weight"),
    Rename(r"\.mlp\.input_linear\.weight$", ".mlp.experts.gate_up_proj"),
    Rename(r"\.mlp\.output_linear\.weight$", ".mlp.experts.down_proj"),
    Unstack(r"\.mlp\.experts\.(gate_up|down)_proj$", r".mlp.experts.{}.\1_proj.weight"),
    Split(rf"{EXPERT}gate_up_proj\.", GATES),
    Rename(rf"{EXPERT}(gate_proj|w1)\.", r".feed_forward.experts.\1.gate."),
    Rename(rf"{EXPERT}(up_proj|w3)\.", r".feed_forward.experts.\1.inner."),
    Rename(rf"{EXPERT}(down_proj|w2)\.", r".feed_forward.experts.\1.outer."),
    Rename(r"\.mlp\.shared_expert\.gate_proj\.", ".feed_forward.shared.gate."),
    Rename(r"\.mlp\.shared_expert\.up_proj\.", ".feed_forward.shared.inner."),
    Rename(r"\.mlp\.shared_expert\.down_proj\.", ".feed_forward.shared.outer."),
    Rename(r"\.mlp\.shared_expert_gate\.", ".feed_forward.shared_gate."),
    *llama.WEIGHTS,
)
UNUSED = {
    **llama.UNUSED,
    "router_jitter_noise": TRAINING,
    "output_router_logits": RETURNED,
    **dict.fromkeys(("experts_per_token", "initial_context_length"), NOTHING),
}
FAMILY = Family(
    defaults=DEFAULTS,
    architecture="llama",
    classes=llama.CLASSES,
    config=llama.of_class(config),
    weights=WEIGHTS,
    own_weights=llama.of_head(DEFAULTS, {"gpt_oss": _of_gpt_oss}),
    aliases={"num_experts": "num_local_experts"},
    unused=UNUSED,
    off={**llama.OFF, "position_embedding_type": ("rope",)},
)
