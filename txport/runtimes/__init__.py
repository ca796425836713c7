"""The runtimes that run bundles. Never imports an exporter.

A new runtime needs a file with `require(provider)` and `load(...)`, an entry in `RUNTIMES`, and its package in
pyproject.toml.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from txport.bundles.foreign.manifest import ForeignManifest, names_differ
from txport.bundles.manifest import STAND_IN
from txport.errors import BundleError, UnavailableError, UnsupportedError, quoted
from txport.system.cores import cores
from txport.system.numbers import whole
from txport.system.packages import needed
from txport.targets import FOREIGN, target_of
from txport.targets.ports import GENERATE, Graph, compare_ports

if TYPE_CHECKING:
    from txport.bundles.bundle import Bundle
    from txport.checkpoints.checkpoint import Checkpoint
    from txport.runtimes.base import GraphRuntime, Runtime
    from txport.runtimes.single import SingleRuntime

IN_FP32 = "ort-fp32"  # the runtime that compares a portable bundle in fp16 as closely as one in fp32
THREADS_A_CORE, LEAST_THREADS = 4, 16  # more threads wait for each other; thousands do not finish starting
NAMED = 3  # ports in an error
# ONNX Runtime's wheels, which overwrite each other's files. Plug-in providers and packages built on it do not match.
ONNX_RUNTIME = re.compile(r"onnxruntime(?!-(ep|genai|extensions)\b)(-\w+)*")


class Entry(NamedTuple):
    """A runtime: its module, the package that it needs, the name to install, and the targets whose bundles it runs.

    `computes` is the precision in which it computes bundles of any precision; empty: the bundle's. `aborts`: it may end
    the process if a graph is damaged, instead of raising an error. `single`: it runs single graphs, which have loops.
    `streams`: `load` requires the number of workers that run it in parallel.
    """

    module: str
    needs: str
    install: str
    targets: tuple[str, ...]  # empty: it runs the checkpoint
    computes: str = ""
    aborts: bool = False
    single: bool = False
    streams: bool = False

    @property
    def how(self) -> dict[str, str]:
        """Arguments of its module's functions in addition to the bundle and the provider."""
        return {"precision": self.computes} if self.computes else {}


RUNTIMES = {
    "ort": Entry(
        "txport.runtimes.ort.runtime", "onnxruntime", "txport", ("portable", "cpu", "cuda", "foreign"), single=True
    ),
    "openvino": Entry(
        "txport.runtimes.openvino.runtime", "openvino", "txport[openvino]", ("portable",), aborts=True, streams=True
    ),
    "openvino-bf16": Entry(
        "txport.runtimes.openvino.runtime", "openvino", "txport[openvino]", ("portable",), "bf16", streams=True
    ),
    "reference": Entry("txport.runtimes.reference", "onnx", "txport[export]", ("portable", "foreign"), single=True),
    "torch": Entry("txport.runtimes.pytorch", "torch", "txport[export]", ()),
    "tract": Entry("txport.runtimes.tract", "tract", "txport[tract]", ("portable",), aborts=True),
    IN_FP32: Entry("txport.runtimes.ort.widened", "onnx", "txport[export]", ("portable",), "fp32"),
    STAND_IN: Entry("txport.runtimes.ort.widened", "onnx", "txport[export]", ("cuda",), "fp32"),
}
MODULES = {name: entry.module for name, entry in RUNTIMES.items()}
GRAPH_RUNTIMES = tuple(name for name, entry in RUNTIMES.items() if entry.targets)
USUAL = tuple(name for name in GRAPH_RUNTIMES if not RUNTIMES[name].computes)  # others run only if they are named
PROVIDERS = {  # ONNX Runtime's full names, by short name
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "dml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "rocm": "ROCMExecutionProvider",
}


def require(name: str, provider: str) -> None:
    """Check that a runtime is installed and that its provider works here. Call it before any expensive step.

    Raise `UnsupportedError` for an unknown name, `UnavailableError` with the fix if something is missing.
    """
    require_known(name, provider)
    _module(name).require(provider, **RUNTIMES[name].how)


