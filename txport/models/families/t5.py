"""T5, mT5 and Flan-T5, as transformers' `T5ForConditionalGeneration` saves them."""

from __future__ import annotations

from typing import Any

from txport.models.family import ACTIVATIONS, Family, Published

GATED = "gated-"
LONGEST = 512  # of what the model was trained with; its positions have no bound


def config(values: Published) -> dict[str, Any]:
    """The keys of `T5Config`; in a gated feed-forward, "gelu" is the approximation by tanh."""
    kinds = {**ACTIVATIONS, **{GATED + name: kind for name, kind in ACTIVATIONS.items()}, GATED + "gelu": "gelu_tanh"}
    activation = values.word("feed_forward_proj", kinds, "relu")
    pad = values.get("pad_token_id", 0)
    values.require("decoder_start_token_id", pad)
    return {
        "vocab_size": values.get("vocab_size", 32128),
        "d_model": values.get("d_model", 512),
        "heads": values.get("num_heads", 8),
        "head_size": values.get("d_kv", 64),
        "feed_forward": values.get("d_ff", 2048),
        "encoder_layers": values.get("num_layers", 6),
        "decoder_layers": values.first("num_decoder_layers", "num_layers", default=6),
        "max_length": values.get("n_positions", LONGEST),
        "buckets": values.get("relative_attention_num_buckets", 32),
        "farthest": values.get("relative_attention_max_distance", 128),
        "activation": activation,
        "gated": values.get("feed_forward_proj", "relu").startswith(GATED),
        "tied": values.get("tie_word_embeddings", True),
        "norm_epsilon": values.get("layer_norm_epsilon", 1e-6),
        "dropout": values.get("dropout_rate", 0.1),
        "pad_id": pad,
        "eos_id": values.get("eos_token_id", 1),
    }


FAMILY = Family(types=("t5", "mt5"), architecture="t5", classes=("ForConditionalGeneration",), config=config)
