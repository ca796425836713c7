"""ELECTRA discriminators and generators as transformers saves them; embeddings may be narrower than layers."""

from __future__ import annotations

from txport.checkpoints.families import bert
from txport.checkpoints.family import Family, Published
from txport.models.rules import Rename

DEFAULTS = {
    **bert.BERT,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
HEADS = {**bert.HEADS, "ForPreTraining": "replaced"}


def config(values: Published) -> dict[str, object]:
    """Return the values of `BertConfig`; there is no projection if embeddings are as wide as the layers."""
    found = bert.kin(values, heads=HEADS, pooler="gelu", usual=bert.USUAL, has_gelu=True)
    narrow = values.get("embedding_size")
    return found | {"embedding_size": 0 if narrow == found["d_model"] else narrow}


WEIGHTS = (
    *bert.BEFORE,
    Rename(r"^embeddings_project\.", "widen."),
    Rename(r"^(discriminator|generator)_predictions\.dense\.", "transform."),
    Rename(r"^discriminator_predictions\.dense_prediction\.", "classifier."),
    Rename(r"^generator_predictions\.LayerNorm\.", "transform_norm."),
    Rename(r"^generator_lm_head\.", "projection."),
    *bert.WEIGHTS,
)
FAMILY = Family(
    defaults={"electra": DEFAULTS},
    architecture="bert",
    classes="|".join(HEADS),
    config=config,
    weights=WEIGHTS,
    unused=bert.UNUSED,
    off=bert.OFF,
)
