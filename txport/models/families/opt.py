"""OPT, as transformers' `OPTForCausalLM` saves it."""

from __future__ import annotations

from typing import Any

from txport.models.family import Family, Published


def config(values: Published) -> dict[str, Any]:
    """The keys of `OPTConfig`."""
    values.require("enable_bias", True)
    values.require("layer_norm_elementwise_affine", True)
    values.require("_remove_final_layer_norm", False)
    values.require("activation_function", "relu")
    values.require("tie_word_embeddings", True)
    return {
        "vocab_size": values.get("vocab_size", 50272),
        "d_model": values.get("hidden_size", 768),
        "embedding_width": values.get("word_embed_proj_dim", 0),
        "heads": values.get("num_attention_heads", 12),
        "decoder_layers": values.get("num_hidden_layers", 12),
        "feed_forward": values.get("ffn_dim", 3072),
        "max_length": values.get("max_position_embeddings", 2048),
        "norm": "pre" if values.get("do_layer_norm_before", True) else "post",
        "dropout": values.get("dropout", 0.1),
        "pad_id": values.get("pad_token_id", 1),
        "bos_id": values.get("bos_token_id", 2),
        "eos_id": values.get("eos_token_id", 2),
    }


FAMILY = Family(types=("opt",), architecture="opt", classes=("ForCausalLM", "Model"), config=config)
