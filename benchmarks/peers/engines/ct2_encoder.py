"""CTranslate2's `Encoder`. A source's vector is the mean over its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np

from benchmarks.peers.engines import Ids, Model, Search
from benchmarks.peers.engines.ct2 import convert_folder
from benchmarks.peers.engines.vectors import Feeds, feeds, pooled

PACKAGES = ("ctranslate2", "transformers", "numpy")


def prepare(model: Model, folder: Path) -> None:
    """Convert and quantise a folder of transformers by CTranslate2's own converter."""
    convert_folder(model, folder)


class Engine:
    """CTranslate2 with the option `threads` (intra_threads); the type of its numbers is that of the folder."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        self._encoder = ctranslate2.Encoder(str(folder), device="cpu", intra_threads=options["threads"])

    def encode(self, sources: Ids) -> tuple[Ids, Feeds]:
        """Return the ids, and the mask of their batch."""
        return [list(source) for source in sources], feeds(sources)

    def generate(self, inputs: tuple[Ids, Feeds]) -> Any:
        """Run one batch."""
        ids, mask = inputs
        return pooled(np.array(self._encoder.forward_batch(ids).last_hidden_state), mask)

    def decode(self, outputs: Any) -> list[list[float]]:
        """Return the vectors."""
        found: list[list[float]] = outputs.tolist()
        return found
