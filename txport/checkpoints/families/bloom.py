"""BLOOM, Falcon and MPT as transformers saves them: decoders with ALiBi, or in most Falcons with rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from txport.checkpoints.families import llama, llama_kin
from txport.checkpoints.family import Family, Published
from txport.checkpoints.keys import MEMORY, NOTHING, PRECISION, STARTING, TRAINING, require_known
from txport.errors import ConfigError, quoted
from txport.models.rules import Rename, Rule, Split

DEFAULTS: dict[str, dict[str, object]] = {
    "bloom": {
        "vocab_size": 250880,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "layer_norm_epsilon": 1e-5,
        "seq_length": 2048,  # the class has no longest sequence
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
    },
    "falcon": {
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "layer_norm_epsilon": 1e-5,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "alibi": False,
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
        "activation": "gelu",
        "bos_token_id": 11,
        "eos_token_id": 11,
        "tie_word_embeddings": True,
    },
    "mpt": {
        "vocab_size": 50368,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "max_seq_len": 2048,
        "layer_norm_epsilon": 1e-5,
        "eos_token_id": 0,  # of the published models; the class has no default
        "tie_word_embeddings": True,
    },
}
ALIASES = {
    "n_embed": "hidden_size",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
}
STEEPEST = 8.0  # of the slopes of ALiBi, which the classes of transformers fix
ATTENTION = {  # keys of MPT's attn_config -> the only values that are supported
    "alibi": (True,),  # the class has no other positions
    "alibi_bias_max": (8,),
    "attn_type": ("multihead_attention",),
    "prefix_lm": (False,),
    "qk_ln": (False,),
    "attn_uses_sequence_id": (False,),
}
READ_ATTENTION = ("clip_qkv", "softmax_scale", "attn_impl")


def config(values: Published) -> dict[str, object]:
    """Return the values of `LlamaConfig`."""
    own = OWN[values.type](values)
    wide = values.changed(
        intermediate_size=4 * values.get("hidden_size"),
        rms_norm_eps=values.get("layer_norm_epsilon"),
        hidden_act="gelu_new" if values.type == "bloom" else values.get("activation", "gelu"),
        max_position_embeddings=values.get(
            "max_position_embeddings", values.get("seq_length", values.get("max_seq_len"))
        ),
        rope_theta=values.get("rope_theta", 10000.0),
    )
    return llama.config(wide) | llama_kin.PLAIN | {"add_bos": False} | own


def _bloom(_: Published) -> dict[str, object]:
    return llama_kin.biased(True) | {"alibi": STEEPEST, "embedding_norm": True}


def _falcon(values: Published) -> dict[str, object]:
    heads = values.get("num_attention_heads")
    is_new = values.get("new_decoder_architecture")
    norms = values.get("num_ln_in_parallel_attn", 2 if is_new else 1)
    is_parallel = values.get("parallel_attn")
    is_single = values.get("multi_query") and not is_new
    shared = values.get("num_kv_heads", heads)
    if (is_new and not is_parallel) or (norms != 1 and not is_new) or norms not in (1, 2):
        found = f"parallel_attn {quoted(is_parallel)} and num_ln_in_parallel_attn {quoted(norms)}"
        raise ConfigError(f"{found} are not supported with new_decoder_architecture {quoted(is_new)}")
    own = {
        **llama_kin.biased(values.get("bias")),
        "key_heads": 1 if is_single else shared,
        "feed_forward": values.get("ffn_hidden_size", 4 * values.get("hidden_size")),
        "parallel": is_parallel,
        "shared_norm": is_parallel and norms == 1,
    }
    if values.get("alibi"):
        own |= {"alibi": STEEPEST, "alibi_factor": (values.get("hidden_size") // heads) ** -0.5}
    return own


def _mpt(values: Published) -> dict[str, object]:
    attention = values.beside("attn_config")
    require_known(attention, READ_ATTENTION, {}, ATTENTION, "mpt's attn_config")
    own: dict[str, object] = {"alibi": STEEPEST, "norm": "layer without bias"}
    own |= {"clip": float(attention.get("clip_qkv") or 0), "attention_scale": attention.get("softmax_scale") or 0.0}
    return own


OWN: dict[str, Callable[[Published], dict[str, object]]] = {"bloom": _bloom, "falcon": _falcon, "mpt": _mpt}
WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(transformer\.)?word_embeddings\.", "target_embedding.tokens."),
    Rename(r"^(transformer\.)?word_embeddings_layernorm\.", "target_embedding.norm."),
    Rename(r"^(transformer\.)?norm_f\.", "decoder_norm."),
    Rename(r"^(transformer\.)?blocks\.", "decoder."),
    Rename(r"\.self_attention\.dense\.", ".attention.output."),
    Rename(r"\.(norm_1|ln_attn)\.", ".attention_residual.norm."),
    Rename(r"\.(norm_2|ln_mlp)\.", ".feed_forward_residual.norm."),
    Rename(r"\.ffn\.", ".mlp."),
    Split(r"\.attn\.Wqkv\.", llama_kin.PARTS),
    Rename(r"\.mlp\.up_proj\.", ".feed_forward.inner."),
    *llama_kin.WEIGHTS,
)


def _fused(config: Any) -> tuple[Rule, ...]:
    """Queries, keys and values lie side by side for each key head."""
    return (Split(r"\.self_attention\.query_key_value\.", llama_kin.PARTS, groups=config.key_heads),)


UNUSED = {
    **dict.fromkeys(("hidden_dropout", "resid_pdrop", "emb_pdrop"), TRAINING),
    **dict.fromkeys(("init_device", "init_config", "embedding_fraction"), STARTING),
    **dict.fromkeys(("pretraining_tp", "slow_but_exact"), "it computes the same products in parts"),
    **dict.fromkeys(("attention_softmax_in_fp32",), PRECISION),
    **dict.fromkeys(("bias_dropout_fusion", "masked_softmax_fusion", "skip_bias_add", "skip_bias_add_qkv"), MEMORY),
    **dict.fromkeys(("offset_alibi", "learned_pos_emb", "verbose", "tokenizer_name", "n_inner"), NOTHING),
}
OFF: dict[str, tuple[object, ...]] = {
    "apply_residual_connection_post_layernorm": (False,),
    "no_bias": (True,),
    "expansion_ratio": (4,),
    "norm_type": ("low_precision_layernorm", "layernorm"),
    "logit_scale": (),
}
FAMILY = Family(
    defaults=DEFAULTS,
    architecture="llama",
    classes=llama.CLASSES,
    config=llama.of_class(config),
    weights=WEIGHTS,
    own_weights=llama.of_head(DEFAULTS, dict.fromkeys(("bloom", "falcon"), _fused)),
    aliases=ALIASES,
    unused=UNUSED,
    off=OFF,
)
