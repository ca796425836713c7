"""Translate ONNX Runtime's errors on a GPU into errors with a cause and a fix."""

from __future__ import annotations

import re
from typing import NamedTuple

from txport.errors import OutOfMemoryError, UnavailableError, brief

# "... CUDA failure 2: out of memory ; GPU=0 ; hostname=... ; file=... ; line=336 ; expr=cudaMalloc(...); "
CALL = re.compile(r"(?P<call>\w+ failure \d+: [^;]*?) ?; GPU=")
# Prefixes of messages to remove: the status, the position in the source, and the function with its types.
BEFORE = (
    re.compile(r"^.*Status Message: ", re.DOTALL),
    re.compile(r"^.*?\.(?:cc|cu|h|cpp):\d+ ", re.DOTALL),
    re.compile(r"^[^()]*::\w+\([^()]*\) ?(?:\[with [^]]*\] )?"),
    re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : "),
)


class Failure(NamedTuple):
    """An error whose text contains any of `signs`, ignoring case: its meaning, and the fix."""

    signs: tuple[str, ...]
    meaning: str
    fix: str


NO_SPACE = "use smaller batches, fewer beams, a smaller model or half precision; nvidia-smi says what else holds it"
LOST = (
    "start the process again; if it comes again, run with provider='cpu' and see whether `txport verify` passes there"
)
DOCTOR = "`txport doctor` says what was found"
# The first match is used, so special failures are before general ones.
FAILURES = (
    Failure(
        (
            *("cuda failure 2:", "cudaerrormemoryallocation", "out of memory", "alloc_failed"),
            *("smaller than requested bytes", "failed to allocate memory for"),
        ),
        "the GPU's memory is at its end",
        NO_SPACE,
    ),
    Failure(
        (
            *("cuda failure 35:", "cudaerrorinsufficientdriver", "driver version is insufficient"),
            *("unsupported toolchain", "cuda failure 222:"),
        ),
        "the NVIDIA driver is older than the CUDA of ONNX Runtime",
        f"update the driver; {DOCTOR} and what is needed",
    ),
    Failure(
        ("no kernel image", "cudaerrornokernelimagefordevice", "cuda failure 209:", "arch_mismatch"),
        "ONNX Runtime has no kernels for this GPU",
        "take a newer onnxruntime-gpu for a newer GPU, an older one for an older GPU, or use provider='cpu'",
    ),
    Failure(
        ("cuda failure 100:", "no cuda-capable device", "cudaerrornodevice", "provider not available"),
        "CUDA finds no GPU that this process may use",
        f"{DOCTOR}, and what hides it",
    ),
    Failure(
        ("cudnn is unavailable", "cudnn is not available", "libcudnn", "cudnn64", "cudnn_status_not_initialized"),
        "cuDNN is missing or does not start",
        f"pip install 'txport[cuda]' brings it; {DOCTOR}",
    ),
    Failure(
        ("could not deserialize engine", "failed to deserialize engine", "engine cache"),
        "an engine in TensorRT's cache is of no use",
        "delete the folder `engines` in txport's cache, and it is built again",
    ),
    Failure(
        ("cannot open shared object", "loadlibrary failed", "error 126"),
        "a library is missing",
        f"{DOCTOR}, and which",
    ),
    Failure(
        (
            *("illegal memory access", "unspecified launch failure", "device-side assert", "misaligned address"),
            *("cuda failure", "cudnn failure", "cudnn_fe failure", "cublas failure", "cufft failure"),
        ),
        "a call of CUDA has failed, and CUDA may run nothing more in this process",
        LOST,
    ),
    Failure(("tensorrt ep",), "TensorRT has failed", "use provider='cuda'"),
)


def explain(error: Exception, provider: str) -> UnavailableError | None:
    """Return our one-line error for an error of ONNX Runtime on a GPU; None if the GPU did not cause it."""
    text = str(error)
    folded = text.lower()
    for failure in FAILURES:
        if any(sign in folded for sign in failure.signs):
            kind = OutOfMemoryError if failure.fix == NO_SPACE else UnavailableError
            return kind(f"{provider}: {failure.meaning} ({_told(text)}); {failure.fix}")
    return None


def _told(text: str) -> str:
    """Return the essential part of a message."""
    if found := CALL.search(text):
        return brief(found["call"])
    for before in BEFORE:
        text = before.sub("", text, count=1) or text
    return brief(text)