def require_known(name: str, provider: str) -> None:
    """Raise `UnsupportedError` if the runtime is unknown or the provider is not a string."""
    if not isinstance(name, str) or name not in RUNTIMES:
        raise UnsupportedError(f"unknown runtime {name!r}; there are {', '.join(RUNTIMES)}")
    if not isinstance(provider, str):
        raise UnsupportedError(f"provider must be a name, got {quoted(provider)}")


def computes(name: str, precision: str) -> str:
    """Return the precision in which a runtime computes a bundle of the given precision."""
    return RUNTIMES[name].computes or precision


def require_threads(name: str, count: int | None) -> None:
    """Raise `UnsupportedError` for more threads or workers than are useful with this machine's cores."""
    most = max(LEAST_THREADS, THREADS_A_CORE * cores())
    if count is not None and whole(name, count, 1) > most:
        here = f"{cores()} core{'s' if cores() > 1 else ''}"
        raise UnsupportedError(f"{name} must not exceed {most} on {here}, got {quoted(count)}")


def require_target(name: str, target: str, provider: str) -> None:
    """Raise `UnsupportedError` unless the runtime can run bundles of the target on this provider."""
    made_for = target_of(target)
    if target not in RUNTIMES[name].targets:
        able = (other for other, entry in RUNTIMES.items() if target in entry.targets and not entry.computes)
        others = ", ".join(able)
        own = "".join(
            f", and {name} runs what `txport export --target {each}` makes" for each in RUNTIMES[name].targets[:1]
        )
        raise UnsupportedError(f"the {name} runtime can't run {made_for.kinds}; {others} can{own}")
    only = made_for.provider
    if name == "ort" and only and provider.lower() not in (only, PROVIDERS[only].lower()):
        what = f"{made_for.kind} runs on provider {only}, got provider {quoted(provider)}"
        raise UnsupportedError(f"{what}; {made_for.otherwise}")


def require_for(name: str, bundle: Bundle, provider: str) -> None:
    """Check, and import, what a runtime needs to run a bundle on a provider here; raise the errors of `load`."""
    require_target(name, bundle.manifest.target, provider)  # before `require`: its fix would not help
    require(name, provider)


def home(target: str) -> tuple[str, str]:
    """Return the runtime and the provider on which bundles of a target are compared with PyTorch here.

    For the cuda target without a usable GPU, that is cuda-stand-in on the CPU.
    """
    if not target_of(target).on_gpu:
        return "ort", "cpu"
    with contextlib.suppress(UnavailableError):
        require("ort", "cuda")
        return "ort", "cuda"
    return STAND_IN, "cpu"


def installed(target: str) -> list[str]:
    """Return the installed runtimes on which to compare any bundle of a target.

    They compute in its precision, and raise errors for damaged graphs.
    """
    able = {name: entry for name, entry in RUNTIMES.items() if target in entry.targets}
    if (
        target_of(target) is FOREIGN
    ):  # onnx's evaluator lacks operators of other exporters, such as those of quantised graphs
        del able["reference"]
    return [
        name
        for name, entry in able.items()
        if not (entry.computes or entry.aborts) and importlib.util.find_spec(entry.needs)
    ]


def compared(target: str, provider: str | None) -> dict[str, str]:
    """Return where to compare a bundle of a target if no runtime is named: runtime -> provider.

    For a cuda bundle without a named provider, that is its `home`. For other bundles on the cpu, the default, it is all
    `installed` runtimes. In all other cases it is ort on `provider`.
    """
    on_gpu = target_of(target).on_gpu
    if provider is None and on_gpu:
        return dict([home(target)])
    if provider in (None, "cpu") and not on_gpu:
        return dict.fromkeys(installed(target), "cpu")
    return {"ort": provider or "cpu"}


