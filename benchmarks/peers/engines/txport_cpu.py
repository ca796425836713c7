"""txport's cpu bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import txport
from benchmarks.peers.engines import Ids, Model, Search, Sources, before_end, begins
from txport.search.scoring import score

PACKAGES = ("txport", "onnxruntime", "onnxruntime-gpu", "numpy")


def prepare(model: Model, folder: Path) -> None:
    """Export a bundle; fails if the bundle differs from PyTorch."""
    txport.export(model.checkpoint, folder, target="cpu", precision=model.precision, rows=model.rows)


class Engine:
    """A bundle with the options `threads` (per operator), `workers` (parallel batches) and `batch_size`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any], runtime: str = "ort") -> None:
        self._model = txport.load(folder, runtime=runtime, threads=options["threads"], workers=options["workers"])
        self.end = self._model.facts.writes.end
        self._options = {
            "beams": search.beams,
            "max_new_tokens": search.max_new_tokens,
            "min_new_tokens": search.max_new_tokens if search.forced else 0,
            "batch_size": options["batch_size"],
            "scores": search.beams > 1,
        }
        self._begin = begins(self._model.facts)

    def encode(self, sources: Sources) -> Sources:
        """Return the sources unchanged."""
        return sources

    def generate(self, inputs: Sources) -> Any:
        """Search one batch."""
        return self._model.search(inputs, **self._prefixes(inputs), **self._options)

    def first(self, inputs: Sources) -> Any:
        """See `FirstEngine`."""
        options = {**self._options, "max_new_tokens": 1, "min_new_tokens": 1}
        return self._model.search(inputs, **self._prefixes(inputs), **options)

    def _prefixes(self, inputs: Sources) -> dict[str, Any]:
        return {"prefixes": [self._begin] * len(inputs)} if self._begin else {}

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the best hypothesis of each source."""
        return [before_end(found[0].tokens[len(self._begin) :], self.end) for found in outputs]

    def score(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """See `ScoringEngine`."""
        return [list(found.token_scores) for found in score(self._model.runtime, sources, targets, self._model.facts)]
