"""ONNX Runtime with an encoder of Optimum's exporter, fused by its optimiser for transformers, quantised dynamically.

A source's vector is the mean over its tokens, or the logits of its classes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks.peers.engines import Ids, Model, Search
from benchmarks.peers.engines.vectors import Feeds, feeds, pooled, task_of

PACKAGES = ("onnxruntime", "optimum", "optimum-onnx", "transformers", "torch", "numpy")
FILE = "model.onnx"


def prepare(model: Model, folder: Path) -> None:
    """Export, fuse, and quantise to int8 by the channels of each matrix."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from optimum.exporters.onnx import main_export

    path = folder / FILE
    config = json.loads((Path(model.checkpoint) / "config.json").read_text(encoding="utf-8"))
    main_export(model.checkpoint, folder, task=task_of(config), do_validation=False)
    fused = optimize_model(
        str(path), model_type="bert", num_heads=config["num_attention_heads"], hidden_size=config["hidden_size"]
    )
    fused.save_model_to_file(str(path))
    if model.precision == "int8":
        # the optimiser's operators have no inferred types
        quantize_dynamic(path, path, per_channel=True, extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT})


class Engine:
    """A session with the option `threads`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        session = onnxruntime.SessionOptions()
        session.intra_op_num_threads = options["threads"]
        self._session = onnxruntime.InferenceSession(folder / FILE, session, providers=["CPUExecutionProvider"])

    def encode(self, sources: Ids) -> Feeds:
        """Return the inputs by name."""
        found = feeds(sources)
        return {each.name: found[each.name] for each in self._session.get_inputs()}

    def generate(self, inputs: Feeds) -> Any:
        """Run one batch."""
        return pooled(self._session.run(None, inputs)[0], inputs)

    def decode(self, outputs: Any) -> list[list[float]]:
        """Return the vectors."""
        found: list[list[float]] = outputs.tolist()
        return found
