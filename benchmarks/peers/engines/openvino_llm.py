"""OpenVINO GenAI: a folder exported by `optimum-cli export openvino`, with compressed weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.engines import Ids, Model, Search, before_end

PACKAGES = ("openvino-genai", "openvino", "optimum-intel", "nncf", "transformers", "numpy")
GROUP = 64  # weights of 4 bits; the default of 128 does not divide the widths of small models
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
PRECISION = "precision.txt"
BATCHED_TOKENS = 2**14


def prepare(model: Model, folder: Path) -> None:
    """Export with weights in fp32, int8 or int4."""
    export(model, folder, "text-generation-with-past")


def export(model: Model, folder: Path, task: str) -> None:
    """Run Optimum's command for a task."""
    options = ["--group-size", str(GROUP)] if model.precision == "int4" else []
    command = ["-m", "optimum.commands.optimum_cli", "export", "openvino", "--model", model.checkpoint, "--task", task]
    subprocess.run(
        [sys.executable, *command, "--weight-format", model.precision, *options, str(folder)],
        check=True,
        stdout=sys.stderr,
    )
    (folder / PRECISION).write_text(model.precision, encoding="utf-8")


def properties(folder: Path, threads: int) -> dict[str, Any]:
    """Return OpenVINO's properties; weights in fp32 are also computed in fp32, which is not its default."""
    precision = (folder / PRECISION).read_text(encoding="utf-8")
    return {"INFERENCE_NUM_THREADS": threads, **(EXACT if precision == "fp32" else {})}


class Engine:
    """The pipeline with the option `threads`; prefixes are not kept, since the same prompts come in each round."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = BATCHED_TOKENS
        self._pipeline = openvino_genai.LLMPipeline(
            str(folder), "CPU", scheduler_config=scheduler, **properties(folder, options["threads"])
        )
        self._options = self._pipeline.get_generation_config()
        self._end = self._options.eos_token_id
        self._options.do_sample = False
        self._options.max_new_tokens = search.max_new_tokens
        self._options.min_new_tokens = search.max_new_tokens if search.forced else 0

    def encode(self, sources: Ids) -> Any:
        """Return ids and a mask of ones, (B, S) each; the prompts of a batch have the same length."""
        ids = np.array(sources, np.int64)
        return openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))

    def generate(self, inputs: Any) -> Any:
        """Search one batch."""
        return self._pipeline.generate(inputs, self._options)

    def decode(self, outputs: Any) -> list[list[int]]:
        """Return the targets without the end token."""
        return [before_end(row, self._end) for row in outputs.tokens]
