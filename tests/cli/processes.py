"""The command line in a process of its own, in surroundings that a test makes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(sys.executable).parent / "txport"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
HEAVY = ("torch", "onnxscript", "openvino")  # packages that take seconds to import
MAIN = "\nfrom txport.cli import main\nmain()"


def without(*packages: str) -> str:
    """Python for `run` to do `before` a command: packages are missing on which its answer does not depend."""
    return f"import sys\nsys.modules.update(dict.fromkeys({packages}))"


def run(*arguments: object, before: str = "", **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end; `before` is Python that its process runs first."""
    command = [sys.executable, "-c", before + MAIN, *(str(argument) for argument in arguments)]
    usual: dict[str, Any] = {"stdin": subprocess.DEVNULL, "env": ENVIRONMENT, "timeout": 300, "text": True}
    if "input" in options:
        del usual["stdin"]
    return subprocess.run(command, capture_output=True, **{**usual, **options})


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """Start the console script itself; it answers Ctrl-C even where a shell has put the tests into the background."""
    command = [str(SCRIPT), *(str(argument) for argument in arguments)]
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    own = {"text": True, "env": ENVIRONMENT, "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen(command, **{**pipes, **own, **options})


def assert_one_line(done: subprocess.CompletedProcess[str], message: str, code: int) -> None:
    """It was refused in one line."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("txport: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert message in done.stderr
