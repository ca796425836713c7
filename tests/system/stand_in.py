"""Calls that change the disk, counted in a child process, which gets a signal at the chosen one.

Most are heard of by Python's audit events, the others by wrappers. Half of a write that is chosen is done first.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txport.system import stages

Step = Callable[[Path], object]

CHANGES = ("rename", "mkdir", "remove", "rmdir", "chmod", "chown", "link", "symlink", "utime", "truncate")
COUNTED = {"fcntl.flock", *(f"os.{name}" for name in CHANGES)}
OPENED_TO_CHANGE = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
INTERRUPTED = 130


@dataclass(frozen=True)
class Ended:
    """How a child ended: by a signal or with a code, after so many counted calls; what it said of an error."""

    signal: int
    code: int
    calls: int
    error: str


class Meter:
    """Counts calls that change the disk, and sends a signal to this process at the chosen one."""

    def __init__(self, at: int | None, number: int) -> None:
        self.at = at
        self.number = number
        self.calls = 0

    def tick(self, half: Callable[[], object] = lambda: None) -> None:
        """Count one call; `half` does half of it first, if it is the chosen one."""
        self.calls += 1
        if self.calls == self.at:
            half()
            os.kill(os.getpid(), self.number)

    def install(self) -> None:
        """Put the stand-ins in place, for the rest of this process."""
        sys.addaudithook(self.hear)
        for module, name in ((os, "fsync"), (os, "write"), (stages, "exchange")):
            self.wrap(module, name)
        opened: Any = self.opener()
        io.open = builtins.open = opened

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """An audit hook: Python names each of these calls before it is made."""
        if event in COUNTED or (event == "open" and (arguments[2] or 0) & OPENED_TO_CHANGE):
            self.tick()

    def wrap(self, module: Any, name: str) -> None:
        """Count the calls of a function for which there is no audit event."""
        real = getattr(module, name)

        def counted(*arguments: Any) -> Any:
            self.tick()
            return real(*arguments)

        setattr(module, name, counted)

    def opener(self) -> Callable[..., Any]:
        """`open`, with files that count what is written to them."""
        meter = self
        real = builtins.open

        class Counted(io.FileIO):
            def write(self, data: Any, /) -> int:
                meter.tick(lambda: super(Counted, self).write(bytes(data)[: len(data) // 2]))
                return super().write(data)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real(file, mode, buffering, *rest, **options)
            raw = Counted(file, mode.replace("b", "").replace("t", ""), closefd=options.pop("closefd", True))
            buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *rest, **options)

        return opened


def in_child(world: Path, step: Step, at: int | None = None, number: int = signal.SIGKILL) -> Ended:
    """Run a step in a process of its own, which gets a signal at the chosen call."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads
        child = os.fork()
    if child == 0:
        _run_child(world, step, Meter(at, number), writing)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as stream:
        calls, _, error = stream.read().partition("\n")
    status = os.waitpid(child, 0)[1]
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return Ended(ended_by, os.waitstatus_to_exitcode(status), int(calls or 0), error)


def _run_child(world: Path, step: Step, meter: Meter, writing: int) -> None:
    write = os.write
    code = 1
    error = ""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        os.environ.update(TMPDIR=str(world / "tmp"), XDG_CACHE_HOME=str(world / "place" / "cache"))
        tempfile.tempdir = None
        os.chdir(world / "here")
        meter.install()
        step(world / "place")
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        error = traceback.format_exc()
    finally:
        meter.at = None
        write(writing, f"{meter.calls}\n{error[-2000:]}".encode(errors="replace"))
        os._exit(code)
