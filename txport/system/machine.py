"""What a figure was measured on: the processor and its instructions; the memory a process has held, and its end."""

from __future__ import annotations

import errno
import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

# What native code says where memory, or room for a thread, is at its end: those errors have no type of their own.
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
FLAGS = ("flags", "Features")  # what Linux calls them on x86, and on Arm
# Instructions by which kernels are chosen: two processors of one name may differ by a factor.
TELLING = (
    *("sse4_2", "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)


def describe() -> dict[str, Any]:
    """The processor and its instructions, its cores, the system, and the GPU if PyTorch is loaded and sees one."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
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
    """Instructions that the processor has beyond the usual ones, as Linux calls them; no other system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    lines = [line.partition(":") for line in text.splitlines()]
    return frozenset(flag for name, _, rest in lines if name.strip() in FLAGS for flag in rest.split())


def instructions() -> list[str]:
    """Those of the processor by which kernels are chosen."""
    return [flag for flag in TELLING if flag in flags()]


def is_x86() -> bool:
    """Whether the processor is one of Intel's or AMD's, or like them."""
    return platform.machine().lower() in ("x86_64", "amd64")


def multiplies_bytes() -> bool:
    """Whether an x86 is known to add products of 8 bits without overflow (VNNI)."""
    return is_x86() and any("vnni" in flag for flag in flags())


def peak_memory() -> float:
    """The most memory that this process has held, in MB; NaN where the system does not tell."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's pages from before exec
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e6
    if sys.platform == "win32":
        return float("nan")
    import resource

    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1e6


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy, ONNX Runtime or PyTorch says that there was not enough memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    native = isinstance(error, Exception) and any(words in str(error).lower() for words in NO_MEMORY)
    return isinstance(error, MemoryError) or native
