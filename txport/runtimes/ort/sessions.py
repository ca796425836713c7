"""ONNX Runtime's sessions of a bundle, on exactly the requested execution provider."""

from __future__ import annotations

import contextlib
import math
import mmap
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from txport.bundles.bundle import Bundle
from txport.errors import BundleError, LoadError, UnavailableError, brief
from txport.runtimes.base import GraphPorts
from txport.runtimes.ort.nvidia.failures import explain
from txport.runtimes.ort.nvidia.fit import forbid_tf32, needs_cudnn, refuse_tf32, require_fit
from txport.runtimes.ort.nvidia.options import CUDA, NVIDIA, bundle_options
from txport.runtimes.ort.onnx_runtime import ort
from txport.runtimes.ort.placement import require_all_nodes, require_compute, require_nodes
from txport.runtimes.ort.providers import (
    CPU,
    builder,
    first_device,
    full_name,
    open_session,
    require_cudnn,
    short_name,
)
from txport.system.cores import core_limit
from txport.system.machine import flags, is_out_of_memory, is_x86, multiplies_bytes
from txport.system.pages import huge_pages
from txport.targets.ports import GENERATE, MODEL, Port

# Microseconds that a thread spins while it waits for work: from one operator to the next, but not from step to step. A
# thread that spins on a core needed by another process is preempted later, in the middle of its work, and all others
# wait for it. Between the products of an encoder are more operators that a single thread runs (docs/cpu-target.md).
SPIN, SPIN_OF = 10, {MODEL: 50}

# Maximum size in bytes of a constant that constant folding computes when a portable graph is loaded on the CPU. Without
# a limit, ONNX Runtime keeps a transposed copy of each matrix in addition to the one that its kernels read. With the
# limit, a Transpose becomes an attribute of the product: results are bitwise equal, in the same time (docs/sizes.md).
# An encoder alone may have twice as much: a DeBERTa's projected vectors of positions are 512 x 1024 numbers, and each
# run would project them again.
MOST_FOLDED = 1 << 20
FOLDING = "optimization.constant_folding_max_output_size_in_bytes"

BFLOAT16 = 16  # ONNX's number of the type
KINDS = {"float": "float32", "double": "float64"}  # ONNX's names of types -> NumPy's, where they differ

TOO_NEW = ("NOT_IMPLEMENTED", "Unsupported model IR version", "officially supported", "is under development")

Profiled = list[tuple[ort.InferenceSession, Path]]  # sessions, and the graphs that they run

_profiles: list[tuple[Path, Profiled]] = []  # of `profiling`

Weights = dict[str, Any]  # OrtValues by name; onnxruntime has no types


class Sessions(dict[str, ort.InferenceSession]):
    """Sessions by role, and the weights that they share, which must outlive them."""

    def __init__(self, sessions: dict[str, ort.InferenceSession], weights: Weights) -> None:
        super().__init__(sessions)
        self.weights = weights


@contextlib.contextmanager
def profiling(folder: Path) -> Iterator[Profiled]:
    """Yield a list of the sessions that are started in this block of a process that only profiles.

    Their profiles, and their graphs as ONNX Runtime has optimised them, with all weights, are written into a folder.
    """
    started: Profiled = []
    _profiles.append((folder, started))
    try:
        yield started
    finally:
        _profiles.pop()


