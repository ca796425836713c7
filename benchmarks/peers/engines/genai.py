"""onnxruntime-genai: a graph of its model builder with a folder's weights, run by its generator."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime_genai
from numpy.typing import NDArray

from benchmarks.peers.engines import Ids, Model, Search, before_end

PACKAGES = ("onnxruntime-genai", "onnxruntime", "transformers", "numpy")
CONFIG = "genai_config.json"
BLOCKS = ("block_size=32", "accuracy_level=4")  # accuracy level 4: activations in 8 bits


def prepare(model: Model, folder: Path) -> None:
    """Run the model builder; matrices of 8 and of 4 bits are both in blocks."""
    options = [] if model.precision == "fp32" else ["--extra_options", *BLOCKS]
    cache = folder / "cache"
    command = ["-m", "onnxruntime_genai.models.builder", "-i", model.checkpoint, "-o", str(folder), "-c", str(cache)]
    subprocess.run(
        [sys.executable, *command, "-p", model.precision, "-e", "cpu", *options], check=True, stdout=sys.stderr
    )


class Engine:
    """The generator with the option `threads`; the prompts of a batch have the same length."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        config = onnxruntime_genai.Config(str(folder))
        session = {"intra_op_num_threads": options["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._model = onnxruntime_genai.Model(config)
        ends = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["model"]["eos_token_id"]
        self._ends = [ends] if isinstance(ends, int) else ends
        self._search = search

    def encode(self, sources: Ids) -> NDArray[np.int32]:
        """Return ids, (B, S)."""
        return np.array(sources, np.int32)

    def generate(self, inputs: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Search one batch."""
        rows, length = inputs.shape
        longest = length + self._search.max_new_tokens
        params = onnxruntime_genai.GeneratorParams(self._model)
        least = longest if self._search.forced else 0
        params.set_search_options(do_sample=False, batch_size=rows, max_length=longest, min_length=least)
        generator = onnxruntime_genai.Generator(self._model, params)
        generator.append_tokens(inputs)
        while not generator.is_done():
            generator.generate_next_token()
        return [generator.get_sequence(row)[length:] for row in range(rows)]

    def decode(self, outputs: list[NDArray[np.int32]]) -> list[list[int]]:
        """Return the targets without the end token."""
        return [before_end(row, self._ends[0]) for row in outputs]
