"""PyTorch, with txport's torch runtime and search: eager, or with the decoder compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.peers.engines import Ids, Model, Search, before_end
from txport.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from txport.errors import UnsupportedError
from txport.runtimes.pytorch import TorchRuntime
from txport.search.generate import generate
from txport.search.options import SearchOptions

PACKAGES = ("torch", "numpy")


def prepare(model: Model, folder: Path) -> None:
    """Write the checkpoint to a folder; raise `UnsupportedError` for other precisions than fp32."""
    if model.precision != "fp32":
        raise UnsupportedError(f"PyTorch is measured in fp32, got {model.precision}")
    save_checkpoint(folder / "checkpoint", load_checkpoint(model.checkpoint).in_memory().model)


class Engine:
    """PyTorch with the options `threads` and `compile`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        torch.set_num_threads(options["threads"])
        model = load_checkpoint(str(folder / "checkpoint")).in_memory().model
        if options["compile"]:
            model.decode = torch.compile(model.decode, dynamic=True)  # type: ignore[method-assign]
        self._runtime = TorchRuntime(model)
        self._facts = model.facts
        length = search.max_new_tokens
        self._options = SearchOptions(
            beams=search.beams, max_new_tokens=length, min_new_tokens=length if search.forced else 0
        )

    def encode(self, sources: Ids) -> Ids:
        """Return the ids unchanged."""
        return sources

    def generate(self, inputs: Ids) -> Any:
        """Search one batch."""
        return generate(self._runtime, inputs, self._facts, self._options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the best hypothesis of each source."""
        return [before_end(found[0].tokens, self._facts.writes.end) for found in outputs]
