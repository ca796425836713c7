"""Children of this process: warm, since they inherit what it has imported, and free to crash."""

from __future__ import annotations

import os
import resource
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

GUARD = 6 << 30  # bytes of address space that a child may add; what it takes is judged by its peak, not by this
LARGEST_FILE = 2 << 30


def import_all() -> None:
    """Import what commands import, so that a child has it at once; nothing of it may run here."""
    import importlib
    import pkgutil

    import jinja2.meta  # noqa: F401
    import onnx  # noqa: F401
    import soundfile  # noqa: F401
    import tokenizers  # noqa: F401
    import torch  # noqa: F401

    import txport.bench.measure
    import txport.checkpoints.importing.draft
    import txport.checkpoints.importing.fit
    import txport.cli.tables
    import txport.proof.bisect.culprit
    import txport.proof.matrix
    import txport.proof.parity.check
    import txport.proof.reports.baseline
    import txport.proof.reports.pages
    import txport.proof.verify.check
    import txport.runtimes.ort.runtime
    import txport.runtimes.pytorch
    import txport.runtimes.reference
    import txport.text.templates

    for name in ("models.architectures", "checkpoints.families", "checkpoints.sources", "text", "audio"):
        package = importlib.import_module(f"txport.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    txport.text.chat.MAX_SECONDS = 1.0  # seconds of a template that has no end


def fork(work: Callable[[], None]) -> int:
    """Run `work` in a child, silently; -> its process id. It ends with 0, or 70 and a traceback on our stderr."""
    if pid := os.fork():
        return pid
    code = 70
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns when a child runs it; its stdout goes nowhere. `RuntimeError` if it fails."""
    ours, theirs = Pipe(duplex=False)

    def quiet() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        theirs.send(work())

    pid = fork(quiet)
    theirs.close()
    try:
        return ours.recv()
    except EOFError as error:
        raise RuntimeError("a child that makes sound files failed") from error
    finally:
        os.waitpid(pid, 0)


def describe_end(status: int) -> str:
    """What `waitpid` tells, in words."""
    code = os.waitstatus_to_exitcode(status)
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def bound() -> None:
    """Keep a child from taking the machine with it."""
    size = memory("VmSize") + GUARD
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))


def memory(name: str) -> int:
    """A figure of this process in bytes: `VmHWM` is the peak of what is resident, `VmRSS` what is now."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10


def forget_peak() -> None:
    """Let `VmHWM` begin anew."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
