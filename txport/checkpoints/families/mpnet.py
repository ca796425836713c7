"""MPNet as transformers saves it: relative position biases, shared by all layers."""

from __future__ import annotations

from txport.checkpoints.families import bert
from txport.checkpoints.family import Family, Published
from txport.models.rules import Rename

BUCKETS, FARTHEST = 32, 128  # of distances; fixed in transformers, regardless of the config
DEFAULTS = {**bert.ROBERTA, "vocab_size": 30527, "relative_attention_num_buckets": BUCKETS}
OFFSET = 2  # rows of the position table that no token uses


def config(values: Published) -> dict[str, object]:
    """Return the values of `BertConfig`."""
    values.require("pad_token_id", 1)  # its positions depend on it
    values.require("relative_attention_num_buckets", BUCKETS)
    found = bert.kin(values, offset=OFFSET, segment=False, ends=("bos", "eos"), has_gelu=True)
    return found | {"buckets": BUCKETS, "farthest": FARTHEST}


LAYER = r"^encoder\.layer\.(\d+)\.attention\."
WEIGHTS = (
    *bert.BEFORE,
    Rename(r"^encoder\.relative_attention_bias\.", "encoder.0.attention.core.bias."),
    Rename(LAYER + r"attn\.q\.", r"encoder.\1.attention.query."),
    Rename(LAYER + r"attn\.k\.", r"encoder.\1.attention.key."),
    Rename(LAYER + r"attn\.v\.", r"encoder.\1.attention.value."),
    Rename(LAYER + r"attn\.o\.", r"encoder.\1.attention.output."),
    Rename(LAYER + r"LayerNorm\.", r"encoder.\1.attention_residual.norm."),
    *bert.WEIGHTS,
)
FAMILY = Family(
    defaults={"mpnet": DEFAULTS},
    architecture="bert",
    classes="|".join(bert.HEADS),
    config=config,
    weights=WEIGHTS,
    unused=bert.UNUSED,
    off=bert.OFF,
)
