"""BART and mBART, as transformers saves them."""

from __future__ import annotations

from typing import Any

from txport.models.families.marian import CLASSES, LAYERS, common
from txport.models.family import Family, Published
from txport.models.weights import Rename, Rule

UNUSED_POSITIONS = 2  # rows at the beginning of the tables of positions that no token has


def config(values: Published) -> dict[str, Any]:
    """The keys of `TransformerConfig`: learned positions, and a norm of what is embedded."""
    values.require("normalize_embedding", True)
    end = values.get("eos_token_id", 2)
    begin = values.get("bos_token_id", 0)
    return common(values) | {
        "norm": "pre" if values.type == "mbart" else "post",
        "positions": "learned",
        "position_offset": UNUSED_POSITIONS,
        "embedding_norm": True,
        "bos_id": begin,
        "start_id": values.get("decoder_start_token_id", end),
        "eos_id": end,
        "add_source_bos": values.type == "bart",
    }


WEIGHTS: tuple[Rule, ...] = (
    Rename(r"^(model\.)?encoder\.embed_positions\.weight$", "source_embedding.positions"),
    Rename(r"^(model\.)?decoder\.embed_positions\.weight$", "target_embedding.positions"),
    *LAYERS,
)
FAMILY = Family(types=("bart", "mbart"), architecture="transformer", classes=CLASSES, config=config, weights=WEIGHTS)