def load(
    name: str,
    bundle: Bundle,
    *,
    provider: str = "cpu",
    threads: int | None = None,
    workers: int = 1,
    user_compute_stream: int | None = None,
) -> GraphRuntime:
    """Start a bundle on a runtime, which up to `workers` workers may run in parallel.

    A cuda bundle runs on `user_compute_stream`, the address of a CUDA stream. By default it runs on two separate
    streams, one of them for encoders.

    Raise `UnsupportedError` for arguments that the runtime or the bundle does not support, `UnavailableError` if the
    package or the provider is missing, `LoadError` for a graph that is too new for the runtime, and `BundleError` for
    a graph that can't be loaded or whose ports differ from the manifest.
    """
    require_known(name, provider)
    require_threads("threads", threads)
    require_for(name, bundle, provider)
    bundle.require_weights()
    more = {"workers": workers} if RUNTIMES[name].streams else {}
    if user_compute_stream is not None:
        if name != "ort":
            raise UnsupportedError(f"user_compute_stream needs the ort runtime on cuda; {name} has no streams")
        more["user_compute_stream"] = whole("user_compute_stream", user_compute_stream)
    runtime: GraphRuntime = _module(name).load(bundle, provider=provider, threads=threads, **RUNTIMES[name].how, **more)
    _require_ports(bundle, runtime, bundle.manifest.driven.values())
    return runtime


def load_single(
    name: str, bundle: Bundle, *, provider: str = "cpu", threads: int | None = None
) -> SingleRuntime[object]:
    """Start the single graph of a bundle, which contains the search. Raise the same errors as `load`.

    Raise `UnsupportedError` also for a bundle without a single graph, and for a runtime that can't run one.
    """
    require(name, provider)
    require_threads("threads", threads)
    if not RUNTIMES[name].single:
        others = ", ".join(other for other, entry in RUNTIMES.items() if entry.single)
        raise UnsupportedError(f"the {name} runtime does not run graphs that search by themselves; {others} do")
    if not bundle.manifest.single:
        raise UnsupportedError(
            f"{bundle.path} has no graph that searches by itself; `txport export --single` makes one"
        )
    require_target(name, bundle.manifest.target, provider)
    bundle.require_weights()
    runtime: SingleRuntime[object] = _module(name).load_single(bundle, provider=provider, threads=threads)
    _require_ports(bundle, runtime, [bundle.manifest.graphs[GENERATE]])
    return runtime


def _require_ports(bundle: Bundle, runtime: GraphRuntime | SingleRuntime[object], graphs: Iterable[Graph]) -> None:
    """Raise `BundleError` if the ports that the engine found differ from the manifest."""
    same = names_differ if isinstance(bundle.manifest, ForeignManifest) else compare_ports
    if problems := [problem for graph in graphs for problem in same(graph, *runtime.ports(graph.role))]:
        more = f"; and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
        which = "; ".join(problems[:NAMED]) + more
        raise BundleError(f"{bundle.path} does not hold the graphs of its manifest: {which}")


def load_torch(
    checkpoint: Checkpoint, *, provider: str = "cpu", threads: int | None = None, precision: str = "fp32"
) -> Runtime:
    """Start a checkpoint on PyTorch; raise `UnavailableError` if PyTorch or the provider is missing."""
    require("torch", provider)
    require_threads("threads", threads)
    runtime: Runtime = _module("torch").load(checkpoint, provider=provider, threads=threads, precision=precision)
    return runtime


def _module(name: str) -> Any:
    entry = RUNTIMES[name]
    with needed(entry.install, f"the {name} runtime"):
        return importlib.import_module(entry.module)


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the installed versions of all ONNX Runtime wheels, and of the packages that the named runtimes need."""
    import importlib.metadata  # many modules, which a bundle that is only run does not need

    found = dict(versions())
    for package in sorted({RUNTIMES[name].needs for name in names} - {"onnxruntime"}):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


@functools.cache
def versions() -> Mapping[str, str]:
    """Return the version of each installed ONNX Runtime wheel; several wheels overwrite each other's files.

    The result is cached for the process, because it requires reading the metadata of all packages.
    """
    import importlib.metadata

    found = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        if ONNX_RUNTIME.fullmatch(name):
            found[name] = distribution.version
    return dict(sorted(found.items()))
