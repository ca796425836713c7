"""Gemma, as transformers' `GemmaForCausalLM` saves it: a Llama whose norms multiply by 1 + weight."""

from __future__ import annotations

from txport.checkpoints.families import llama
from txport.checkpoints.family import Family, Published
from txport.models.rules import Shift

DEFAULTS = {
    **llama.LLAMA,
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "tie_word_embeddings": True,
}


def config(values: Published) -> dict[str, object]:
    """Return the values of `LlamaConfig`: embeddings are multiplied by sqrt(d_model).

    The first releases say "gelu" and mean its approximation, with which they were trained, as transformers 5 does.
    """
    if values.type == "gemma" and values.get("hidden_act") == "gelu":
        values = values.changed(hidden_act="gelu_pytorch_tanh")
    return llama.config(values) | {"scale_embedding": True}


UNUSED = {**llama.UNUSED, "hidden_activation": "its classes read hidden_act"}
OFF = {**llama.OFF, "use_bidirectional_attention": (False,)}
FAMILY = Family(
    defaults={"gemma": DEFAULTS},
    architecture="llama",
    classes=llama.CLASSES,
    config=llama.of_class(config),
    own_weights=llama.of_head(("gemma",)),
    weights=(*llama.WEIGHTS, Shift(r"norm\.weight$", 1.0)),
    unused=UNUSED,
    off=OFF,
)
