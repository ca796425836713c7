"""ALBERT as transformers saves it: layers share their weights, and embeddings are narrower than layers."""

from __future__ import annotations

from txport.checkpoints.families import bert
from txport.checkpoints.family import Family, Published
from txport.checkpoints.keys import NOTHING
from txport.errors import ConfigError
from txport.models.rules import Drop, Rename

DEFAULTS = {
    **bert.BERT,
    "vocab_size": 30000,
    "embedding_size": 128,
    "hidden_size": 4096,
    "num_hidden_groups": 1,
    "num_attention_heads": 64,
    "intermediate_size": 16384,
    "inner_group_num": 1,
    "hidden_act": "gelu_new",
    "hidden_dropout_prob": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
USUAL = {"cls": 2, "sep": 3, "mask": 4}


def config(values: Published) -> dict[str, object]:
    """Return the values of `BertConfig`.

    `repeated` is "cycles" for the layers of one group in turn, "runs" for one layer of each group several times in a
    row.
    """
    groups = values.get("num_hidden_groups")
    inner = values.get("inner_group_num")
    if groups > 1 and inner > 1:
        raise ConfigError(f"num_hidden_groups {groups} and inner_group_num {inner} are not supported; one must be 1")
    if groups > 1 and values.get("num_hidden_layers") % groups:
        both = f"num_hidden_layers {values.get('num_hidden_layers')} and num_hidden_groups {groups}"
        raise ConfigError(f"{both} are not supported; all groups must have the same number of layers")
    found = bert.kin(values, ends=("bos", "eos"), usual=USUAL)
    return found | {
        "encoder_layers": found["encoder_layers"] * inner,
        "distinct_layers": groups * inner,
        "repeated": "cycles" if inner > 1 else "runs",
        "embedding_size": values.get("embedding_size"),
    }


LAYER = r"^(encoder\.\d+)\."
WEIGHTS = (
    *bert.BEFORE,
    Drop(r"sop_classifier\."),  # sentence-order prediction, which is not used
    Rename(r"^encoder\.embedding_hidden_mapping_in\.", "widen."),
    Rename(r"^encoder\.albert_layer_groups\.0\.albert_layers\.(\d+)\.", r"encoder.\1."),
    Rename(r"^encoder\.albert_layer_groups\.(\d+)\.albert_layers\.0\.", r"encoder.\1."),
    Rename(LAYER + r"attention\.dense\.", r"\1.attention.output."),
    Rename(LAYER + r"attention\.LayerNorm\.", r"\1.attention_residual.norm."),
    Rename(LAYER + r"ffn\.", r"\1.feed_forward.inner."),
    Rename(LAYER + r"ffn_output\.", r"\1.feed_forward.outer."),
    Rename(LAYER + r"full_layer_layer_norm\.", r"\1.feed_forward_residual.norm."),
    Rename(r"^predictions\.decoder\.", "projection."),
    Rename(r"^predictions\.dense\.", "transform."),
    Rename(r"^predictions\.LayerNorm\.", "transform_norm."),
    Rename(r"^predictions\.bias$", "projection.bias"),
    *bert.WEIGHTS,
)
UNUSED = {
    **bert.UNUSED,
    **dict.fromkeys(("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"), NOTHING),
    **dict.fromkeys(("layers_to_keep",), NOTHING),
}
FAMILY = Family(
    defaults={"albert": DEFAULTS},
    architecture="bert",
    classes="|".join(bert.HEADS),
    config=config,
    weights=WEIGHTS,
    unused=UNUSED,
    off=bert.OFF,
)
