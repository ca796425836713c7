"""Why NVIDIA's providers can't run here: the commonest causes and their fixes."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from txport.errors import brief
from txport.runtimes import PROVIDERS
from txport.runtimes.ort.nvidia.driver import LIBRARY, Driver, query_driver
from txport.system.machine import is_x86

GPU_WHEEL = "onnxruntime-gpu"
EXTRA = "pip install 'txport[cuda]'"
VISIBLE = "CUDA_VISIBLE_DEVICES"
CONTAINER = "in a container, start it with its GPUs (docker run --gpus all)"
RESTART = "restart the machine; if nvidia-smi fails then too, install the driver anew"
DRIVERS = {11: 450, 12: 525, 13: 580}  # CUDA -> the first driver series that runs all of its minor versions
NO_GPU = 100  # CUDA_ERROR_NO_DEVICE
CUDNN = "cudnn64_9.dll" if sys.platform == "win32" else "libcudnn.so.9"  # for ONNX Runtime from 1.19 on
CUDA, TENSORRT, SHARED = (
    f"onnxruntime_providers_{name}.dll" if sys.platform == "win32" else f"libonnxruntime_providers_{name}.so"
    for name in ("cuda", "tensorrt", "shared")
)


class Problem(NamedTuple):
    """A problem: the finding, the requirement, and the fix."""

    found: str
    needs: str
    fix: str

    def __str__(self) -> str:
        """Return the problem in one line."""
        return f"found {self.found}, needs {self.needs}; {self.fix}"


@dataclass(frozen=True)
class Nvidia:
    """The driver, ONNX Runtime's wheel in words, and the problems; `cudnn` is one that only some nodes have."""

    driver: Driver
    wheel: str = ""
    problems: tuple[Problem, ...] = ()
    cudnn: Problem | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values."""
        problems = [str(problem) for problem in (*self.problems, self.cudnn) if problem]
        return {"driver": asdict(self.driver), "wheel": self.wheel, "problems": problems}


def look() -> Nvidia:
    """Query the driver, and load the CUDA provider's library as ONNX Runtime would."""
    driver = query_driver()
    return Nvidia(driver, _wheel(), tuple(problems_of_cuda(driver)), problem_of_cudnn())


def problems_of_cuda(driver: Driver) -> Iterator[Problem]:
    """Yield all problems of CUDA, in the order in which to fix them."""
    ort = _ort()
    yield from problems_of_driver(driver, _cuda_major())
    if PROVIDERS["cuda"] not in ort.get_available_providers():
        fix = f"pip uninstall -y {ort.package_name}, then pip install {GPU_WHEEL}"
        if not has_gpu_wheel():
            fix = f"there is no {GPU_WHEEL} for this kind of machine, so use provider='cpu'"
        yield Problem(f"{_wheel()}, which has no CUDA provider", GPU_WHEEL, fix)
    elif (problem := problem_of_library(CUDA)) and problem.found != f"no {LIBRARY}":
        yield problem


def problems_of_driver(driver: Driver, major: int | None = None) -> Iterator[Problem]:
    """Yield the problems of the driver; `major` is the version of CUDA that it must run, if any."""
    series = f" {DRIVERS[major]} or newer" if major in DRIVERS else ""
    if not driver.is_there:
        needs = f"an NVIDIA GPU and its driver{series}"
        then = f", then {EXTRA} for CUDA and cuDNN" if major else ""
        yield Problem(f"no NVIDIA driver ({LIBRARY} does not load)", needs, f"install it{then}; {CONTAINER}")
        return
    described = f"the NVIDIA driver {driver.version}".rstrip()
    if driver.cuda and major and driver.cuda < (major, 0):
        newest = f"{driver.cuda[0]}.{driver.cuda[1]}"
        needs = f"CUDA {major}, so driver{series}" if series else f"CUDA {major}"
        fix = f"update it, or install an onnxruntime-gpu that was built with CUDA {driver.cuda[0]}"
        yield Problem(f"{described}, which runs CUDA up to {newest}", needs, fix)
    if not driver.devices:
        yield _no_gpu(driver, described)


