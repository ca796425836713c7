"""The processor time that other programs use while something is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

STAT = Path("/proc/stat")
IDLE = (3, 4)  # fields of a line of /proc/stat: idle, and waiting for a disk
COUNTED = 8  # fields after these are parts of earlier ones


class Others:
    """Measure how many cores other processes than this one and `pids` used on average; Linux only."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = [os.getpid(), *pids]
        self._last = self._now()

    def cores(self) -> float | None:
        """Return the average number of cores since the last call; None where the system does not count them."""
        before, self._last = self._last, self._now()
        if before is None or self._last is None or self._last[0] <= before[0]:
            return None
        return max(0.0, (self._last[1] - before[1]) / (self._last[0] - before[0]))

    def _now(self) -> tuple[float, float] | None:
        """Return the time, and the processor time that others have used, in seconds."""
        if not STAT.exists():
            return None
        tick = os.sysconf("SC_CLK_TCK")
        fields = list(map(int, STAT.read_text(encoding="ascii").partition("\n")[0].split()[1 : 1 + COUNTED]))
        busy = sum(value for at, value in enumerate(fields) if at not in IDLE)
        return time.perf_counter(), (busy - sum(map(_used, self._pids))) / tick


def _used(pid: int) -> int:
    """Return the ticks that a process has used; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])
