"""GPT-2, as transformers' `GPT2LMHeadModel` saves it."""

from __future__ import annotations

from typing import Any

from txport.models.family import ACTIVATIONS, Family, Published
from txport.models.weights import Drop, Rename, Split, Transpose


def config(values: Published) -> dict[str, Any]:
    """The keys of `GPT2Config`; its linear maps and norms all have biases."""
    values.require("scale_attn_weights", True)
    values.require("scale_attn_by_inverse_layer_idx", False)
    values.require("add_cross_attention", False)
    end = values.get("eos_token_id", 50256)
    return {
        "vocab_size": values.get("vocab_size", 50257),
        "d_model": values.get("n_embd", 768),
        "heads": values.get("n_head", 12),
        "decoder_layers": values.get("n_layer", 12),
        "feed_forward": values.get("n_inner", 0),
        "max_length": values.first("n_positions", "n_ctx", default=1024),
        "activation": values.word("activation_function", ACTIVATIONS, "gelu_new"),
        "norm_epsilon": values.get("layer_norm_epsilon", 1e-5),
        "tied": values.get("tie_word_embeddings", True),
        "dropout": values.get("resid_pdrop", 0.1),
        "pad_id": values.get("pad_token_id", end),
        "eos_id": end,
    }


WEIGHTS = (
    Rename(r"^transformer\.", ""),
    Drop(r"h\.\d+\.attn\.(masked_)?bias$"),  # masks
    Transpose(r"\.c_(attn|proj|fc)\.weight$"),  # its Conv1D
    Split(r"\.attn\.c_attn\.", (".attention.query.", ".attention.key.", ".attention.value.")),
    Rename(r"^wte\.", "target_embedding.tokens."),
    Rename(r"^wpe\.weight$", "target_embedding.positions"),
    Rename(r"^ln_f\.", "decoder_norm."),
    Rename(r"^lm_head\.", "projection."),
    Rename(r"^h\.", "decoder."),
    Rename(r"\.attn\.c_proj\.", ".attention.output."),
    Rename(r"\.mlp\.c_fc\.", ".feed_forward.inner."),
    Rename(r"\.mlp\.c_proj\.", ".feed_forward.outer."),
    Rename(r"\.ln_1\.", ".attention_residual.norm."),
    Rename(r"\.ln_2\.", ".feed_forward_residual.norm."),
)
FAMILY = Family(types=("gpt2",), architecture="gpt2", classes=("LMHeadModel", "Model"), config=config, weights=WEIGHTS)
