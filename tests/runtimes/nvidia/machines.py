"""Machines with NVIDIA's GPUs that are thought up: libraries as ctypes shows them, and wheels as they lie on disk."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from txport.runtimes.ort.nvidia import driver as driver_module
from txport.runtimes.ort.nvidia.binaries import Kernels
from txport.runtimes.ort.nvidia.wheel import CUDA, CUDNN, INFO, Wheel, library_file

NEEDS = ("libcublasLt.so.13", "libcublas.so.13", "libcurand.so.10", "libcudart.so.13", CUDNN)
H100 = ("NVIDIA H100", (9, 0), 80 << 30)
T4 = ("Tesla T4", (7, 5), 15 << 30)
P100 = ("Tesla P100", (6, 0), 16 << 30)
B200 = ("NVIDIA B200", (10, 0), 180 << 30)
KERNELS = Kernels(frozenset({(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)}))
NO_GPU = 100


@dataclass
class Machine:
    """What the loader finds: `gpus` are name, capability and memory; `start` is what cuInit answers.

    `cuda` is None where there is no driver; `libraries` are those of CUDA and cuDNN that load, with their versions.
    """

    cuda: int | None = 13000
    gpus: tuple[tuple[str, tuple[int, int], int], ...] = (H100,)
    start: int = 0
    used: int = 1 << 30
    version: str | None = "580.65.06"  # None: no management library
    libraries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NEEDS, 0))
    broken: dict[str, str] = field(default_factory=dict)  # library -> what the loader says

    def open(self, name: str, mode: int = 0) -> Any:
        """As `ctypes.CDLL` does."""
        if name == driver_module.LIBRARY and self.cuda is not None:
            return Cuda(self)
        if name == driver_module.MANAGEMENT and self.version is not None:
            return Nvml(self)
        short = Path(name).name
        if short in self.broken:
            raise OSError(self.broken[short])
        if short in self.libraries:
            return Library(self.libraries[short])
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")


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

    def do_cuGetErrorName(self, code: int, out: Any) -> int:  # noqa: N802
        out._obj.value = {NO_GPU: b"CUDA_ERROR_NO_DEVICE", 803: b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}.get(code, b"?")
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


class Nvml:
    """libnvidia-ml, which sees all GPUs."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlSystemGetDriverVersion(self, out: Any, size: int) -> int:  # noqa: N802
        out.value = (self.machine.version or "").encode()
        return 0

    def nvmlDeviceGetCount_v2(self, out: Any) -> int:  # noqa: N802
        out._obj.value = len(self.machine.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, out: Any) -> int:  # noqa: N802
        out._obj.value = index + 1
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus: bytes, out: Any) -> int:  # noqa: N802
        out._obj.value = int(bus[5:7]) + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, out: Any, size: int) -> int:  # noqa: N802
        out.value = self.machine.gpus[handle.value - 1][0].encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> int:  # noqa: N802
        out._obj.total = self.machine.gpus[handle.value - 1][2]
        out._obj.free = out._obj.total - self.machine.used
        return 0


class Function:
    """A function of ctypes, whose type of result can be set."""

    restype: Any = None

    def __init__(self, result: int) -> None:
        self.result = result

    def __call__(self) -> int:
        return self.result


class Library:
    """One of CUDA's: its runtime, or cuDNN."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.cudnnGetVersion = Function(version)

    def cudaRuntimeGetVersion(self, out: Any) -> int:  # noqa: N802
        out._obj.value = self.version
        return 0


def wheel(folder: Path, **changes: Any) -> Wheel:
    """ONNX Runtime with CUDA 13, as 1.31.1 was built."""
    about = {"name": "onnxruntime-gpu", "version": "1.31.1", "cuda": "13.0", "needs": NEEDS, "kernels": KERNELS}
    return Wheel(folder, **{**about, "library": folder / "capi" / library_file(CUDA), **changes})


def lay(folder: Path, package: str = "onnxruntime-gpu", cuda: str = "13.0", *, library: bytes | None = None) -> Path:
    """The files of a wheel, of which `library` is the CUDA provider."""
    (folder / "capi").mkdir(parents=True)
    lines = [f"package_name = '{package}'", "__version__ = '1.31.1'", *([f"cuda_version = '{cuda}'"] if cuda else [])]
    (folder / INFO).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if library is not None:
        (folder / "capi" / library_file(CUDA)).write_bytes(library)
    return folder


def elf(needed: list[str], cubins: list[int] = [], ptx: list[int] = []) -> bytes:  # noqa: B006 - nobody changes them
    """A library that is linked to others, and has kernels for these architectures, in a file without code."""
    names = b"\0" + b"\0".join(name.encode() for name in needed) + b"\0"
    section_names = b"\0.dynstr\0.dynamic\0.shstrtab\0.nv_fatbin\0"
    starts = [1 + sum(len(each) + 1 for each in needed[:index]) for index in range(len(needed))]
    dynamic = b"".join(struct.pack("<QQ", 1, start) for start in starts) + struct.pack("<QQ", 0, 0)
    fat = b"".join(fat_binary(kind, arch) for kind, each in ((2, cubins), (1, ptx)) for arch in each)
    parts = [b"", names, dynamic, section_names, fat]
    offsets = []
    place = 64
    for part in parts:
        offsets.append(place)
        place += len(part)
    header = (
        b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, place, 0, 64, 0, 0, 64, 5, 3)
    )
    kinds = [(0, 0, 0), (section_names.index(b".dynstr"), 3, 0), (section_names.index(b".dynamic"), 6, 1)]
    kinds += [(section_names.index(b".shstrtab"), 3, 0), (section_names.index(b".nv_fatbin"), 1, 0)]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, len(part), link, 0, 1, 0)
        for (name, kind, link), offset, part in zip(kinds, offsets, parts, strict=True)
    )
    return header + b"".join(parts) + table


def fat_binary(kind: int, architecture: int, body: int = 24) -> bytes:
    """One part in a fat binary of its own."""
    part = struct.pack("<HHIQQII", kind, 1, 64, body, 0, 0, architecture) + bytes(32) + bytes(body)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(part)) + part
