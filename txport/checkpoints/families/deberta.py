"""DeBERTa (versions 1, 2 and 3) as transformers saves it: contents are compared with relative positions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from txport.checkpoints.families import bert
from txport.checkpoints.family import ACTIVATIONS, Family, Published
from txport.checkpoints.keys import NOTHING, TRAINING
from txport.errors import ConfigError, quoted
from txport.models.rules import Constant, Drop, Rename, Rule, Spare, Split

V2: dict[str, object] = {
    "vocab_size": 128100,
    "hidden_size": 1536,
    "num_hidden_layers": 24,
    "num_attention_heads": 24,
    "intermediate_size": 6144,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "relative_attention": False,
    "max_relative_positions": -1,
    "pad_token_id": 0,
    "position_biased_input": True,
    "pooler_hidden_act": "gelu",
    "legacy": True,
}
V1 = {
    **V2,
    "vocab_size": 50265,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
USUAL = {"deberta": {"cls": 1, "sep": 2, "mask": 50264}, "deberta-v2": {"cls": 1, "sep": 2, "mask": 128000}}
NONLINEAR = {**ACTIVATIONS, "tanh": "tanh"}


def config(values: Published) -> dict[str, object]:
    """Return the values of `DebertaConfig`."""
    has_types = values.get("type_vocab_size") > 0
    pooler = values.word("pooler_hidden_act", NONLINEAR)
    found = bert.kin(values, segment=has_types, pooler=pooler, usual=USUAL[values.type])
    width = values.get("hidden_size")
    values.require("pooler_hidden_size", width)
    narrow = values.get("embedding_size", width)
    if found["head"] == "tokens":
        values.require("legacy", True, *([] if narrow != width else [False]))
    reach = values.get("max_relative_positions")
    reach = reach if reach > 0 else values.get("max_position_embeddings")
    types = _several(values, "pos_att_type", ("c2p", "p2c"))
    return found | {
        "embedding_size": 0 if narrow == width else narrow,
        "positions": "learned" if values.get("position_biased_input") else "none",
        "reach": reach if values.get("relative_attention") else 0,
        "content_to_position": "c2p" in types,
        "position_to_content": "p2c" in types,
        **(_of_version_2(values) if values.type == "deberta-v2" else OF_VERSION_1),
    }


OF_VERSION_1 = {"position_buckets": 0, "position_norm": False, "shared_projections": False}


def _of_version_2(values: Published) -> dict[str, object]:
    values.require("attention_head_size", values.get("hidden_size") // values.get("num_attention_heads"))
    found: dict[str, object] = {
        "position_buckets": max(values.get("position_buckets", 0), 0),
        "position_norm": "layer_norm" in _several(values, "norm_rel_ebd", ("none", "layer_norm")),
        "shared_projections": values.get("share_att_key", False),
    }
    if (kernel := values.get("conv_kernel_size", 0)) > 0:
        found |= {"kernel": kernel, "kernel_groups": values.get("conv_groups", 1)}
        found["kernel_activation"] = "tanh" if values.get("conv_act") is None else values.word("conv_act", NONLINEAR)
    return found


def _several(values: Published, name: str, known: Collection[str]) -> list[str]:
    """Return the words of a value that is a list, or a string with `|` between them; they must be among `known`."""
    given = values.get(name, [])
    words = [word.strip() for word in given.lower().split("|")] if isinstance(given, str) else [*given]
    if not set(words) <= set(known):
        raise ConfigError(f"{name} {quoted(given)} is not supported; it must be of {', '.join(known)}")
    return words


def _of_config(config: Any) -> tuple[Rule, ...]:
    """Return the rules that depend on the config, a `DebertaConfig`."""
    roles = (".attention.query.", ".attention.key.", ".attention.value.")
    norm = "widen_norm" if config.embedding_size else "source_embedding.norm"
    return (
        Split(r"\.attention\.self\.in_proj\.", roles, groups=config.heads),  # of version 1
        Rename(r"^(deberta\.)?embeddings\.LayerNorm\.", f"{norm}."),
    )


SELF = r"^encoder\.layer\.(\d+)\.attention\.self\."
VECTORS = "encoder.0.attention.core.disentangled.positions"
WEIGHTS: tuple[Rule, ...] = (
    *bert.BEFORE,
    Drop(r"mask_predictions\."),  # the discriminator of version 3's training
    Rename(r"^embeddings\.embed_proj\.", "widen."),
    Rename(SELF + r"(query|key|value)_proj\.", r"encoder.\1.attention.\2."),
    Rename(SELF + r"q_bias$", r"encoder.\1.attention.query.bias"),
    Rename(SELF + r"v_bias$", r"encoder.\1.attention.value.bias"),
    Rename(SELF + r"pos_(key_)?proj\.", r"encoder.\1.attention.core.disentangled.key."),
    Rename(SELF + r"pos_q(uery)?_proj\.", r"encoder.\1.attention.core.disentangled.query."),
    Constant(r"encoder\.\d+\.attention\.(core\.disentangled\.)?key\.bias", 0.0),  # of version 1
    Rename(r"^encoder\.rel_embeddings\.", f"{VECTORS}."),
    Rename(r"^encoder\.LayerNorm\.", f"{VECTORS}.norm."),
    Rename(r"^encoder\.conv\.conv\.", "encoder.0.convolution."),
    Rename(r"^encoder\.conv\.LayerNorm\.", "encoder.0.convolution_norm."),
    Rename(r"^lm_predictions\.lm_head\.", "lm_head."),
    Rename(r"^lm_head\.LayerNorm\.", "transform_norm."),
    *bert.WEIGHTS,
    Spare(r"source_embedding\.positions$"),
)
UNUSED = {
    **bert.UNUSED,
    **dict.fromkeys(("pooler_dropout", "cls_dropout"), TRAINING),
    **dict.fromkeys(("z_steps", "padding_idx", "legacy"), NOTHING),
    **dict.fromkeys(("position_buckets", "norm_rel_ebd", "share_att_key", "attention_head_size"), NOTHING),
    **dict.fromkeys(("conv_kernel_size", "conv_groups", "conv_act"), NOTHING),
}
FAMILY = Family(
    defaults={"deberta": V1, "deberta-v2": V2},
    architecture="deberta",
    classes="|".join(bert.HEADS),
    config=config,
    weights=WEIGHTS,
    own_weights=dict.fromkeys(USUAL, _of_config),
    unused=UNUSED,
    off={**bert.OFF, "talking_head": (False,)},
)
