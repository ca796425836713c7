"""ONNX Runtime's sessions of a bundle, on exactly the execution provider that was asked for."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from txport.bundles.bundle import Bundle
from txport.bundles.ports import GENERATE, Port
from txport.errors import BundleError, LoadError, UnavailableError, brief
from txport.runtimes.base import GraphPorts
from txport.runtimes.ort.nvidia.failures import explain
from txport.runtimes.ort.nvidia.fit import forbid_tf32, keep_fp32, needs_cudnn, require_fit
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
from txport.system.machine import is_out_of_memory, is_x86, multiplies_bytes

# Microseconds that a thread stays awake for more to do: from one operator to the next, but not from step to step. A
# thread that keeps a core from another process is put to sleep in turn, in the middle of its work, and all wait for it.
SPIN = "10"

# The most bytes of a constant that a session of a portable graph computes as the CPU loads it. Without a limit, ONNX
# Runtime keeps a transposed copy of each matrix beside the one that its kernels read. With it, a Transpose becomes an
# attribute of the product: the results are the same bit for bit, in the same time (docs/sizes.md).
MOST_FOLDED = 1 << 20
FOLDING = "optimization.constant_folding_max_output_size_in_bytes"

BFLOAT16 = 16  # ONNX's number of the type
KINDS = {"float": "float32", "double": "float64"}  # ONNX's names of types that NumPy calls otherwise

TOO_NEW = ("NOT_IMPLEMENTED", "Unsupported model IR version", "officially supported", "is under development")

Weights = dict[str, Any]  # OrtValues by name; onnxruntime has no types


class Sessions(dict[str, ort.InferenceSession]):
    """By role; and the weights that several of them hold together, which have to outlive them."""

    def __init__(self, sessions: dict[str, ort.InferenceSession], weights: Weights) -> None:
        super().__init__(sessions)
        self.weights = weights


def start_sessions(
    bundle: Bundle,
    provider: str,
    threads: int | None,
    *,
    spinning: str = "",
    roles: Iterable[str] | None = None,
    options_of: Callable[[str], dict[str, str]] = lambda role: {},
) -> Sessions:
    """A session for each graph, by role; only the threads of the graph that is `spinning` stay awake between runs.

    Without `roles`, they are those that are driven step by step. `options_of` a role are more options of the provider.
    """
    roles = list(bundle.manifest.driven if roles is None else roles)
    name = full_name(provider)
    settings = _prepare(bundle, roles, name)
    weights, maps = _map_weights(bundle)
    sessions = {}
    for role in roles:
        options = session_options(threads, weights, spins=role == spinning)
        options.use_deterministic_compute = name in NVIDIA
        if name == CPU and bundle.manifest.target == "portable" and role != GENERATE:  # a loop's body is not fused
            options.add_session_config_entry(FOLDING, str(MOST_FOLDED))
        sessions[role] = start_session(bundle.file(role), name, options, {**settings[role], **options_of(role)})
    for each in maps:  # the kernels have read and packed what they need; what is looked up comes back by itself
        if hasattr(mmap, "MADV_DONTNEED"):
            each.madvise(mmap.MADV_DONTNEED)
    if name != CPU:
        require_nodes(sessions, name)
    if name in NVIDIA:
        besides = () if name == CUDA else (CUDA,)  # to which TensorRT leaves what it does not take
        strict = require_all_nodes if bundle.manifest.target == "cuda" else require_compute
        strict(sessions, name, *besides)
    return Sessions(sessions, weights)


def _prepare(bundle: Bundle, roles: list[str], provider: str) -> dict[str, dict[str, str]]:
    """The provider's options for each graph, once it is sure that the bundle fits the GPU."""
    if provider not in NVIDIA:
        return {role: {} for role in roles}
    if provider == CUDA and (reason := needs_cudnn(bundle, roles)):
        require_cudnn(short_name(provider), reason)
    (keep_fp32 if provider == CUDA else forbid_tf32)(bundle.manifest.arithmetic)
    device = first_device()
    if device is not None:
        require_fit(bundle, roles, device)
    return {role: bundle_options(provider, bundle, role, device, builder(provider)) for role in roles}


