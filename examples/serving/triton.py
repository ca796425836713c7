"""Make a model repository of the Triton Inference Server from a bundle of an encoder-only model, without txport.

python triton.py BUNDLE REPOSITORY
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_BATCH = 32
TYPES = {"int64": "TYPE_INT64", "int32": "TYPE_INT32", "float32": "TYPE_FP32", "float16": "TYPE_FP16"}
CONFIG = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {batch}
dynamic_batching {{ }}
input [ {inputs} ]
output [ {outputs} ]
"""


def main(bundle: Path, repository: Path) -> None:
    """Write REPOSITORY/NAME, where NAME is that of the bundle's folder."""
    graphs = json.loads((bundle / "txport.json").read_text(encoding="utf-8"))["graphs"]
    if graphs.keys() != {"model"}:
        sys.exit(f"{bundle} generates text, and Triton has no search for it; serve it with txport serve")
    folder = repository / bundle.resolve().name
    graph = bundle / graphs["model"]["file"]
    shutil.copytree(graph.parent, folder / "1")  # the graph, and its weights if they are in a file of their own
    ports = {key: ports_of(graphs["model"][key]) for key in ("inputs", "outputs")}
    config = CONFIG.format(name=folder.name, batch=MAX_BATCH, **ports)
    (folder / "config.pbtxt").write_text(config, encoding="utf-8")


def ports_of(ports: Sequence[dict[str, Any]]) -> str:
    """Return the entries of ports. Triton adds the batch to the dims, and needs one dim besides it."""
    entries = []
    for port in ports:
        dims = [dim if isinstance(dim, int) else -1 for dim in port["dims"][1:]]
        shape = f"dims: {dims}" if dims else "dims: [ 1 ] reshape { shape: [ ] }"
        entries.append(f'{{ name: "{port["name"]}" data_type: {TYPES[port["dtype"]]} {shape} }}')
    return ", ".join(entries)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
