"""T5, mT5 and Flan-T5, as transformers saves them: models that write text, encode, classify or answer."""

from __future__ import annotations

from typing import Any

from txport.checkpoints.families.bert import labelled
from txport.checkpoints.family import ACTIVATIONS, Family, Published
from txport.checkpoints.keys import IN_FILE
from txport.errors import ConfigError, quoted
from txport.models.rules import Rule, Spare

GATED = "gated-"
DEFAULTS = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "dropout_rate": 0.1,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "pad_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
    "n_positions": 512,  # of its training; relative positions have no maximum
}
MT5 = {
    **DEFAULTS,
    "vocab_size": 250112,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
TIED_SINCE = 5  # the version of transformers that always writes tie_word_embeddings: true
EMBEDDING, HEAD = "shared.weight", "lm_head.weight"
HEADS = {  # of classes that write no text
    "EncoderModel": "hidden",
    "ForSequenceClassification": "labels",
    "ForQuestionAnswering": "spans",
}
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "head_dim": "d_kv",
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `T5Config`; in a gated feed-forward, "gelu" is the tanh approximation."""
    kinds = {**ACTIVATIONS, **{GATED + name: kind for name, kind in ACTIVATIONS.items()}, GATED + "gelu": "gelu_tanh"}
    activation = values.word("feed_forward_proj", kinds)
    gated = values.get("feed_forward_proj").startswith(GATED)
    values.require("is_gated_act", gated)
    if (other := values.get("dense_act_fn")) is not None and ACTIVATIONS.get(other) != activation:
        value = f"feed_forward_proj {quoted(values.get('feed_forward_proj'))}"
        raise ConfigError(f"dense_act_fn {quoted(other)} and {value} must mean the same")
    pad = values.get("pad_token_id")
    values.require("decoder_start_token_id", pad)
    head = values.head(HEADS, "text")
    found = {
        "vocab_size": values.get("vocab_size"),
        "d_model": values.get("d_model"),
        "heads": values.get("num_heads"),
        "head_size": values.get("d_kv"),
        "feed_forward": values.get("d_ff"),
        "encoder_layers": values.get("num_layers"),
        "decoder_layers": values.get("num_decoder_layers", values.get("num_layers")),
        "max_length": values.get("n_positions"),
        "buckets": values.get("relative_attention_num_buckets"),
        "farthest": values.get("relative_attention_max_distance"),
        "activation": activation,
        "gated": gated,
        "tied": _is_tied(values),
        "scaled": _is_scaled(values),
        "norm_epsilon": values.get("layer_norm_epsilon"),
        "dropout": values.get("dropout_rate"),
        "pad_id": pad,
        "eos_id": values.token("eos_token_id"),
        "head": head,
    }
    unread = () if head == "text" else ("tied", "scaled", *(["decoder_layers"] if head == "hidden" else []))
    found = {name: value for name, value in found.items() if name not in unread}
    return found | labelled(values) if head == "labels" else found


def _is_tied(values: Published) -> bool:
    """Return whether the projection is the embedding: by the weights, from the version on that does not say it."""
    weights = values.weights() if values.version >= TIED_SINCE else None
    shapes = weights.shapes if weights is not None else {}
    found = [name for end in (EMBEDDING, HEAD) for name in shapes if f".{name}".endswith(f".{end}")]  # with any prefix
    if weights is None or len(found) != len((EMBEDDING, HEAD)):
        return bool(values.get("tie_word_embeddings"))
    return weights.are_equal(*found)


def _is_scaled(values: Published) -> bool:
    """Return whether the decoder's states are scaled before the projection.

    Version 4 of transformers scales them if `tie_word_embeddings`. Version 5 has `scale_decoder_outputs` for T5 and
    never scales those of mT5.
    """
    if values.type == "mt5" and values.version >= TIED_SINCE:
        return False
    return bool(values.get("scale_decoder_outputs", values.get("tie_word_embeddings")))


def _of_head(config: Any) -> tuple[Rule, ...]:
    """Return the rules for what a head does not use, given a `T5Config`."""
    decoder = (Spare(r"decoder(_norm)?\."),) if config.head == "hidden" else ()
    return () if config.head == "text" else (*decoder, Spare(r"projection\."))


UNUSED = {
    "tie_word_embeddings": IN_FILE,
    "scale_decoder_outputs": "the classes of mT5 do not scale since version 5",
}
FAMILY = Family(
    defaults={"t5": DEFAULTS, "mt5": MT5},
    aliases=ALIASES,
    architecture="t5",
    classes="|".join(("ForConditionalGeneration", *HEADS)),
    config=config,
    own_weights={"t5": _of_head, "mt5": _of_head},
    unused=UNUSED,
)
