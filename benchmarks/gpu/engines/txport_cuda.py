"""txport's cuda bundles, with the public search, after the warm-up of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import txport
from benchmarks.peers.engines import Ids, Search, before_end

PACKAGES = ("txport", "onnxruntime", "onnxruntime-gpu", "numpy")


class Engine:
    """A cuda bundle with the options `runtime`, `provider`, `batch_size`, and `source_tokens` (minimum, maximum).

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
        """Return the ids unchanged."""
        return sources

    def generate(self, inputs: Ids) -> Any:
        """Search one batch."""
        return self._model.search(inputs, batch_size=self._batch, **self._options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the best hypothesis of each source."""
        return [before_end(found[0].tokens, self._end) for found in outputs]
