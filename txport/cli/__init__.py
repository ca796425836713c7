"""The command line: data to stdout, progress to stderr, one line for an error, and an exit code that means something.

0 good; 1 a check failed; 2 wrong usage or bad input; 3 what was asked for is not available here; 130 interrupted.

Imports next to nothing, so that Ctrl-C is answered in one line as soon as there is a process.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

    from txport.cli.commands import cli as cli

INTERRUPTED = "txport: interrupted; nothing was left half-written\n"


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the command line and exit; without arguments, those of this process, which is then the command's own."""
    if arguments is None:
        try:
            _leave_at_interrupts()
        except KeyboardInterrupt:
            _leave()
    try:
        from txport.cli import commands, completion
        from txport.cli.guard import run_guarded
    except Exception as error:
        _refuse_to_start(error)

    if arguments is None:
        completion.answer(commands.cli)
    run_guarded(commands.cli, arguments)


def _leave_at_interrupts() -> None:
    """Until a command begins, an interrupt ends the process where it stands: there is nothing to undo."""
    import signal

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(*_: object) -> None:
    try:
        os.write(2, (("\n" if os.isatty(2) else "") + INTERRUPTED).encode())  # after the ^C of the terminal
    finally:
        os._exit(130)


def _refuse_to_start(error: Exception) -> NoReturn:
    """For want of what the commands themselves are made of, such as click."""
    from txport.system.machine import is_out_of_memory
    from txport.system.packages import import_problem

    problem = "not enough memory here to start" if is_out_of_memory(error) else import_problem(error, "txport")
    if problem is None:
        raise error
    sys.stderr.write(f"txport: {problem}\n")
    sys.exit(3)


def __getattr__(name: str) -> Any:
    if name != "cli":
        raise AttributeError(f"module 'txport.cli' has no attribute {name!r}")
    from txport.cli import commands

    return commands.cli