def _no_gpu(driver: Driver, described: str) -> Problem:
    needs = "an NVIDIA GPU that this process may use"
    if driver.error not in (0, NO_GPU):
        return Problem(f"{described}, in which CUDA does not start (error {driver.error})", needs, RESTART)
    visible = os.environ.get(VISIBLE)
    if visible is not None:
        names = f", which hides {', '.join(driver.hidden)}" if driver.hidden else ""
        return Problem(f"{VISIBLE}={visible!r}{names}", needs, f"unset {VISIBLE}, or set it to 0")
    if driver.hidden:
        fix = f"see who may open /dev/nvidia*; {CONTAINER}"
        return Problem(f"{', '.join(driver.hidden)}, which CUDA does not show to this process", needs, fix)
    return Problem(f"{described}, which finds no GPU", needs, f"see whether nvidia-smi lists one; {CONTAINER}")


def problem_of_cudnn() -> Problem | None:
    """Return why cuDNN does not load: ONNX Runtime starts without it, and nodes load it later."""
    _preload()
    return _problem_of(CUDNN, f"{CUDNN} of cuDNN", EXTRA)


@functools.cache
def problem_of_library(provider: str) -> Problem | None:
    """Load a provider's library as ONNX Runtime would; return the first library that is missing, if one is."""
    _preload()
    folder = Path(_ort().__file__).parent / "capi"
    if not (folder / provider).is_file():
        ort = _ort()
        fix = f"pip install --force-reinstall --no-deps {ort.package_name}=={ort.__version__}"
        return Problem(f"{_wheel()}, without its {provider}", "all of its files", fix)
    if sys.platform != "win32":
        ctypes.CDLL(str(folder / SHARED), mode=ctypes.RTLD_GLOBAL)
    brings = f"pip install 'tensorrt-cu{_cuda_major()}==10.*'" if provider == TENSORRT else EXTRA
    return _problem_of(str(folder / provider), f"it for {provider}", brings)


def version_of_tensorrt() -> str:
    """Return the version of the TensorRT that its provider is linked to; "" if it is unknown."""
    try:
        library = ctypes.CDLL(str(Path(_ort().__file__).parent / "capi" / TENSORRT))
        return str(library.getInferLibVersion())
    except (OSError, AttributeError):  # Windows looks for a function in one library only
        return ""


def has_gpu_wheel() -> bool:
    """Return whether pip has ONNX Runtime with CUDA for this platform."""
    return sys.platform in ("linux", "win32") and is_x86()


def _problem_of(library: str, needs: str, brings: str) -> Problem | None:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        # "libcublas.so.13: cannot open shared object file: ...", or another reason why a file does not load
        missing, _, reason = brief(error).partition(": ")
        is_absent = "cannot open" in reason
        return Problem(f"no {missing}" if is_absent else brief(error), needs, f"{brings} brings what is needed")
    return None


@functools.cache
def _preload() -> None:
    """Load the libraries of NVIDIA's packages, which the system's loader does not find."""
    with contextlib.redirect_stdout(io.StringIO()):  # because it prints messages
        _ort().preload_dlls()
    if (spec := importlib.util.find_spec("tensorrt_libs")) and spec.origin:
        for name in ("nvinfer", "nvonnxparser"):
            for file in sorted(Path(spec.origin).parent.glob(f"*{name}[._][s0-9]*")):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(file))


def _cuda_major() -> int | None:
    """Return the major version of the CUDA that ONNX Runtime was built with; None without CUDA."""
    major = _ort().cuda_version.partition(".")[0]
    return int(major) if major.isdigit() else None


def _wheel() -> str:
    ort = _ort()
    built = f", built with CUDA {ort.cuda_version}" if ort.cuda_version else ""
    return f"{ort.package_name} {ort.__version__}{built}"


def _ort() -> Any:
    """Import ONNX Runtime, which a broken installation does not have."""
    from txport.runtimes.ort.onnx_runtime import ort

    return ort
