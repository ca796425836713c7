"""ONNX Runtime's execution providers: which can work here, and what the others lack."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any
from weakref import WeakSet

import numpy as np

from txport.errors import UnavailableError, UnsupportedError
from txport.runtimes import PROVIDERS
from txport.runtimes.ort.nvidia import problems
from txport.runtimes.ort.nvidia.driver import Device, query_driver
from txport.runtimes.ort.nvidia.failures import explain
from txport.runtimes.ort.nvidia.options import CUDA, NVIDIA, TENSORRT, cuda_options
from txport.runtimes.ort.onnx_runtime import ort

CPU = PROVIDERS["cpu"]
ON_CUDA = (CUDA, TENSORRT)
# An ONNX model of one Add node, x float[1] + x -> y, so that a provider can be tried without the onnx package.
DOUBLE = bytes.fromhex(
    "08083a350a0e0a01780a017812017922034164641201675a0f0a0178120a0a08080112040a020801620f0a0179120a0a0808"
    "0112040a02080142040a001012"
)


def full_name(provider: str) -> str:
    """`cuda` -> `CUDAExecutionProvider`. Full names are unchanged; raise `UnsupportedError` for an unknown name."""
    known = {name.lower(): name for name in ort.get_all_providers()}
    name = PROVIDERS.get(provider.lower()) or known.get(provider.lower())
    if name is None:
        short = ", ".join(PROVIDERS)
        raise UnsupportedError(f"unknown provider {provider!r}; give one of {short}, or ONNX Runtime's full name")
    return name


def short_name(provider: str) -> str:
    """`CUDAExecutionProvider` -> `cuda`; raise `UnsupportedError` for an unknown name."""
    full = full_name(provider)
    return next((short for short, each in PROVIDERS.items() if each == full), full)


def device_of(provider: str) -> str:
    """Return ONNX Runtime's name of the device of a provider's tensors: "cuda" or "cpu"."""
    return "cuda" if provider in ON_CUDA else "cpu"


def require_provider(provider: str) -> str:
    """Return the full name of a provider that can work here; raise `UnavailableError` with the cause and fix if not.

    Does not check cuDNN, which only some nodes need: see `require_cudnn`.
    """
    name = full_name(provider)
    if reason := missing(name):
        raise UnavailableError(f"provider {provider} can't run here: {reason}")
    return name


def require_cudnn(provider: str, what: str) -> None:
    """Raise `UnavailableError` if cuDNN is missing; `what` is the reason why it is needed."""
    if reason := problems.problem_of_cudnn():
        raise UnavailableError(f"provider {provider} can't run here: {reason}; {what}")


def missing(name: str) -> str | None:
    """Return why a provider (full name) can't work here, with the fix; None if it can."""
    if name in NVIDIA:
        return _nvidia(name)
    return None if name in ort.get_available_providers() else _not_built(name)


def _not_built(name: str) -> str:
    return f"the installed ONNX Runtime {ort.__version__} was built without {name}; install a wheel that has it"


@functools.cache
def _nvidia(name: str) -> str | None:
    """Return the first problem of an NVIDIA provider, which must be solved first, and the number of the others."""
    found = list(problems.problems_of_cuda(query_driver()))
    if name == TENSORRT:
        found += filter(None, [problems.problem_of_cudnn()])
    if name == TENSORRT and not found:
        found += filter(None, [problems.problem_of_library(problems.TENSORRT)])
    if found:
        more = f" (and {len(found) - 1} more, which `txport doctor` lists)" if len(found) > 1 else ""
        return f"{found[0]}{more}"
    return None if name in ort.get_available_providers() else _not_built(name)


def first_device() -> Device | None:
    """Return the current state of the GPU that the providers use; None if there is none."""
    return next(iter(query_driver().devices), None)


def builder(provider: str) -> str:
    """Return the versions of the software that builds a provider's engines, as one string."""
    if provider == TENSORRT:
        return f"{ort.__version__}-{problems.version_of_tensorrt()}".rstrip("-")
    return str(ort.__version__)


def candidates() -> list[str]:
    """Return the providers to check: CPU, CUDA, and all others that are installed."""
    return list(dict.fromkeys([CPU, CUDA, *ort.get_available_providers()]))


def open_session(model: str | bytes, options: Any, name: str, settings: dict[str, str]) -> Any:
    """Open a session of a graph on a provider; nodes that TensorRT does not support run on CUDA."""
    besides = [(CUDA, cuda_options())] if name == TENSORRT and CUDA in ort.get_available_providers() else []
    providers = [CPU] if name == CPU else [(name, settings), *besides, CPU]
    return watched(ort.InferenceSession(model, options, providers=providers, enable_fallback=0))


def start(name: str) -> str | None:
    """Run a graph of one node on a provider; return why that failed, or None if it ran."""
    if reason := missing(name):
        return reason
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = open_session(DOUBLE, options, name, cuda_options() if name == CUDA else {})
        if session.get_providers()[0] != name:
            return "ONNX Runtime fell back to another provider without saying why"
        session.run(None, {"x": np.ones(1, dtype=np.float32)})
    except Exception as error:  # onnxruntime's errors have no common base class
        known = explain(error, name) if name in NVIDIA else None
        return str(known or error).splitlines()[0]
    return None


# ------------------------------------------------------------------------------------------------ sessions after `fork`

# A process made by `fork` has none of the threads of a session, for which the session's destructor waits forever.
_sessions: WeakSet[Any] = WeakSet()


def watched(session: object) -> Any:
    """Return a session, which children of this process will never destroy: not at exit, deletion or replacement."""
    _sessions.add(session)
    return session


def _keep() -> None:
    """Keep the inherited sessions until the process ends; no reference that Python clears at exit would do that."""
    for session in _sessions:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
    _sessions.clear()  # children of this process inherit the count


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_keep)
