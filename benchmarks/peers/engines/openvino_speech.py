"""OpenVINO with a Whisper that Optimum Intel exported, and greedy search with its encoder and its stateful decoder.

These are the graphs that OpenVINO GenAI runs, too; its pipeline starts from samples, and here features are given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from benchmarks.peers.engines import Model, Search
from benchmarks.peers.engines.openvino_llm import export, properties
from benchmarks.peers.engines.speech import Target

PACKAGES = ("openvino", "optimum-intel", "nncf", "transformers", "numpy")


def prepare(model: Model, folder: Path) -> None:
    """Export with weights in fp32 or int8; activations are rounded while it runs."""
    export(model, folder, "automatic-speech-recognition-with-past")
    Target.of(model.checkpoint).save(folder)


class Engine:
    """Both compiled graphs with the option `threads`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        core = openvino.Core()
        self._encoder, self._decoder = (
            core.compile_model(folder / f"openvino_{part}_model.xml", "CPU", properties(folder, options["threads"]))
            for part in ("encoder", "decoder")
        )
        self._steps = self._decoder.create_infer_request()
        self._target = Target.load(folder)
        self._search = search

    def encode(self, sources: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the features unchanged."""
        return sources

    def generate(self, inputs: NDArray[np.float32]) -> NDArray[np.int64]:
        """Search one batch; return the targets (B, T)."""
        feeds = {"encoder_hidden_states": self._encoder(inputs)[0], "beam_idx": np.arange(len(inputs), dtype=np.int32)}
        self._steps.reset_state()
        ids = np.tile(np.array(self._target.begin), (len(inputs), 1))
        found = []
        for _ in range(self._search.max_new_tokens):
            logits = self._steps.infer({**feeds, "input_ids": ids})[0][:, -1]
            logits[:, self._target.end] = -np.inf
            ids = logits.argmax(axis=-1)[:, None]
            found.append(ids)
        return np.concatenate(found, axis=1)

    def decode(self, outputs: NDArray[np.int64]) -> list[list[int]]:
        """Return the targets."""
        found: list[list[int]] = outputs.tolist()
        return found
