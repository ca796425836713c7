"""Machines with NVIDIA's GPUs that are thought up: libraries as ctypes shows them, and NVIDIA's package for Python."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime
import pytest

from txport.runtimes.ort import providers
from txport.runtimes.ort.nvidia import problems
from txport.runtimes.ort.nvidia.driver import LIBRARY

H100 = ("NVIDIA H100", (9, 0), 80 << 30)
T4 = ("Tesla T4", (7, 5), 15 << 30)
NO_GPU = 100
CUBLAS = "libcublasLt.so.13"


@dataclass
class Machine:
    """What the loader finds: `gpus` are name, capability and memory; `start` is what cuInit answers.

    `cuda` is None where there is no driver; `lacks` are libraries that do not load; `version` is None without
    nvidia-ml-py, and `reports` is what it says of a GPU's free memory.
    """

    cuda: int | None = 13000
    gpus: tuple[tuple[str, tuple[int, int], int], ...] = (H100,)
    start: int = 0
    version: str | None = "580.65.06"
    reports: int = 79 << 30
    lacks: tuple[str, ...] = ()

    @contextlib.contextmanager
    def used(self, folder: Path) -> Iterator[pytest.MonkeyPatch]:
        """All that txport asks answers as on this machine; `folder` is that of ONNX Runtime."""
        (folder / "capi").mkdir(parents=True, exist_ok=True)
        for name in (problems.CUDA, problems.SHARED):
            (folder / "capi" / name).touch()
        caches = (providers._nvidia, problems.problem_of_library, problems._preload)
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
            patch.setattr(onnxruntime, "__file__", str(folder / "__init__.py"))
            patch.setattr(onnxruntime, "cuda_version", "13.0")
            patch.setattr(onnxruntime, "package_name", "onnxruntime-gpu")
            patch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
            patch.setattr(onnxruntime, "preload_dlls", lambda: sys.stdout.write("what no command says"))
            patch.setattr(ctypes, "CDLL", self.open)
            patch.setitem(sys.modules, "pynvml", None if self.version is None else management(self))  # type: ignore[arg-type]
            for each in caches:
                each.cache_clear()
            yield patch
        for each in caches:
            each.cache_clear()

    def open(self, name: str, mode: int = 0) -> Any:
        """As `ctypes.CDLL` does."""
        if name == LIBRARY and self.cuda is not None:
            return Cuda(self)
        needed = (CUBLAS,) if name.endswith(problems.CUDA) else (name,)
        for each in needed:
            if each in (*self.lacks, LIBRARY):
                raise OSError(f"{each}: cannot open shared object file: No such file or directory")
        return None


def management(machine: Machine) -> Any:
    """NVIDIA's package, which sees all GPUs."""

    def free(handle: int) -> Any:
        return SimpleNamespace(free=machine.reports)

    return SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: machine.version,
        nvmlDeviceGetCount=lambda: len(machine.gpus),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetHandleByPciBusId=lambda address: int(address[5:7]),
        nvmlDeviceGetName=lambda handle: machine.gpus[handle][0],
        nvmlDeviceGetMemoryInfo=free,
    )


class Cuda:
    """libcuda."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.started = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self, f"do_{name}")

    def do_cuInit(self, flags: int) -> int:  # noqa: N802 - NVIDIA's names, here and below
        self.started = self.machine.start == 0
        return self.machine.start

    def do_cuDriverGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.machine.cuda
        return 0

    def do_cuDeviceGetCount(self, out: Any) -> int:  # noqa: N802
        assert self.started
        out._obj.value = len(self.machine.gpus)
        return 0

    def do_cuDeviceGet(self, out: Any, index: int) -> int:  # noqa: N802
        out._obj.value = index
        return 0

    def do_cuDeviceGetName(self, out: Any, size: int, device: Any) -> int:  # noqa: N802
        out.value = self.machine.gpus[device.value][0].encode()
        return 0

    def do_cuDeviceGetAttribute(self, out: Any, attribute: int, device: Any) -> int:  # noqa: N802
        out._obj.value = self.machine.gpus[device.value][1][{75: 0, 76: 1}[attribute]]
        return 0

    def do_cuDeviceTotalMem_v2(self, out: Any, device: Any) -> int:  # noqa: N802
        out._obj.value = self.machine.gpus[device.value][2]
        return 0

    def do_cuDeviceGetPCIBusId(self, out: Any, size: int, device: Any) -> int:  # noqa: N802
        out.value = f"0000:0{device.value}:00.0".encode()
        return 0
