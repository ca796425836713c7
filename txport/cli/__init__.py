"""The command line: data goes to stdout and progress to stderr; an error is one line and an exit code.

Exit codes: 0 success; 1 a check failed, or memory is not enough; 2 wrong usage or bad input; 3 not available on this
machine; 130 interrupted.

This module imports very little, so that Ctrl-C prints one line even while the process starts.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from txport.cli.commands import cli as cli

INTERRUPTED = "txport: interrupted; nothing was left half-written\n"
COMPLETE = "_TXPORT_COMPLETE"  # set by a shell that asks for completions, in whose prompt any message would appear


def main(arguments: Iterable[str] | None = None) -> None:
    """Run the command line and exit; without `arguments`, take over this process and use its arguments."""
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
    """Make the signals of `ENDING` end the process at once until a command begins: there is nothing to undo."""
    import signal

    from txport.system.terminal import ENDING

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def _leave(*_: object) -> None:
    try:
        if COMPLETE not in os.environ:
            os.write(2, (("\n" if os.isatty(2) else "") + INTERRUPTED).encode())  # after the ^C of the terminal
    finally:
        os._exit(130)


def _refuse_to_start(error: Exception) -> NoReturn:
    """Exit with 3 if a package that all commands need, such as click, is missing, with 1 without memory for them.

    Raises any other `error`.
    """
    if COMPLETE in os.environ:
        sys.exit(1)
    from txport.system.machine import is_out_of_memory
    from txport.system.packages import import_problem

    is_memory = is_out_of_memory(error)
    problem = "not enough memory here to start" if is_memory else import_problem(error, "txport")
    if problem is None:
        raise error
    sys.stderr.write(f"txport: {problem}\n")
    sys.exit(1 if is_memory else 3)


def __getattr__(name: str) -> object:
    if name != "cli":
        raise AttributeError(f"module 'txport.cli' has no attribute {name!r}")
    from txport.cli import commands

    return commands.cli
