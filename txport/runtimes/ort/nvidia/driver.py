"""Query NVIDIA's driver and its GPUs through the driver's own libraries, without the CUDA runtime or PyTorch."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Opener = Callable[[str], Any]  # a library's name or path -> its functions; raises OSError if it does not load

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MANAGEMENT = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
KERNEL_MODULE = Path("/proc/driver/nvidia/version")  # visible in a container without the driver's libraries
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
TEXT = 96  # maximum bytes of a name
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Device:
    """A GPU that CUDA may use: `capability` (major, minor), `memory` in bytes, `free` in bytes or None if unknown."""

    name: str
    capability: tuple[int, int]
    memory: int
    free: int | None = None

    @property
    def described(self) -> str:
        """The name and compute capability as text."""
        return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"


@dataclass(frozen=True)
class Driver:
    """State of NVIDIA's driver.

    `is_there`: whether its library loads; `loaded`: the loader's error if not. `version`: the driver's version, such as
    580.65.06. `cuda`: the newest CUDA that it can run, (major, minor). `error`: number and name of the error when CUDA
    was started. `devices`: GPUs that this process may use. `hidden`: names of GPUs of the driver that CUDA does not
    show to this process. `visible`: value of `CUDA_VISIBLE_DEVICES`, which may hide them. `module`: version of the
    kernel's driver if only that is present.
    """

    is_there: bool
    loaded: str = ""
    version: str = ""
    cuda: tuple[int, int] | None = None
    error: tuple[int, str] | None = None
    devices: tuple[Device, ...] = ()
    hidden: tuple[str, ...] = ()
    visible: str | None = None
    module: str = ""


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class RefusalError(Exception):
    """A function of the driver returned an error `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def load(name: str) -> Any:
    """Load a library by name or path; on Windows also from the folders in PATH, as ONNX Runtime does."""
    return ctypes.CDLL(name, winmode=0) if sys.platform == "win32" else ctypes.CDLL(name)


def query_driver(open_library: Opener = load) -> Driver:
    """Start CUDA and query the driver; fields that can't be queried stay empty."""
    visible = os.environ.get(VISIBLE)
    try:
        cuda = open_library(LIBRARY)
    except OSError as error:
        return Driver(is_there=False, loaded=str(error), visible=visible, module=_module())
    with _management(open_library) as nvml:
        version, names = _told(nvml)
        found = Driver(is_there=True, version=version, cuda=_newest(cuda), hidden=names, visible=visible)
        try:
            _check(cuda.cuInit(0))
            devices = tuple(_device(cuda, nvml, index) for index in range(_integer(cuda.cuDeviceGetCount)))
        except RefusalError as refusal:
            return replace(found, error=(refusal.code, _name_of(cuda, refusal.code)))
        except AttributeError as error:  # another library with this name
            return replace(found, error=(-1, str(error)))
    return replace(found, devices=devices, hidden=() if devices else names)


def _newest(cuda: Any) -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver can run, which works even if CUDA does not start."""
    try:
        number = _integer(cuda.cuDriverGetVersion)
    except (RefusalError, AttributeError):
        return None
    return number // 1000, number % 1000 // 10


def _device(cuda: Any, nvml: Any, index: int) -> Device:
    device = ctypes.c_int(_integer(cuda.cuDeviceGet, index))
    name = ctypes.create_string_buffer(TEXT)
    bus = ctypes.create_string_buffer(TEXT)
    _check(cuda.cuDeviceGetName(name, TEXT, device))
    capability = tuple(_integer(cuda.cuDeviceGetAttribute, attribute, device) for attribute in (MAJOR, MINOR))
    memory = ctypes.c_size_t(0)
    _check(cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    free = None
    try:
        _check(cuda.cuDeviceGetPCIBusId(bus, TEXT, device))
        free = _free(nvml, bus.value)
    except (RefusalError, AttributeError):
        pass
    known = None if free is None else min(free, memory.value)  # `free` is the board's; a partition has less
    return Device(_text(name), (capability[0], capability[1]), memory.value, known)


def _free(nvml: Any, bus: bytes) -> int | None:
    """Return the free bytes of the GPU at a PCI bus address; None without NVML."""
    if nvml is None:
        return None
    handle = ctypes.c_void_p()
    memory = Memory()
    _check(nvml.nvmlDeviceGetHandleByPciBusId_v2(bus, ctypes.byref(handle)))
    _check(nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    return int(memory.free)


@contextmanager
def _management(open_library: Opener) -> Iterator[Any]:
    """Yield NVIDIA's management library (NVML), started, or None: it may be missing although CUDA is present."""
    try:
        nvml = open_library(MANAGEMENT)
        is_started = nvml.nvmlInit_v2() == 0
    except (OSError, AttributeError):
        is_started = False
        nvml = None
    try:
        yield nvml if is_started else None
    finally:
        if is_started:
            nvml.nvmlShutdown()


def _told(nvml: Any) -> tuple[str, tuple[str, ...]]:
    """Return the driver's version and the names of all GPUs, also of those that this process may not use."""
    if nvml is None:
        return "", ()
    version = ctypes.create_string_buffer(TEXT)
    names = []
    try:
        _check(nvml.nvmlSystemGetDriverVersion(version, TEXT))
        for index in range(_integer(nvml.nvmlDeviceGetCount_v2)):
            handle = ctypes.c_void_p()
            name = ctypes.create_string_buffer(TEXT)
            _check(nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)))
            _check(nvml.nvmlDeviceGetName(handle, name, TEXT))
            names.append(_text(name))
    except (RefusalError, AttributeError):
        pass
    return _text(version), tuple(names)


def _integer(function: Any, *arguments: Any) -> int:
    """Return the integer that a function writes to its first argument; raise `RefusalError` if it fails."""
    value = ctypes.c_int(0)
    _check(function(ctypes.byref(value), *arguments))
    return value.value


def _check(code: int) -> None:
    if code != 0:
        raise RefusalError(code)


def _name_of(cuda: Any, code: int) -> str:
    name = ctypes.c_char_p()
    try:
        if cuda.cuGetErrorName(code, ctypes.byref(name)) == 0 and name.value:
            return name.value.decode("ascii", "replace")
    except AttributeError:
        pass
    return "CUDA_ERROR"


def _text(buffer: Any) -> str:
    return bytes(buffer.value).decode("utf-8", "replace")


def _module() -> str:
    """Return the version of the kernel's driver: the first word that looks like a version; "" if there is none."""
    try:
        words = KERNEL_MODULE.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")
