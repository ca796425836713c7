"""GPT-2, as transformers' `GPT2LMHeadModel` saves it."""

from __future__ import annotations

from txport.checkpoints.family import ACTIVATIONS, BARE, Family, Published
from txport.checkpoints.keys import NOTHING, OTHER_HEAD, PRECISION, TRAINING
from txport.models.rules import Drop, Rename, Split, Transpose

DEFAULTS = {
    "vocab_size": 50257,
    "n_positions": 1024,
    "n_embd": 768,
    "n_layer": 12,
    "n_head": 12,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "resid_pdrop": 0.1,
    "eos_token_id": 50256,
    "tie_word_embeddings": True,
}
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `GPT2Config`; all linear layers and norms have biases."""
    end = values.token("eos_token_id", DEFAULTS["eos_token_id"])
    return {
        "vocab_size": values.get("vocab_size"),
        "d_model": values.get("n_embd"),
        "heads": values.get("n_head"),
        "decoder_layers": values.get("n_layer"),
        "feed_forward": values.get("n_inner", 0),
        "max_length": values.get("n_positions"),
        "activation": values.word("activation_function", ACTIVATIONS),
        "norm_epsilon": values.get("layer_norm_epsilon"),
        "tied": values.get("tie_word_embeddings"),
        "dropout": values.get("resid_pdrop"),
        "pad_id": values.get("pad_token_id", end),
        "eos_id": end,
    }


WEIGHTS = (
    Rename(r"^transformer\.", ""),
    Drop(r"h\.\d+\.attn\.(masked_)?bias$"),  # masks
    Transpose(r"\.c_(attn|proj|fc)\.weight$"),  # Conv1D layers
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
UNUSED = {
    **dict.fromkeys(("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels"), OTHER_HEAD),
    "summary_first_dropout": TRAINING,
    "reorder_and_upcast_attn": PRECISION,
    **dict.fromkeys(("n_ctx", "predict_special_tokens"), NOTHING),
}
OFF = {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)}
FAMILY = Family(
    defaults={"gpt2": DEFAULTS},
    aliases=ALIASES,
    architecture="gpt2",
    classes=rf"LMHeadModel|{BARE}",
    config=config,
    weights=WEIGHTS,
    unused=UNUSED,
    off=OFF,
)
