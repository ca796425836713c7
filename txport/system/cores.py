"""Number of cores that this process may use, by its CPU affinity and the limits of its container."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
GROUPS = "/proc/self/cgroup"  # a line for each hierarchy: its number, controllers, and the group of this process
MOUNTED = "/sys/fs/cgroup"


def cores() -> int:
    """Return the number of processors that this process may use."""
    return min(len(_allowed()), time_limit() or len(_allowed()))


def core_limit() -> int | None:
    """Return the number of usable cores if they are fewer than the machine's physical cores, otherwise None.

    `taskset`, `docker --cpuset-cpus` and schedulers set the affinity of a process; `docker --cpus` and Kubernetes'
    limits restrict its CPU time.
    """
    has_all = _allowed() >= set(range(os.cpu_count() or 1))
    usable = usable_cores()
    return None if has_all and usable == len(_physical()) else usable


def usable_cores() -> int:
    """Return the number of physical cores that this process may use."""
    physical = len(_physical())
    return min(physical, time_limit() or physical)


def time_limit() -> int | None:
    """Return the CPU time limit of this process's control groups in cores, rounded up; None without a limit."""
    shares = list(_shares())
    return max(1, math.ceil(min(shares))) if shares else None


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _physical() -> set[str]:
    return set(map(_core_of, _allowed()))


def _core_of(processor: int) -> str:
    """Return an identifier that the processors of one physical core share."""
    file = Path(SIBLINGS.format(processor))
    return file.read_text(encoding="ascii").strip() if file.exists() else str(processor)


def _shares() -> Iterator[float]:
    """Yield the limits of this process's groups and their parents, in cores; a container sees only its own group."""
    for line in _text(Path(GROUPS)).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        own = Path(group.lstrip("/"))
        for each in (own, *own.parents):
            if not controllers:  # version 2 has one hierarchy for all controllers
                quota, _, period = _text(Path(MOUNTED, each, "cpu.max")).partition(" ")
            elif "cpu" in controllers.split(","):
                folder = Path(MOUNTED, "cpu", each)
                quota, period = (_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
            else:
                break
            if quota.isdigit() and period.isdigit() and int(period):  # no limit is "max", or -1
                yield int(quota) / int(period)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