def _map_weights(bundle: Bundle) -> tuple[Weights, list[mmap.mmap]]:
    """The weights that several graphs share, mapped once; each session would map them for itself."""
    maps: dict[str, mmap.mmap] = {}
    weights: Weights = {}
    try:
        for name, entry in bundle.manifest.shared.items():
            if entry["file"] not in maps:
                with (bundle.path / entry["file"]).open("rb") as file:
                    maps[entry["file"]] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            kind = entry["dtype"]
            dims = tuple(entry["dims"])
            dtype = np.dtype(np.uint16 if kind == "bfloat16" else kind)  # NumPy has the bits of bfloat16 alone
            array = np.frombuffer(maps[entry["file"]], dtype, math.prod(dims), entry["offset"]).reshape(dims)
            weights[name] = (
                ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, BFLOAT16)
                if kind == "bfloat16"
                else ort.OrtValue.ortvalue_from_numpy(array)
            )
    except (OSError, TypeError, ValueError) as error:
        raise BundleError(f"{bundle.path} does not hold its shared weights: {error}; export it again") from error
    return weights, list(maps.values())


def session_options(threads: int | None, weights: Weights, *, spins: bool = False) -> ort.SessionOptions:
    """How a session is to work, with the weights that it does not read from a file."""
    options = ort.SessionOptions()
    for weight, value in weights.items():
        options.add_initializer(weight, value)
    options.log_severity_level = 4  # what it calls errors is raised too, and told in one line
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.inter_op_num_threads = 1
    # By itself it starts a thread for every core there is, each bound to its own, whatever this process may use:
    # https://github.com/microsoft/onnxruntime/issues/8313
    options.intra_op_num_threads = threads or core_limit() or 0
    # The sessions take turns; threads that spin while another session works would starve it.
    options.add_session_config_entry("session.force_spinning_stop", "0" if spins else "1")
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN)
    options.add_session_config_entry("session.x64quantprecision", "1" if may_saturate() else "0")
    return options


def start_session(
    file: Path,
    provider: str,
    options: ort.SessionOptions,
    settings: dict[str, str],
    content: bytes | None = None,
) -> ort.InferenceSession:
    """The session of a graph in a file, or of its `content`, with `settings` of the provider."""
    try:
        session = open_session(content or str(file), options, provider, settings)
    except Exception as error:  # its errors share no other base
        explained = explain(error, provider) if provider in NVIDIA else None
        raise explained or _refused(file, error) from error
    if session.get_providers()[0] != provider:  # ONNX Runtime only logs that it fell back
        raise UnavailableError(f"{provider} did not start for {file}; `txport doctor` says what is missing")
    return session


def _refused(file: Path, error: Exception) -> Exception:
    """Why ONNX Runtime does not take a graph: it is too old for it, there is no memory, or it is no sound graph."""
    message = f"ONNX Runtime {ort.__version__} can't load {file}: {brief(error)}"
    if is_out_of_memory(error):
        return MemoryError(message)
    if any(words in str(error) for words in TOO_NEW):
        return LoadError(f"{message}; update it, or export again with a lower --opset")
    return BundleError(f"{message}; the bundle is damaged, export it again")


def session_ports(session: ort.InferenceSession) -> GraphPorts:
    """The inputs and outputs of a session's graph; `BundleError` where a name is no text."""
    try:
        inputs, outputs = (tuple(map(_port, side)) for side in (session.get_inputs(), session.get_outputs()))
    except UnicodeDecodeError as error:
        raise BundleError(f"a graph has a port whose name is no text ({error}); export it again") from error
    return inputs, outputs


def _port(value: Any) -> Port:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    return Port(value.name, KINDS.get(kind, kind), tuple(value.shape))


def may_saturate() -> bool:
    """Whether sums of two 8-bit products may overflow the processor's 16 bits: x86 without, or not known to have, VNNI.

    What is exact there takes 2.4 times as long where nothing would overflow.
    """
    return is_x86() and not multiplies_bytes()
