"""txport's portable bundles of encoders on OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.engines import Search, txport_encoder, txport_portable

PACKAGES = txport_portable.PACKAGES
prepare = txport_portable.prepare


class Engine(txport_encoder.Engine):
    """A portable bundle with the options `threads` and `runtime`."""

    def __init__(self, folder: Path, search: Search, options: dict[str, Any]) -> None:
        super().__init__(folder, search, options, runtime=options["runtime"])
