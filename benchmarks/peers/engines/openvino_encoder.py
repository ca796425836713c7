"""OpenVINO with an encoder that Optimum Intel exported: a vector of each source, the mean over its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openvino

from benchmarks.peers.engines import Ids, Model, Search
from benchmarks.peers.engines.openvino_llm import export, properties
from benchmarks.peers.engines.vectors import FEATURES, Feeds, feeds, pooled

PACKAGES = ("openvino", "optimum-intel", "nncf", "transformers", "numpy")


def prepare(model: Model, folder: Path) -> None:
    """Export with weights in fp32 or int8; activations are rounded while it runs."""
    export(model, folder, FEATURES)


class Engine:
    """A compiled model with the option `threads`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        path = folder / "openvino_model.xml"
        self._model = openvino.Core().compile_model(path, "CPU", properties(folder, options["threads"]))

    def encode(self, sources: Ids) -> Feeds:
        """Return the inputs by name."""
        found = feeds(sources)
        return {name: found[name] for each in self._model.inputs for name in each.names & found.keys()}

    def generate(self, inputs: Feeds) -> Any:
        """Run one batch."""
        return pooled(self._model(inputs)[0], inputs)

    def decode(self, outputs: Any) -> list[list[float]]:
        """Return the vectors."""
        found: list[list[float]] = outputs.tolist()
        return found
