"""Whether a bundle fits the GPU: its memory, its types, and fp32 that stays fp32. Asked before any session is made."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePosixPath

from txport.bundles.bundle import Bundle
from txport.bundles.foreign.manifest import kind_of
from txport.bundles.graphs import read_outline
from txport.errors import UnavailableError, UnsupportedError, quoted
from txport.runtimes.ort.nvidia.driver import Device
from txport.system.memory import readable

# Bytes beside the weights: CUDA's context, the libraries' kernels and work space. An estimate, and a low one, so that
# what might run is not refused; nobody has measured it.
MARGIN = 256 << 20
BF16 = (8, 0)  # the first compute capability that multiplies in bf16
HALF = ("fp16", "bf16")  # without anything that TF32 would round; int8 and int4 of the cpu target compute in fp32
# Operators whose CUDA kernels are cuDNN's, ReduceMean, ReduceMax and ReduceMin with deterministic compute. ReduceSum is
# not among them.
OF_CUDNN = frozenset({"Conv", "MultiHeadAttention", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"})
TF32 = "NVIDIA_TF32_OVERRIDE"  # 0: no library of NVIDIA's rounds fp32; anything else may


def require_fit(bundle: Bundle, roles: Iterable[str], device: Device) -> None:
    """Raise `UnavailableError` for a GPU without bf16 that needs it, or with too little free memory for the weights."""
    require_precision(str(bundle.path), bundle.manifest.arithmetic, device)
    require_memory(str(bundle.path), weights_of(bundle, roles), device)


def require_precision(what: str, precision: str, device: Device) -> None:
    """Raise `UnavailableError` for bf16 on a GPU that has none."""
    if precision == "bf16" and device.capability < BF16:
        needs = f"a GPU of compute capability {BF16[0]}.{BF16[1]} or newer"
        fix = "export it with --precision fp16 or fp32, or take another GPU"
        raise UnavailableError(f"{what} computes in bf16, which needs {needs}; found {device.described}: {fix}")


def require_memory(what: str, weights: int, device: Device) -> None:
    """Raise `UnavailableError` unless there is room for the weights and `MARGIN` on a GPU."""
    free = device.memory if device.free is None else device.free
    if weights + MARGIN > free:
        state = "of memory" if device.free is None else f"free, of {readable(device.memory)}"
        needs = f"{readable(weights)} of weights and {readable(MARGIN)} beside them"
        fix = "end what else runs there, take a smaller model or half precision, or --provider cpu"
        raise UnavailableError(f"{what} needs {needs}, and {device.name} has {readable(free)} {state}; {fix}")


def weights_of(bundle: Bundle, roles: Iterable[str]) -> int:
    """Bytes of the graphs of these roles: each session holds all that its graph refers to, once."""
    files = bundle.manifest.files
    total = 0
    for role in roles:
        graph = bundle.manifest.graphs[role].file
        beside = {(PurePosixPath(graph).parent / name).as_posix() for name in read_outline(bundle.path / graph).files}
        total += sum(files[name]["bytes"] for name in {graph, *beside} if name in files)
    return total


def needs_cudnn(bundle: Bundle, roles: Iterable[str]) -> str | None:
    """Why graphs of these roles need cuDNN, None where they do not.

    Of other targets than cuda, nobody chose operators that do without it, and ONNX Runtime fuses some that do not.
    """
    if bundle.manifest.target != "cuda":
        return f"{bundle.path} is {kind_of(bundle.manifest.target)}, which needs it"
    files = {bundle.file(role) for role in roles}
    found = sorted({name for file in files for name in read_outline(file).names & OF_CUDNN})
    return f"{bundle.path} needs it for {', '.join(found)}" if found else None


def keep_fp32(precision: str) -> None:
    """Let no library of NVIDIA's round the operands of fp32 to TF32, in all of this process.

    TensorRT does so unless this variable, which it reads itself, says otherwise: ONNX Runtime has no option for it.
    Raises `UnsupportedError` where the user has set it to the contrary.
    """
    if precision in HALF:
        return
    if (set_to := os.environ.get(TF32, "0")) != "0":
        why = "which lets CUDA's libraries round fp32 to the 10 bits of TF32"
        raise UnsupportedError(f"{TF32} is {quoted(set_to)} in the environment, {why}; unset it for {precision}")


def forbid_tf32(precision: str) -> None:
    """The same, and set the variable for the libraries that have no other switch."""
    keep_fp32(precision)
    if precision not in HALF:
        os.environ[TF32] = "0"
