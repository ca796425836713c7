"""The processor and its instructions, the peak memory of this process, and detection of out-of-memory errors."""

from __future__ import annotations

import errno
import os
import platform
import sys
from functools import cache
from pathlib import Path

# Messages of native code when memory or threads run out: these errors have no separate type.
NO_MEMORY = (
    "error return without exception set",  # a SystemError of Python: not even memory for a MemoryError
    "bad_alloc",
    "bad allocation",
    "allocate memory",
    "out of memory",
    "failed to allocate",
    "can't start new thread",
    "not enough memory",
    "could not determine the shape of object type 'torch.storage.untypedstorage'",  # a file that can't be mapped
)
FLAGS = ("flags", "Features")  # names in /proc/cpuinfo on x86 and on Arm
# Instructions by which kernels are chosen: two processors of one name may differ by a factor.
TELLING = (
    *("sse4_2", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)


def describe() -> dict[str, object]:
    """Return processor, instructions, number of cores, system, and the GPU if PyTorch is loaded and finds one."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.split(":")[1].strip() for line in lines if "model name" in line)
    model = next(names, "") or platform.processor() or platform.machine()  # `processor` starts a process
    torch = sys.modules.get("torch")
    gpu = torch.cuda.get_device_name() if torch and torch.cuda.is_available() else None
    return {
        "cpu": model,
        "instructions": instructions(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": gpu,
    }


@cache
def flags() -> frozenset[str]:
    """Return the CPU flags as Linux names them; empty on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    lines = [line.partition(":") for line in text.splitlines()]
    return frozenset(flag for name, _, rest in lines if name.strip() in FLAGS for flag in rest.split())


def instructions() -> list[str]:
    """Return the flags of this processor that decide which kernels are chosen."""
    return [flag for flag in TELLING if flag in flags()]


def is_x86() -> bool:
    """Return whether the processor is a 64-bit x86."""
    return platform.machine().lower() in ("x86_64", "amd64")


def multiplies_bytes() -> bool:
    """Return whether this is an x86 known to add 8-bit products without overflow (VNNI)."""
    return is_x86() and any("vnni" in flag for flag in flags())


def peak_memory() -> float:
    """Return the peak memory of this process in MB (10^6 bytes); NaN on Windows."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's pages from before exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return float("nan")
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e6


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of Python, NumPy, ONNX Runtime or PyTorch means that memory ran out."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    native = isinstance(error, Exception) and any(words in str(error).lower() for words in NO_MEMORY)
    return isinstance(error, MemoryError) or native
