"""Gemma 2 and 3 as transformers saves them: Gemma with norms before and after sublayers, and two kinds of layers.

Some layers have sliding-window attention. Of a Gemma 3 with image input, only the text model is used.
"""

from __future__ import annotations

from collections.abc import Sequence

from txport.checkpoints.families import gemma, llama
from txport.checkpoints.family import Family, Published
from txport.checkpoints.keys import NOTHING
from txport.errors import ConfigError, quoted
from txport.models.rules import Drop, Rename, Rule, Shift

GEMMA2 = {
    **gemma.DEFAULTS,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}
GEMMA3 = {
    **GEMMA2,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10000.0,
    "final_logit_softcapping": None,
    "attn_logit_softcapping": None,
}
TEXT = "text_config"  # of a model with image input
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


def config(values: Published) -> dict[str, object]:
    """Return the values of `LlamaConfig`."""
    if values.type == "gemma3":
        values = _of_texts(values)
        values.require("use_bidirectional_attention", False, None)
    pattern = 2 if values.type == "gemma2" else values.get("sliding_window_pattern", 6)
    kinds = llama.layer_kinds(values, lambda number: (number + 1) % pattern)
    values = values.changed(layer_types=kinds, hidden_act=values.get("hidden_activation"))
    own = _local_positions if values.type == "gemma3_text" else _capped
    values, more = own(values, kinds)
    return gemma.config(values) | more | {
        "result_norm": True,
        "attention_scale": float(values.get("query_pre_attn_scalar") ** -0.5),
        "logit_cap": _cap(values, "final_logit_softcapping"),
    }  # fmt: skip


def _cap(values: Published, name: str) -> float:
    """Return a soft cap, 0.0 if there is none; raise `ConfigError` for 0, by which transformers divides."""
    found = values.get(name)
    if found is not None and not found:
        raise ConfigError(f"{name} {quoted(found)} is not supported; it must be null or above 0")
    return 0.0 if found is None else float(found)


def _of_texts(values: Published) -> Published:
    """Return the config of the text model; special tokens may also be next to it."""
    tokens = {name: found for name in TOKENS if (found := values.get(name)) is not None}
    found = Published({**values.get(TEXT, {}), **tokens, "model_type": "gemma3_text"}, GEMMA3, values.special)
    found.read = values.read
    return found


def _capped(values: Published, _: Sequence[str]) -> tuple[Published, dict[str, object]]:
    """Return `values`, and the value of `LlamaConfig` of Gemma 2 alone: the soft cap of attention scores."""
    return values, {"attention_cap": _cap(values, "attn_logit_softcapping")}


def _local_positions(values: Published, kinds: Sequence[str]) -> tuple[Published, dict[str, object]]:
    """Return `values` and the values of `LlamaConfig` of Gemma 3 alone: norms of heads, local positions, both ways."""
    values.require("attn_logit_softcapping", None)  # transformers' attention ignores it
    both_ways = bool(values.get("use_bidirectional_attention", False))
    if both_ways and values.head(llama.HEADS, llama.TEXT) == llama.TEXT:
        raise ConfigError("use_bidirectional_attention is not supported in a class that writes text")
    if both_ways and values.get("sliding_window"):
        values = values.changed(sliding_window=values.get("sliding_window") // 2 + 1)  # to each side
    values, local = llama.local_positions(values, kinds, values.get("rope_local_base_freq"))
    return values, {"head_norm": True, "both_ways": both_ways, **local}


WEIGHTS: tuple[Rule, ...] = (
    Drop(r"(model\.)?(vision_tower|multi_modal_projector)\."),  # image encoder
    Rename(r"^(model\.)?language_model\.", ""),
    Rename(r"\.post_attention_layernorm\.", ".attention_residual.result_norm."),
    Rename(r"\.pre_feedforward_layernorm\.", ".feed_forward_residual.norm."),
    Rename(r"\.post_feedforward_layernorm\.", ".feed_forward_residual.result_norm."),
    *llama.WEIGHTS,
    Shift(r"norm\.weight$", 1.0),
)
IMAGES = "it is of images, which are left out"
UNUSED = {
    **llama.UNUSED,
    **dict.fromkeys(("vision_config", "mm_tokens_per_image", "vision_use_head"), IMAGES),
    **dict.fromkeys(("boi_token_index", "eoi_token_index", "image_token_index", "image_token_id"), IMAGES),
    "_sliding_window_pattern": "layer_types says it",
    "sliding_window_size": NOTHING,
}
FAMILY = Family(
    defaults={"gemma2": GEMMA2, "gemma3_text": GEMMA3, "gemma3": {}},
    architecture="llama",
    classes=rf"{llama.CLASSES}|Gemma3ForConditionalGeneration",
    config=llama.of_class(config),
    weights=WEIGHTS,
    own_weights=llama.of_head(("gemma2", "gemma3_text", "gemma3")),
    unused=UNUSED,
    off=gemma.OFF,
    part=TEXT,
)
