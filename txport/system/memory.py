"""The memory that this process can still allocate."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from txport.errors import OutOfMemoryError

V1 = "/sys/fs/cgroup/memory/memory."
CGROUPS: tuple[tuple[str, str, str, tuple[str, str]], ...] = (
    # of version 2 and version 1: limit, use, statistics, and what in these is the cache of files, which gives way
    (
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory.current",
        "/sys/fs/cgroup/memory.stat",
        ("active_file", "inactive_file"),
    ),
    (f"{V1}limit_in_bytes", f"{V1}usage_in_bytes", f"{V1}stat", ("total_active_file", "total_inactive_file")),
)


def available() -> int | None:
    """Return the free bytes: the minimum over machine, container and process limits; None if unknown."""
    return min((limit for limit in _limits()), default=None)


def require(needed: int, what: str, fix: str = "free some, or take a larger machine") -> None:
    """Raise `OutOfMemoryError` if fewer than `needed` bytes are free; the message contains `what` and `fix`."""
    free = available()
    if free is not None and needed > free:
        sizes = f"{readable(needed)} of memory, and {readable(free)} are free here"
        raise OutOfMemoryError(f"{what} needs {sizes}; {fix}")


def readable(size: int) -> str:
    """Format a number of bytes with a decimal unit, such as `1.5 GB`."""
    number = float(min(size, 10**30))
    units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"]
    while number >= 1000 and len(units) > 1:
        number /= 1000
        del units[0]
    return f"{number:.3g} {units[0]}"


def _limits() -> Iterator[int]:
    yield from _free_in_machine()
    for *files, statistics, names in CGROUPS:
        most, used = (_number(Path(file)) for file in files)
        if most is not None and used is not None:
            yield max(0, most - max(0, used - _cached(Path(statistics), names)))
    if (limit := address_limit()) is not None:
        yield max(0, limit - _mapped())


def address_limit() -> int | None:
    """Return the bytes of address space that this process may use at most (`ulimit -v`); None without a limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def _free_in_machine() -> Iterator[int]:
    file = Path("/proc/meminfo")
    if file.exists():
        sizes = dict(line.split(":", 1) for line in file.read_text(encoding="ascii").splitlines())
        yield sum(1024 * int(sizes[name].split()[0]) for name in ("MemAvailable", "SwapFree") if name in sizes)
    elif hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _mapped() -> int:
    """Return the bytes of address space that this process uses."""
    file = Path("/proc/self/statm")
    return int(file.read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


def _cached(statistics: Path, names: tuple[str, str]) -> int:
    """Return the bytes of the file cache, which the system frees when memory is needed."""
    try:
        lines = (line.split() for line in statistics.read_text(encoding="ascii").splitlines())
        return sum(int(value) for name, value in lines if name in names)
    except (OSError, ValueError):
        return 0


def _number(file: Path) -> int | None:
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdigit() else None
