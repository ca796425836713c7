"""What runs a bundle. Never imports an exporter.

Adding a runtime is a file with `require(provider)` and `load(...)`, a line of `RUNTIMES`, and its package in
pyproject.toml.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from txport.bundles.foreign.manifest import FOREIGN, ForeignManifest, names_differ
from txport.bundles.ports import compare_ports
from txport.errors import BundleError, UnsupportedError, quoted
from txport.system.machine import cores
from txport.system.numbers import whole
from txport.system.packages import needed

if TYPE_CHECKING:
    from txport.bundles.bundle import Bundle
    from txport.models.checkpoint import Checkpoint
    from txport.runtimes.base import GraphRuntime, Runtime

THREADS_A_CORE, LEAST_THREADS = 4, 16  # more wait for each other, and thousands are never done with starting
NAMED = 3  # ports in an error
ONNX_RUNTIME = re.compile(r"onnxruntime(-\w+)*")


class Entry(NamedTuple):
    """A runtime: its module, the package that it needs, what to install for that, and whose bundles it runs."""

    module: str
    needs: str
    install: str
    targets: tuple[str, ...]  # none: it runs the checkpoint


RUNTIMES = {
    "ort": Entry("txport.runtimes.ort.runtime", "onnxruntime", "txport", ("portable", "cpu", "foreign")),
    "reference": Entry("txport.runtimes.reference", "onnx", "txport[export]", ("portable", "foreign")),
    "torch": Entry("txport.runtimes.pytorch", "torch", "txport[export]", ()),
}
MODULES = {name: entry.module for name, entry in RUNTIMES.items()}
GRAPH_RUNTIMES = tuple(name for name, entry in RUNTIMES.items() if entry.targets)
PROVIDERS = {  # of ONNX Runtime, by short name
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "dml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "rocm": "ROCMExecutionProvider",
}


def require(name: str, provider: str) -> None:
    """Make sure that a runtime is installed and its provider works here, before any costly step.

    Raises `UnsupportedError` for names that mean nothing, `UnavailableError` with the fix otherwise.
    """
    if not isinstance(name, str) or name not in RUNTIMES:
        raise UnsupportedError(f"unknown runtime {name!r}; there are {', '.join(RUNTIMES)}")
    if not isinstance(provider, str):
        raise UnsupportedError(f"provider must be a name, got {quoted(provider)}")
    _module(name).require(provider)


def require_threads(name: str, count: int | None) -> None:
    """Raise `UnsupportedError` for more threads or workers than can be of any use on this machine's cores."""
    most = max(LEAST_THREADS, THREADS_A_CORE * cores())
    if count is not None and whole(name, count, 1) > most:
        here = f"{cores()} core{'s' if cores() > 1 else ''}"
        raise UnsupportedError(f"{name} must not exceed {most} on {here}, got {quoted(count)}")


def require_target(name: str, target: str) -> None:
    """Raise `UnsupportedError` unless a runtime runs bundles of a target."""
    if target not in RUNTIMES[name].targets:
        others = ", ".join(other for other, entry in RUNTIMES.items() if target in entry.targets)
        raise UnsupportedError(f"the {name} runtime can't run a bundle for the {target}; {others} can")


def installed(target: str) -> list[str]:
    """The ONNX runtimes that run all bundles of a target and whose packages are here."""
    able = {name: entry.needs for name, entry in RUNTIMES.items() if target in entry.targets}
    if target == FOREIGN:  # onnx's evaluator lacks operators that others use, those of quantised graphs first
        able.pop("reference")
    return [name for name, package in able.items() if importlib.util.find_spec(package)]


def load(name: str, bundle: Bundle, *, provider: str = "cpu", threads: int | None = None) -> GraphRuntime:
    """Start a bundle on a runtime.

    Raises `UnavailableError` if its package or the provider is not here, `LoadError` for a graph that is too new for
    it, `BundleError` for one that it can't load or that has other ports than the manifest says.
    """
    require(name, provider)
    require_threads("threads", threads)
    require_target(name, bundle.manifest.target)
    bundle.require_weights()
    runtime: GraphRuntime = _module(name).load(bundle, provider=provider, threads=threads)
    graphs, same = bundle.manifest.graphs.values(), compare_ports
    if isinstance(bundle.manifest, ForeignManifest):
        same = names_differ
    if problems := [problem for graph in graphs for problem in same(graph, *runtime.ports(graph.role))]:
        more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
        which = "; ".join(problems[:NAMED]) + more
        raise BundleError(f"{bundle.path} does not hold the graphs of its manifest: {which}")
    return runtime


def load_torch(
    checkpoint: Checkpoint, *, provider: str = "cpu", threads: int | None = None, precision: str = "fp32"
) -> Runtime:
    """Start a checkpoint on PyTorch."""
    require("torch", provider)
    require_threads("threads", threads)
    runtime: Runtime = _module("torch").load(checkpoint, provider=provider, threads=threads, precision=precision)
    return runtime


def _module(name: str) -> Any:
    entry = RUNTIMES[name]
    with needed(entry.install, f"the {name} runtime"):
        return importlib.import_module(entry.module)


def versions() -> dict[str, str]:
    """The version of every ONNX Runtime wheel that is installed; more than one break each other."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if ONNX_RUNTIME.fullmatch(name) and name not in ("onnxruntime-genai", "onnxruntime-extensions"):
            found[name] = distribution.version
    return dict(sorted(found.items()))
