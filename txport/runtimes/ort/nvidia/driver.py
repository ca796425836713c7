"""Query NVIDIA's driver and the GPUs that CUDA shows to this process.

CUDA's own library says which GPUs there are; NVIDIA's package `nvidia-ml-py`, if it is installed, says how much of
their memory is free, and which GPUs CUDA hides.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
MAX_NAME = 96  # bytes


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

    `is_there`: whether its library loads. `version`: such as 580.65.06, "" if unknown. `cuda`: the newest CUDA that it
    can run, (major, minor). `error`: the error's number when CUDA was started, 0 without one. `devices`: GPUs that this
    process may use. `hidden`: names of GPUs that CUDA does not show to this process.
    """

    is_there: bool = False
    version: str = ""
    cuda: tuple[int, int] | None = None
    error: int = 0
    devices: tuple[Device, ...] = ()
    hidden: tuple[str, ...] = ()


class CudaError(Exception):
    """A function of the driver returned an error `code`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def query_driver() -> Driver:
    """Query the driver; never raises."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return Driver()
    with _management() as nvml:
        driver = Driver(is_there=True, version=_version(nvml), cuda=_newest(cuda))
        try:
            _check(cuda.cuInit(0))
            devices = tuple(_device(cuda, nvml, index) for index in range(_integer(cuda.cuDeviceGetCount)))
        except CudaError as error:
            return replace(driver, error=error.code, hidden=_names(nvml))
        return replace(driver, devices=devices, hidden=() if devices else _names(nvml))


@contextlib.contextmanager
def _management() -> Iterator[Any]:
    """Yield NVIDIA's management library, started; None if its package is not installed or does not start."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # its errors are as many as its versions
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _version(nvml: Any) -> str:
    return "" if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def _names(nvml: Any) -> tuple[str, ...]:
    """Return the names of all GPUs of the machine; () if they are unknown."""
    if nvml is None:
        return ()
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return tuple(map(nvml.nvmlDeviceGetName, handles))


def _newest(cuda: Any) -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver can run, which works even if CUDA does not start."""
    with contextlib.suppress(CudaError):
        number = _integer(cuda.cuDriverGetVersion)
        return number // 1000, number % 1000 // 10
    return None


def _device(cuda: Any, nvml: Any, index: int) -> Device:
    device = ctypes.c_int(_integer(cuda.cuDeviceGet, index))
    name = ctypes.create_string_buffer(MAX_NAME)
    _check(cuda.cuDeviceGetName(name, MAX_NAME, device))
    major, minor = (_integer(cuda.cuDeviceGetAttribute, attribute, device) for attribute in (MAJOR, MINOR))
    memory = ctypes.c_size_t(0)
    _check(cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device))
    free = _free(cuda, nvml, device)
    known = None if free is None else min(free, memory.value)  # `free` is the board's; a partition has less
    return Device(name.value.decode("utf-8", "replace"), (major, minor), memory.value, known)


def _free(cuda: Any, nvml: Any, device: ctypes.c_int) -> int | None:
    """Return the free bytes of a GPU, which NVML knows by its PCI address."""
    if nvml is None:
        return None
    address = ctypes.create_string_buffer(MAX_NAME)
    try:
        _check(cuda.cuDeviceGetPCIBusId(address, MAX_NAME, device))
        return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByPciBusId(address.value)).free)
    except (CudaError, nvml.NVMLError):
        return None


def _integer(function: Any, *arguments: object) -> int:
    """Return the integer that a function writes to its first argument; raise `CudaError` if it fails."""
    value = ctypes.c_int(0)
    _check(function(ctypes.byref(value), *arguments))
    return value.value


def _check(code: int) -> None:
    if code != 0:
        raise CudaError(code)
