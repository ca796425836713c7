"""Marian (OPUS-MT) and Pegasus, as transformers saves them; and what they have in common with BART."""

from __future__ import annotations

from typing import Any

from txport.errors import ConfigError
from txport.models.family import ACTIVATIONS, Family, Published
from txport.models.weights import Drop, Rename, Rule, Take

CLASSES = ("ForConditionalGeneration", "MTModel")


def config(values: Published) -> dict[str, Any]:
    """The keys of `TransformerConfig`: sinusoids in halves, and no norm of what is embedded."""
    values.require("normalize_embedding", False)
    if values.type == "marian":
        values.require("normalize_before", False)
    pre = values.type == "pegasus"
    return common(values) | {
        "norm": "pre" if pre else "post",
        "positions": "sinusoidal",
        "sinusoids": "halves",
        "bos_id": values.first("decoder_start_token_id", "pad_token_id", default=0 if pre else 58100),
        "eos_id": values.get("eos_token_id", int(pre)),
    }


def common(values: Published) -> dict[str, Any]:
    """What all configs of this kind say alike."""
    sizes = {}
    for name, default in {"attention_heads": 16, "ffn_dim": 4096}.items():
        both = [values.get(f"{side}_{name}", default) for side in ("encoder", "decoder")]
        if both[0] != both[1]:
            raise ConfigError(f"encoder_{name} {both[0]} and decoder_{name} {both[1]} differ, which can't be expressed")
        sizes[name] = both[0]
    vocabulary = values.get("vocab_size", 50265)
    values.require("share_encoder_decoder_embeddings", True)
    values.require("tie_word_embeddings", True)
    values.require("decoder_vocab_size", vocabulary)
    return {
        "source_vocab_size": vocabulary,
        "target_vocab_size": vocabulary,
        "d_model": values.get("d_model", 1024),
        "heads": sizes["attention_heads"],
        "feed_forward": sizes["ffn_dim"],
        "encoder_layers": values.get("encoder_layers", 12),
        "decoder_layers": values.get("decoder_layers", 12),
        "max_length": values.get("max_position_embeddings", 1024),
        "activation": values.word("activation_function", ACTIVATIONS, "gelu"),
        "output_bias": True,
        "tied": "all",
        "scale_embedding": values.get("scale_embedding", False),
        "dropout": values.get("dropout", 0.1),
        "pad_id": values.get("pad_token_id", 1),
    }


LAYERS: tuple[Rule, ...] = (
    Rename(r"^model\.", ""),
    Take(r"^final_logits_bias$"),
    Rename(r"^final_logits_bias$", "projection.bias"),
    Rename(r"^(shared|lm_head|(encoder|decoder)\.embed_tokens)\.", "projection."),
    Rename(r"^encoder\.layernorm_embedding\.", "source_embedding.norm."),
    Rename(r"^decoder\.layernorm_embedding\.", "target_embedding.norm."),
    Rename(r"^(encoder|decoder)\.layer_norm\.", r"\1_norm."),
    Rename(r"^(encoder|decoder)\.layers\.", r"\1."),
    Rename(r"\.self_attn\.", ".attention."),
    Rename(r"\.encoder_attn\.", ".cross_attention."),
    Rename(r"attention\.q_proj\.", "attention.query."),
    Rename(r"attention\.k_proj\.", "attention.key."),
    Rename(r"attention\.v_proj\.", "attention.value."),
    Rename(r"attention\.out_proj\.", "attention.output."),
    Rename(r"\.fc1\.", ".feed_forward.inner."),
    Rename(r"\.fc2\.", ".feed_forward.outer."),
    Rename(r"\.self_attn_layer_norm\.", ".attention_residual.norm."),
    Rename(r"\.encoder_attn_layer_norm\.", ".cross_attention_residual.norm."),
    Rename(r"\.final_layer_norm\.", ".feed_forward_residual.norm."),
)
WEIGHTS: tuple[Rule, ...] = (
    Drop(r"(model\.)?(encoder|decoder)\.embed_positions\.weight$"),  # sinusoids
    *LAYERS,
)
TYPES = ("marian", "pegasus")
FAMILY = Family(types=TYPES, architecture="transformer", classes=CLASSES, config=config, weights=WEIGHTS)
