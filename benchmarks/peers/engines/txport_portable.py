"""txport's portable bundles on OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import txport
from benchmarks.peers.engines import Model, Search, txport_cpu

PACKAGES = ("txport", "openvino", "numpy")


def prepare(model: Model, folder: Path) -> None:
    """Export a bundle; fails if the bundle differs from PyTorch."""
    txport.export(model.checkpoint, folder, target="portable", precision=model.precision)


class Engine(txport_cpu.Engine):
    """A portable bundle with the options of `txport_cpu.Engine` and `runtime`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        super().__init__(folder, search, options, runtime=options["runtime"])
