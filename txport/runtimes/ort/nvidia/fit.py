"""Checks before sessions are created: a bundle fits the GPU's memory and precisions, and fp32 is not TF32."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePosixPath

from txport.bundles.bundle import Bundle
from txport.bundles.graphs import read_outline
from txport.errors import OutOfMemoryError, UnavailableError, UnsupportedError, quoted
from txport.runtimes.ort.nvidia.driver import Device
from txport.system.memory import readable

# Bytes in addition to the weights: CUDA's context, the libraries' kernels and workspace. A low estimate, not measured:
# no bundle that might run is refused.
MARGIN = 256 << 20
BF16 = (8, 0)  # the first compute capability with bf16 products
HALF = ("fp16", "bf16")  # precisions without fp32 products; int8 and int4 of the cpu target compute in fp32
# Operators whose CUDA kernels use cuDNN; ReduceMean, ReduceMax and ReduceMin use it with deterministic compute.
# ReduceSum does not use it.
OF_CUDNN = frozenset({"Conv", "MultiHeadAttention", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"})
TF32 = "NVIDIA_TF32_OVERRIDE"  # 0: NVIDIA's libraries do not round fp32 to TF32; with other values they may


def require_fit(bundle: Bundle, roles: Iterable[str], device: Device) -> None:
    """Check that a GPU can run a bundle.

    Raises `UnavailableError` if it lacks bf16 that the bundle needs, `OutOfMemoryError` if it lacks room for weights.
    """
    require_precision(str(bundle.path), bundle.manifest.arithmetic, device)
    require_memory(str(bundle.path), weights_of(bundle, roles), device)


def require_precision(what: str, precision: str, device: Device) -> None:
    """Raise `UnavailableError` for bf16 on a GPU without it; `what` names the bundle in the message."""
    if precision == "bf16" and device.capability < BF16:
        needs = f"a GPU of compute capability {BF16[0]}.{BF16[1]} or newer"
        fix = "export it with precision='fp16' or precision='fp32', or take another GPU"
        raise UnavailableError(f"{what} computes in bf16, which needs {needs}; found {device.described}: {fix}")


def require_memory(what: str, weights: int, device: Device) -> None:
    """Raise `OutOfMemoryError` unless a GPU has room for `weights` bytes and `MARGIN`."""
    free = device.memory if device.free is None else device.free
    if weights + MARGIN > free:
        state = "of memory" if device.free is None else f"free, of {readable(device.memory)}"
        needs = f"{readable(weights)} of weights and {readable(MARGIN)} beside them"
        fix = "end what else runs there, take a smaller model or half precision, or provider='cpu'"
        raise OutOfMemoryError(f"{what} needs {needs}, and {device.name} has {readable(free)} {state}; {fix}")


def weights_of(bundle: Bundle, roles: Iterable[str]) -> int:
    """Return the bytes of the graphs of these roles and their external data: each session loads its own copy."""
    files = bundle.manifest.files
    total = 0
    for role in roles:
        graph = bundle.manifest.graphs[role].file
        beside = {(PurePosixPath(graph).parent / name).as_posix() for name in read_outline(bundle.path / graph).files}
        total += sum(files[name]["bytes"] for name in {graph, *beside} if name in files)
    return total


def needs_cudnn(bundle: Bundle, roles: Iterable[str]) -> str | None:
    """Return why graphs of these roles need cuDNN; None if they do not.

    All bundles of targets other than cuda need it: their operators, also those that ONNX Runtime fuses, may use it.
    """
    if not bundle.manifest.made_for.on_gpu:
        return f"{bundle.path} is {bundle.manifest.made_for.kind}, which needs it"
    files = {bundle.file(role) for role in roles}
    found = sorted({name for file in files for name in read_outline(file).names & OF_CUDNN})
    return f"{bundle.path} needs it for {', '.join(found)}" if found else None


def refuse_tf32(precision: str) -> None:
    """Raise `UnsupportedError` if `NVIDIA_TF32_OVERRIDE` lets NVIDIA's libraries round fp32 operands to TF32.

    Half precisions are not checked.
    """
    if precision in HALF:
        return
    if (set_to := os.environ.get(TF32, "0")) != "0":
        why = "which lets CUDA's libraries round fp32 to the 10 bits of TF32"
        raise UnsupportedError(f"{TF32} is {quoted(set_to)} in the environment, {why}; unset it for {precision}")


def forbid_tf32(precision: str) -> None:
    """Check as `refuse_tf32` does, and set `NVIDIA_TF32_OVERRIDE` to 0 for this process, except for half precisions.

    TensorRT rounds to TF32 unless the variable is 0, and ONNX Runtime has no option for it.
    """
    refuse_tf32(precision)
    if precision not in HALF:
        os.environ[TF32] = "0"
