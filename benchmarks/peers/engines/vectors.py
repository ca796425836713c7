"""What the engines of encoders share: padded inputs, and the mean over the tokens of a source, or its logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.engines import Ids

FEATURES, CLASSES = "feature-extraction", "text-classification"  # Optimum's names of the tasks
MASK = "attention_mask"
Feeds = dict[str, NDArray[np.int64]]


def feeds(sources: Ids) -> Feeds:
    """Return the inputs of an exported BERT by name, (B, T) each; the padding is masked."""
    lengths = np.array([len(source) for source in sources])
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(mask.shape, np.int64)
    ids[mask] = [id_ for source in sources for id_ in source]
    return {"input_ids": ids, MASK: mask.astype(np.int64), "token_type_ids": np.zeros_like(ids)}


def task_of(config: Mapping[str, Any]) -> str:
    """Return Optimum's name of the task of a folder with this `config.json`."""
    return CLASSES if config["architectures"][0].endswith("ForSequenceClassification") else FEATURES


def pooled(hidden: NDArray[Any], inputs: Feeds) -> NDArray[Any]:
    """Return the mean over the tokens, (B, T, D) -> (B, D); logits (B, C) as they are."""
    if hidden.ndim == 2:
        return hidden
    mask = inputs[MASK][..., None]
    found: NDArray[Any] = (hidden * mask).sum(axis=1) / mask.sum(axis=1)
    return found
