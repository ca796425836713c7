"""TensorRT-RTX, which NVIDIA publishes as a separate package that plugs into ONNX Runtime."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

from txport.errors import UnavailableError, brief
from txport.runtimes.ort.nvidia.options import RTX
from txport.runtimes.ort.onnx_runtime import ort

PACKAGE, INSTALL = "onnxruntime_ep_nv_tensorrt_rtx", "onnxruntime-ep-nv-tensorrt-rtx"


def is_plugged() -> bool:
    """Return whether the provider is a separate package, that is, ONNX Runtime was built without it."""
    return RTX not in ort.get_available_providers()


def is_installed() -> bool:
    """Return whether NVIDIA's package is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def missing() -> str | None:
    """Return why TensorRT-RTX can't work here, apart from the driver; None if it can."""
    if not is_plugged():
        return None
    if not is_installed():
        wheels = "it goes with the plain wheel: pip uninstall -y onnxruntime-gpu, then pip install onnxruntime"
        return f"found no TensorRT-RTX, needs NVIDIA's package for it; pip install {INSTALL}; {wheels}"
    try:
        found = devices()
    except UnavailableError as error:
        return str(error)
    if not found:
        needs = "an RTX of compute capability 8.0 or newer"
        return f"found no GPU that TensorRT-RTX takes, needs {needs}; use provider='cuda'"
    return None


@functools.cache
def devices() -> tuple[Any, ...]:
    """Load the package's provider and return its devices; raise `UnavailableError` if it does not load."""
    try:
        plugin = importlib.import_module(PACKAGE)
        ort.register_execution_provider_library(RTX, plugin.get_library_path())
    except Exception as error:  # from the package, its library or ONNX Runtime
        if "already registered" not in str(error).lower():
            fix = f"pip install --force-reinstall {INSTALL}"
            found = f"{INSTALL}, which does not load in ONNX Runtime {ort.__version__} ({brief(error)})"
            raise UnavailableError(f"found {found}, needs one that was made for it; {fix}") from error
    return tuple(device for device in ort.get_ep_devices() if device.ep_name == RTX)
