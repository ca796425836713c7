"""How fast this machine reads memory, and how many bytes of weights a step reads: the bound of a step of few rows."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_model
from txport.bundles.ports import PROJECT, SEEK, STEP, screens
from txport.system.cores import cores

PASSES = 10
LOOKUPS = ("Gather", "GatherBlockQuantized")  # these read a few rows of all but their second input


def step_bytes(bundle: Bundle, beams: int = 1) -> int | None:
    """Bytes of all weights that one step of the decoder reads; None for a target without a graph for a step."""
    if STEP not in bundle.manifest.graphs:
        return None
    import onnx

    from txport.exporters.check import nodes
    from txport.runtimes.ort.sessions import may_saturate

    graph = read_model(bundle.file(STEP), weights=False).graph
    shortened = screens(bundle.manifest.facts, bundle.manifest.precision) and not may_saturate()
    likeliest = beams == 1 and shortened
    unread = PROJECT if likeliest else SEEK  # of the nodes with branches, the one that has nothing to do
    kept = onnx.GraphProto(node=[node for node in graph.node if node.name != unread])
    read = {name for node in nodes(kept) for name in (node.input[1:2] if node.op_type in LOOKUPS else node.input)}
    places = {
        entries["offset"]: int(entries["length"])
        for tensor in graph.initializer
        if tensor.name in read and (entries := {entry.key: entry.value for entry in tensor.external_data})
    }
    return sum(places.values())


class Reader:
    """Memory to read, as much at a time as a step does, so that it lies in the same caches."""

    def __init__(self, size: int, threads: int | None = None) -> None:
        """`size` in bytes; `threads` read together, by default one for each core that this process may use."""
        count = threads or cores()
        self._parts: list[NDArray[np.uint8]] = np.array_split(np.ones(size, np.uint8), count)
        self._size = size
        self._together = threading.Barrier(count)

    def measure(self) -> float:
        """Bytes per second over a few passes."""
        with ThreadPoolExecutor(len(self._parts)) as executor:
            return PASSES * self._size / max(executor.map(self._read, self._parts))

    def _read(self, part: NDArray[np.uint8]) -> float:
        part.max()
        self._together.wait()
        started = time.perf_counter()
        for _ in range(PASSES):
            part.max()
        return time.perf_counter() - started
