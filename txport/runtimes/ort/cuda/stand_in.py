"""Run a cuda bundle on the CPU, in fp32. The driver is the same as on a GPU, over a device with stricter checks."""

from __future__ import annotations

from txport.bundles.bundle import Bundle
from txport.errors import UnsupportedError
from txport.runtimes.base import GraphRuntime
from txport.runtimes.ort.cuda.driver import CudaRuntime
from txport.runtimes.ort.cuda.graphs import Graphs
from txport.runtimes.ort.cuda.host import HostDevice
from txport.runtimes.ort.widened import start_widened, widened


def require(provider: str, precision: str) -> None:
    """See `runtimes.require`."""
    if provider != "cpu":
        raise UnsupportedError(f"cuda-stand-in is the CPU in a GPU's place, got provider {provider!r}; use runtime ort")


def load(bundle: Bundle, *, precision: str, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a cuda bundle on the CPU, in fp32; raise `BundleError` for a graph that can't be cast."""
    sessions, ports = start_widened(bundle, threads)
    described = {role: widened(graph) for role, graph in bundle.manifest.driven.items()}
    return CudaRuntime(bundle.manifest.facts, Graphs(described, sessions, ports.__getitem__), HostDevice())
