"""txport's own cuda bundles, by the search that users call, after the warm-up that servers make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import txport
from benchmarks.peers.engines import Ids, Search, before_end

PACKAGES = ("txport", "onnxruntime", "onnxruntime-gpu", "numpy")


class Engine:
    """Options: `runtime`, `provider`, `batch_size`, and the fewest and the most `source_tokens`.

    The folder is the bundle.
    """

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        self._model = txport.load(folder, runtime=options["runtime"], provider=options["provider"])
        self._end = self._model.facts.writes.end
        self._batch = options["batch_size"]
        self._options: dict[str, Any] = {
            "beams": search.beams,
            "max_new_tokens": search.max_new_tokens,
            "min_new_tokens": search.max_new_tokens if search.forced else 0,
            "scores": search.beams > 1,
        }
        shortest, longest = options["source_tokens"]
        self._model.warm(self._batch, range(shortest, longest + 1), **self._options)

    def encode(self, sources: Ids) -> Ids:
        """Ids are what it takes."""
        return sources

    def generate(self, inputs: Ids) -> Any:
        """Search."""
        return self._model.search(inputs, batch_size=self._batch, **self._options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """The best hypothesis of each source."""
        return [before_end(found[0].tokens, self._end) for found in outputs]
