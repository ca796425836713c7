"""Marian (OPUS-MT) and Pegasus, as transformers saves them, and settings that they share with BART."""

from __future__ import annotations

from typing import Any

from txport.checkpoints.family import ACTIVATIONS, Family, Published
from txport.checkpoints.keys import NOTHING, TRAINING
from txport.models.rules import FAIRSEQ_LAYERS, FAIRSEQ_SINUSOIDS, Drop, Rename, Rule, Take

CLASSES = "ForConditionalGeneration|MTModel"
ALIASES = {"hidden_size": "d_model", "num_attention_heads": "encoder_attention_heads"}
COMMON = {
    "max_position_embeddings": 1024,
    "d_model": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "scale_embedding": False,
    "dropout": 0.1,
}
DEFAULTS = {
    "marian": {
        **COMMON,
        "vocab_size": 58101,
        "decoder_start_token_id": 58100,
        "pad_token_id": 58100,
        "eos_token_id": 0,
    },
    "pegasus": {**COMMON, "vocab_size": 50265, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1},
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `TransformerConfig`: sinusoids in halves, and no norm of the embeddings."""
    if values.type == "marian":
        values.require("normalize_before", False)
        values.require("normalize_embedding", False)
    return common(values) | {
        "norm": "pre" if values.type == "pegasus" else "post",
        "positions": "sinusoidal",
        "sinusoids": "halves",
        "bos_id": values.start(values.get("pad_token_id")),
    }


def common(values: Published) -> dict[str, Any]:
    """Return the values that all configs of these models share."""
    vocabulary = values.get("vocab_size")
    values.require("decoder_vocab_size", vocabulary)
    return {
        "source_vocab_size": vocabulary,
        "target_vocab_size": vocabulary,
        "d_model": values.get("d_model"),
        "heads": values.alike("encoder_attention_heads", "decoder_attention_heads"),
        "feed_forward": values.alike("encoder_ffn_dim", "decoder_ffn_dim"),
        "encoder_layers": values.get("encoder_layers"),
        "decoder_layers": values.get("decoder_layers"),
        "max_length": values.get("max_position_embeddings"),
        "activation": values.word("activation_function", ACTIVATIONS),
        "output_bias": True,
        "tied": "all",
        "scale_embedding": values.get("scale_embedding"),
        "dropout": values.get("dropout"),
        "pad_id": values.get("pad_token_id"),
        "eos_id": values.token("eos_token_id"),
    }


LAYERS: tuple[Rule, ...] = (
    Rename(r"^model\.", ""),
    Drop(r"(encoder|decoder)\.version$"),  # in old files
    Take(r"^final_logits_bias$"),
    Rename(r"^final_logits_bias$", "projection.bias"),
    Rename(r"^(shared|lm_head|(encoder|decoder)\.embed_tokens)\.", "source_embedding.tokens."),
    Rename(r"^encoder\.layernorm_embedding\.", "source_embedding.norm."),
    Rename(r"^decoder\.layernorm_embedding\.", "target_embedding.norm."),
    *FAIRSEQ_LAYERS,
)
WEIGHTS: tuple[Rule, ...] = (
    *FAIRSEQ_SINUSOIDS,
    *LAYERS,
)
UNUSED = {
    "num_hidden_layers": "encoder_layers and decoder_layers say it",
    **dict.fromkeys(("add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding"), NOTHING),
    **dict.fromkeys(("static_position_embeddings", "extra_pos_embeddings", "save_step"), NOTHING),
    **dict.fromkeys(("replacing_rate", "student_encoder_layers", "student_decoder_layers"), TRAINING),  # of distilbart
}
OFF = {"share_encoder_decoder_embeddings": (True,), "tie_word_embeddings": (True,)}
FAMILY = Family(
    defaults=DEFAULTS,
    aliases=ALIASES,
    architecture="transformer",
    classes=CLASSES,
    config=config,
    weights=WEIGHTS,
    unused=UNUSED,
    off=OFF,
)
