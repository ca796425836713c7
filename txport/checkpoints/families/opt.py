"""OPT, as transformers' `OPTForCausalLM` saves it."""

from __future__ import annotations

from txport.checkpoints.family import BARE, Family, Published

DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "dropout": 0.1,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 2,
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `OPTConfig`."""
    return {
        "vocab_size": values.get("vocab_size"),
        "d_model": values.get("hidden_size"),
        "embedding_width": values.get("word_embed_proj_dim", 0),
        "heads": values.get("num_attention_heads"),
        "decoder_layers": values.get("num_hidden_layers"),
        "feed_forward": values.get("ffn_dim"),
        "max_length": values.get("max_position_embeddings"),
        "norm": "pre" if values.get("do_layer_norm_before") else "post",
        "dropout": values.get("dropout"),
        "pad_id": values.get("pad_token_id"),
        "bos_id": values.get("bos_token_id"),
        "eos_id": values.token("eos_token_id"),
    }


OFF = {
    "enable_bias": (True,),
    "layer_norm_elementwise_affine": (True,),
    "_remove_final_layer_norm": (False,),
    "activation_function": ("relu",),
    "tie_word_embeddings": (True,),
    "learned_embeddings": (True,),
    "scale_embeddings": (False,),
}
FAMILY = Family(defaults={"opt": DEFAULTS}, architecture="opt", classes=rf"ForCausalLM|{BARE}", config=config, off=OFF)
