"""The time and memory of a process, sampled while it runs."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txport.system import memory

INTERVAL = 0.2  # seconds between samples
RESERVE = 1_500_000_000  # bytes; a process that leaves less to the machine is stopped
ANONYMOUS = "RssAnon:"


@dataclass(frozen=True)
class Usage:
    """What a process took. `resident` is the peak of its memory in bytes, `anonymous` that without mapped files."""

    code: int
    seconds: float
    processor_seconds: float
    resident: int
    anonymous: int
    is_stopped: bool
    last_line: str


def measure(command: Sequence[str], log: Path) -> Usage:
    """Run a command to its end; its errors are written to `log`, and its output is not kept."""
    begun = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            anonymous, is_stopped, status, used = _watch(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
    process.returncode = os.waitstatus_to_exitcode(status)  # `wait4` has already taken it
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Usage(
        code=process.returncode,
        seconds=time.monotonic() - begun,
        processor_seconds=used.ru_utime + used.ru_stime,
        resident=1024 * used.ru_maxrss,
        anonymous=anonymous,
        is_stopped=is_stopped,
        last_line=lines[-1] if lines else "",
    )


def _watch(process: subprocess.Popen[bytes]) -> tuple[int, bool, int, os.struct_rusage]:
    """Sample a process until it ends, and stop it before the machine runs out of memory.

    Return its peak of anonymous memory, whether it was stopped, its status and its usage.
    """
    peak = 0
    is_stopped = False
    while True:
        peak = max(peak, _anonymous(process.pid))
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            return peak, is_stopped, status, used
        free = memory.available()
        if free is not None and free < RESERVE:
            process.kill()
            is_stopped = True
        time.sleep(INTERVAL)


def _anonymous(process_id: int) -> int:
    """Return the bytes of memory of a process that are not mapped files; 0 after its end."""
    lines = Path(f"/proc/{process_id}/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(ANONYMOUS)), 0)
