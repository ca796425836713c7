"""txport's cpu bundles of encoders: a vector of each source, the mean over its tokens, or the logits of its classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import txport
from benchmarks.peers.engines import Ids, Search, txport_cpu
from txport.api.encoding import pool
from txport.models.facts import HIDDEN, LOGITS
from txport.runtimes.base import EncoderRuntime
from txport.runtimes.inputs import infer

PACKAGES = txport_cpu.PACKAGES
prepare = txport_cpu.prepare


class Engine:
    """A bundle with the option `threads`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any], runtime: str = "ort") -> None:
        model = txport.load(folder, runtime=runtime, threads=options["threads"])
        assert isinstance(model.runtime, EncoderRuntime)
        self._runtime, self._facts = model.runtime, model.facts

    def encode(self, sources: Ids) -> Ids:
        """Return the ids unchanged."""
        return sources

    def generate(self, inputs: Ids) -> Any:
        """Run one batch."""
        found = infer(self._runtime, inputs, self._facts)
        return [each[LOGITS] if LOGITS in each else pool(each[HIDDEN], "mean") for each in found]

    def decode(self, outputs: Any) -> list[list[float]]:
        """Return the vectors."""
        return [each.tolist() for each in outputs]
