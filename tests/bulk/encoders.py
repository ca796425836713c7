"""Small bundles of encoder-only models: one for each ability."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.api.test_rank import IDS, SIZES, reranker
from tests.seeded import bundle_of, saved
from txport.checkpoints.checkpoint import load_checkpoint
from txport.models.architectures.bert import BertConfig

HEADS: dict[str, dict[str, Any]] = {
    "embed": {"head": "hidden"},
    "tag": {"head": "token_labels", "labels": ("A", "B")},
    "fill": {"head": "tokens"},
    "answer": {"head": "spans"},
}


def make_bundles(folder: Path) -> dict[str, Path]:
    """Bundles by ability; the labels of `classify` are exclusive."""
    reranker(folder / "classify-model", labels=("bad", "good"))
    tokenizer = (folder / "classify-model" / "tokenizer.json").read_bytes()
    for ability, head in HEADS.items():
        place = folder / f"{ability}-model"
        saved(BertConfig(**SIZES, **IDS, **head), place)
        (place / "tokenizer.json").write_bytes(tokenizer)
    names = ("classify", *HEADS)
    return {name: bundle_of(load_checkpoint(str(folder / f"{name}-model")), folder / name).path for name in names}
