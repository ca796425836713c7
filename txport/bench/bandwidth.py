"""Memory read bandwidth, and bytes of weights read per decoder step: they limit the speed of a step of few rows."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_model
from txport.system.cores import cores
from txport.targets.cpu import PROJECT, SEEK, screens
from txport.targets.ports import STEP

PASSES = 10
# These read only a few rows of their tables; attention's are the cosines and sines of positions.
LOOKUPS = frozenset({"Gather", "GatherBlockQuantized", "GroupQueryAttention", "RotaryEmbedding"})


def step_bytes(bundle: Bundle, beams: int = 1) -> int | None:
    """Return the bytes of weights that one decoder step reads; None for a target without a step graph."""
    if STEP not in bundle.manifest.graphs:
        return None
    import onnx

    from txport.exporters.check import nodes
    from txport.runtimes.ort.sessions import may_saturate

    graph = read_model(bundle.file(STEP), weights=False).graph
    shortened = screens(bundle.manifest.facts, bundle.manifest.precision) and not may_saturate()
    likeliest = beams == 1 and shortened
    unread = PROJECT if likeliest else SEEK  # the branching node that is skipped
    kept = onnx.GraphProto(node=[node for node in graph.node if node.name != unread])
    read = {name for node in nodes(kept) if node.op_type not in LOOKUPS for name in node.input}
    places = {
        entries["offset"]: int(entries["length"])
        for tensor in graph.initializer
        if tensor.name in read and (entries := {entry.key: entry.value for entry in tensor.external_data})
    }
    return sum(places.values())


class Reader:
    """Measure read bandwidth with a buffer of the size that a step reads, so that CPU caches have the same effect."""

    def __init__(self, size: int, threads: int | None = None) -> None:
        """`size` is in bytes; `threads` read in parallel, by default one per core that is available to this process."""
        count = threads or cores()
        self._parts: list[NDArray[np.uint8]] = np.array_split(np.ones(size, np.uint8), count)
        self._size = size
        self._together = threading.Barrier(count)

    def measure(self) -> float:
        """Return bytes per second over `PASSES` passes."""
        with ThreadPoolExecutor(len(self._parts)) as executor:
            return PASSES * self._size / max(executor.map(self._read, self._parts))

    def _read(self, part: NDArray[np.uint8]) -> float:
        part.max()
        self._together.wait()
        started = time.perf_counter()
        for _ in range(PASSES):
            part.max()
        return time.perf_counter() - started