def start_sessions(
    bundle: Bundle,
    provider: str,
    threads: int | None,
    *,
    spinning: str = "",
    roles: Iterable[str] | None = None,
    options_of: Callable[[str], dict[str, str]] = lambda role: {},
) -> Sessions:
    """Start a session for each of `roles`, by default all but the single graph.

    Only the threads of the graph `spinning` keep spinning between runs. `options_of` returns more options of the
    provider for a role. Raise `UnavailableError` if the provider does not start or does not run the nodes that it must.
    """
    roles = list(bundle.manifest.driven if roles is None else roles)
    name = full_name(provider)
    settings = _prepare(bundle, roles, name)
    weights, maps = _map_weights(bundle)

    def started(role: str) -> ort.InferenceSession:
        how = {"spins": role == spinning, "has_integers": bundle.manifest.has_integers}
        options = session_options(threads, weights, spin=SPIN_OF.get(role, SPIN), **how)
        options.use_deterministic_compute = name in NVIDIA
        folded = 2 * MOST_FOLDED if role == MODEL else MOST_FOLDED
        # the body of a loop is not fused, and what is dequantised is fused after its Transpose is folded
        is_fused = bundle.manifest.made_for.is_standard and role != GENERATE and not bundle.manifest.is_quantised
        if name == CPU and is_fused:
            options.add_session_config_entry(FOLDING, str(folded))
        return start_session(bundle.file(role), name, options, {**settings[role], **options_of(role)})

    if name == CPU:
        largest = max(roles, key=lambda role: (role == spinning, _size(bundle, role)))
        with huge_pages(bundle.size * 5 // 4), ThreadPoolExecutor() as pool:  # each packs its weights on one core
            starting = {role: pool.submit(started, role) for role in roles if role != largest}
            ended = started(largest)
            sessions = {role: starting[role].result() if role in starting else ended for role in roles}
    else:
        sessions = {role: started(role) for role in roles}
    for each in maps:  # the kernels have packed what they need; pages of embeddings are read again on access
        if hasattr(mmap, "MADV_DONTNEED"):
            each.madvise(mmap.MADV_DONTNEED)
    if name != CPU:
        require_nodes(sessions, name)
    if name in NVIDIA:
        besides = () if name == CUDA else (CUDA,)  # runs the nodes that TensorRT does not support
        strict = require_all_nodes if bundle.manifest.made_for.on_gpu else require_compute
        strict(sessions, name, *besides)
    return Sessions(sessions, weights)


def _size(bundle: Bundle, role: str) -> int:
    """Return the bytes of a graph's file and of the files of its weights, whose names begin with that of the graph."""
    name = bundle.manifest.graphs[role].file
    return sum(entry["bytes"] for file, entry in bundle.manifest.files.items() if file.startswith(name))


def _prepare(bundle: Bundle, roles: list[str], provider: str) -> dict[str, dict[str, str]]:
    """Check that the bundle fits the GPU, and return the provider's options for each role."""
    if provider not in NVIDIA:
        return {role: {} for role in roles}
    if provider == CUDA and (reason := needs_cudnn(bundle, roles)):
        require_cudnn(short_name(provider), reason)
    (refuse_tf32 if provider == CUDA else forbid_tf32)(bundle.manifest.arithmetic)
    device = first_device()
    if device is not None:
        require_fit(bundle, roles, device)
    return {role: bundle_options(provider, bundle, role, device, builder(provider)) for role in roles}


def _map_weights(bundle: Bundle) -> tuple[Weights, list[mmap.mmap]]:
    """Map the weights that several graphs share once, instead of once per session."""
    maps: dict[str, mmap.mmap] = {}
    weights: Weights = {}
    try:
        for name, entry in bundle.manifest.shared.items():
            if entry["file"] not in maps:
                with (bundle.path / entry["file"]).open("rb") as file:
                    maps[entry["file"]] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            kind = entry["dtype"]
            dims = tuple(entry["dims"])
            dtype = np.dtype(np.uint16 if kind == "bfloat16" else kind)  # NumPy has no bfloat16: use its bits
            array = np.frombuffer(maps[entry["file"]], dtype, math.prod(dims), entry["offset"]).reshape(dims)
            weights[name] = (
                ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
                if kind == "bfloat16"
                else ort.OrtValue.ortvalue_from_numpy(array)
            )
    except (OSError, TypeError, ValueError) as error:
        raise BundleError(f"{bundle.path} does not hold its shared weights: {error}; export it again") from error
    return weights, list(maps.values())


def session_options(
    threads: int | None, weights: Weights, *, spin: int = SPIN, spins: bool = False, has_integers: bool = True
) -> ort.SessionOptions:
    """Return the options of a session, with the weights that it does not read from a file.

    Its threads spin for `spin` microseconds; without `spins`, not after a run. `has_integers`: it may multiply
    integers, whose sums are then exact on every processor. ONNX Runtime 1.31 makes the weights of these unsigned, and
    those of DequantizeLinear, too, which then does not run if they are in blocks.
    """
    options = ort.SessionOptions()
    for weight, value in weights.items():
        options.add_initializer(weight, value)
    options.log_severity_level = 4  # its errors are also raised, and printed in one line
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.inter_op_num_threads = 1
    # By default ONNX Runtime starts one pinned thread per core of the machine, even if this process may use fewer:
    # https://github.com/microsoft/onnxruntime/issues/8313
    options.intra_op_num_threads = threads or core_limit() or 0
    # The sessions run in turn; spinning threads of one would take cores from another.
    options.add_session_config_entry("session.force_spinning_stop", "0" if spins else "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin))
    options.add_session_config_entry("session.x64quantprecision", "1" if has_integers and may_saturate() else "0")
    return options


def start_session(
    file: Path,
    provider: str,
    options: ort.SessionOptions,
    settings: dict[str, str],
    content: bytes | None = None,
) -> ort.InferenceSession:
    """Start a session of a graph in a file, or of its `content`, with `settings` of the provider.

    Raise `UnavailableError` if the provider does not start or the GPU fails, `MemoryError`, `LoadError` for a graph
    that is too new, or `BundleError` for a damaged one.
    """
    for folder, _ in _profiles:
        place = Path(tempfile.mkdtemp(dir=folder))
        options.enable_profiling = True
        options.profile_file_prefix = str(place / "profile")
        options.optimized_model_filepath = str(place / "graph.onnx")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "graph.data")
    try:
        session = open_session(content or str(file), options, provider, settings)
    except Exception as error:  # its errors have no common base class
        explained = explain(error, provider) if provider in NVIDIA else None
        raise explained or _refused(file, error) from error
    if session.get_providers()[0] != provider:  # ONNX Runtime only logs that it fell back
        raise UnavailableError(f"{provider} did not start for {file}; `txport doctor` says what is missing")
    for _, started in _profiles:
        started.append((session, Path(options.optimized_model_filepath)))
    return session


def _refused(file: Path, error: Exception) -> Exception:
    """Return our error for a graph that ONNX Runtime can't load: memory, a too new graph, or an invalid graph."""
    message = f"ONNX Runtime {ort.__version__} can't load {file}: {brief(error)}"
    if is_out_of_memory(error):
        return MemoryError(message)
    if any(words in str(error) for words in TOO_NEW):
        return LoadError(f"{message}; update it, or export again with a lower opset")
    return BundleError(f"{message}; the bundle is damaged, export it again")


def session_ports(session: ort.InferenceSession) -> GraphPorts:
    """Return the inputs and outputs of a session's graph; raise `BundleError` if a name is not UTF-8."""
    try:
        inputs, outputs = (tuple(map(_port, side)) for side in (session.get_inputs(), session.get_outputs()))
    except UnicodeDecodeError as error:
        raise BundleError(f"a graph has a port whose name is no text ({error}); export it again") from error
    return inputs, outputs


def _port(value: Any) -> Port:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    return Port(value.name, KINDS.get(kind, kind), tuple(value.shape))


def sums_one_row_apart() -> bool:
    """Return whether ONNX Runtime may sum one row of 4-bit blocks of 32 in another order than the same row of several.

    It has a kernel for one row on x86 without AVX-512 VNNI, and on Arm without dot products.
    """
    if is_x86():
        return "avx512_vnni" not in flags()
    return bool(flags()) and "asimddp" not in flags()


def may_saturate() -> bool:
    """Return whether sums of two 8-bit products may overflow 16 bits: on x86 without VNNI, or if VNNI is unknown.

    Exact sums take 2.4 times as long on processors where nothing would overflow.
    """
    return is_x86() and not multiplies_bytes()
