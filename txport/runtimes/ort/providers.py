"""ONNX Runtime's execution providers: which can work here, and what is missing for the others."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from txport.errors import UnavailableError, UnsupportedError
from txport.runtimes import PROVIDERS
from txport.runtimes.ort.onnx_runtime import ort

CPU, CUDA = PROVIDERS["cpu"], PROVIDERS["cuda"]
ON_CUDA = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
# An ONNX model of one Identity node, x float[1] -> y, so that a provider can be tried without the onnx package.
IDENTITY = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a"
    "08080112040a02080142040a001012"
)
GPU_FIX = "it needs an NVIDIA GPU, its driver, and `pip install 'txport[cuda]'` for CUDA and cuDNN"


def full_name(provider: str) -> str:
    """`cuda` -> `CUDAExecutionProvider`; a full name stays, any other raises `UnsupportedError`."""
    known = {name.lower(): name for name in ort.get_all_providers()}
    name = PROVIDERS.get(provider.lower()) or known.get(provider.lower())
    if name is None:
        short = ", ".join(PROVIDERS)
        raise UnsupportedError(f"unknown provider {provider!r}; give one of {short}, or ONNX Runtime's full name")
    return name


def short_name(provider: str) -> str:
    """`cuda` for `CUDAExecutionProvider`; `UnsupportedError` for a provider that nobody knows."""
    full = full_name(provider)
    return next((short for short, each in PROVIDERS.items() if each == full), full)


def device_of(provider: str) -> str:
    """Where a provider's tensors live, in ONNX Runtime's words."""
    return "cuda" if provider in ON_CUDA else "cpu"


def provider_options(provider: str) -> dict[str, Any]:
    """What a provider needs so that fp32 means fp32."""
    return {"use_tf32": "0"} if provider == "CUDAExecutionProvider" else {}


def require_provider(provider: str) -> str:
    """The provider's full name, once it is sure to work here; else `UnavailableError` with what is missing."""
    name = full_name(provider)
    if reason := missing(name):
        raise UnavailableError(f"provider {provider} can't run here: {reason}")
    return name


def missing(name: str) -> str | None:
    """Why a provider can't work here, with the fix; None if it can."""
    if name not in ort.get_available_providers():
        return f"the installed ONNX Runtime {ort.__version__} was built without {name}; install a wheel that has it"
    return CHECKS[name]() if name in CHECKS else None


@functools.cache
def _cuda() -> str | None:
    """Try what ONNX Runtime would: the driver, a device, then the provider's own library with all that it links."""
    driver = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(driver)
    except OSError:
        return f"the NVIDIA driver is missing ({driver} not found); {GPU_FIX}"
    count = ctypes.c_int(0)
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return f"the NVIDIA driver finds no GPU; {GPU_FIX}"
    ort.preload_dlls()
    return _library("onnxruntime_providers_cuda", GPU_FIX)


def _tensorrt() -> str | None:
    return _cuda() or _library("onnxruntime_providers_tensorrt", "install NVIDIA TensorRT's libraries")


def _library(name: str, fix: str) -> str | None:
    """Load a provider's library; the loader's own message names what it lacks."""
    folder = Path(ort.__file__).parent / "capi"
    file = f"{name}.dll" if sys.platform == "win32" else f"lib{name}.so"
    if not (folder / file).exists():
        return f"{file} is not part of the installed ONNX Runtime; {fix}"
    try:
        if sys.platform != "win32":
            ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(folder / file), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        return f"{str(error).split(':')[0]} is missing; {fix}"
    return None


CHECKS: dict[str, Callable[[], str | None]] = {
    "CUDAExecutionProvider": _cuda,
    "TensorrtExecutionProvider": _tensorrt,
}


def candidates() -> list[str]:
    """The providers that the installed wheel was built with, and CUDA, which users miss most."""
    return list(dict.fromkeys([CPU, "CUDAExecutionProvider", *ort.get_available_providers()]))


def start(name: str) -> str | None:
    """Run a graph of one node on a provider; -> why that failed, None if it ran."""
    if reason := missing(name):
        return reason
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(IDENTITY, options, providers=[name], enable_fallback=0)
        if session.get_providers()[0] != name:
            return "ONNX Runtime fell back to another provider without saying why"
        session.run(None, {"x": np.ones(1, dtype=np.float32)})
    except Exception as error:  # onnxruntime's errors share no other base
        return str(error).splitlines()[0]
    return None
