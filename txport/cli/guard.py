"""Errors as one line and an exit code, and safe writing to stdout and stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TextIO

import click

from txport.cli import INTERRUPTED
from txport.cli.interrupts import Interrupt
from txport.errors import OutOfMemoryError, OutputError, TxportError, UnavailableError, brief
from txport.system.machine import is_out_of_memory
from txport.system.packages import import_problem
from txport.system.terminal import one_line, owns_stderr, printable

SPARE = 1 << 20  # bytes that are freed before an error is reported, since memory may have run out
LONGEST_WORD = 400  # characters; longer words are cut
NO_MEMORY = "txport: not enough memory here; give it more"
MEMORY_FIX = "give it more memory, smaller batches or a smaller model"
_results: ContextVar[TextIO | None] = ContextVar("results", default=None)


def results() -> TextIO:
    """Return the stream of results: standard output, also inside `prints_aside`."""
    return _results.get() or sys.stdout


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """Redirect the prints of user code to standard error, so that standard output contains only results."""
    stream = sys.stdout
    token = _results.set(stream)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stream
        _results.reset(token)


def echo(line: str = "", err: bool = False) -> None:
    """Print one line of text; control characters in it are escaped."""
    write(printable(line.replace("\n", " ")) + "\n", err=err)


def write(text: str, err: bool = False) -> None:
    """Write text without control characters; ignore a closed pipe, since the exit code still matters."""
    try:
        click.echo(text, nl=False, err=err, file=None if err else _results.get())
    except BrokenPipeError:
        _give_up(sys.stderr if err else results())


def progress(message: str) -> None:
    """Print progress on stderr if it is a terminal."""
    if sys.stderr.isatty():
        echo(message, err=True)


def run_guarded(command: click.Command, arguments: Iterable[str] | None = None) -> None:
    """Run a command and exit with its exit code unless it is 0; every error that a user can cause is one line.

    Without `arguments`, use those of the process, which must end after the command.
    """
    _prepare_streams()
    is_own = arguments is None
    owner = owns_stderr.set(is_own)
    interrupt = Interrupt()
    try:
        code = _run(command, list(sys.argv[1:] if arguments is None else arguments), interrupt)
    finally:
        interrupt.end(is_own)
        owns_stderr.reset(owner)
    if code:
        sys.exit(code)


def _run(command: click.Command, arguments: list[str], interrupt: Interrupt) -> int:
    spare = [bytes(SPARE)]
    try:
        code, text = _outcome(command, arguments, interrupt, spare)
        interrupt.is_over = True
    except KeyboardInterrupt as error:
        interrupt.is_over = True
        code = 130
        text = _with_notes(INTERRUPTED, error)
    except Exception as error:  # memory ran out while the error was reported
        if not is_out_of_memory(error):
            raise
        code = OutOfMemoryError.exit_code
        text = NO_MEMORY
    # The error is freed here, and with it the memory that its frames held.
    try:
        if code == 130:
            progress("")  # ends the line where the terminal printed ^C
        for line in text.splitlines():
            echo(line, err=True)
    except OSError:  # stderr is closed
        _give_up(sys.stderr)
    return code


def _outcome(command: click.Command, arguments: list[str], interrupt: Interrupt, spare: list[bytes]) -> tuple[int, str]:
    """Run the command; return its exit code and the message; `spare` memory is freed to make the message."""
    try:
        interrupt.begin()
        # Not command.main(): it handles Ctrl-C and a closed pipe differently.
        with command.make_context(command.name, arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
    except Exception as error:
        spare.clear()
        # An error after an interrupt is its result: libraries turn the interrupt into their own errors.
        is_interrupted = interrupt.came or isinstance(error, click.Abort)
        code, text = (130, INTERRUPTED) if is_interrupted else _end_of(error)
        return code, _with_notes(text, error)
    return 0, ""


def _with_notes(message: str, error: BaseException) -> str:
    """Return the message of an error with the error's notes, if there are any."""
    return "; ".join([message.rstrip(), *error.__notes__]) if message and hasattr(error, "__notes__") else message


def _end_of(error: BaseException) -> tuple[int, str]:
    """Return the exit code of an error and its message; raise an unexpected error again."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code, ""
        case click.ClickException():
            usage = io.StringIO()
            error.show(usage)
            return 2, usage.getvalue()
        case TxportError():
            return error.exit_code, _tell(str(error))
        case BrokenPipeError():  # `txport run ... | head`
            _give_up(sys.stdout)
            return 0, ""
    if is_out_of_memory(error):
        detail = one_line(str(error))
        return OutOfMemoryError.exit_code, _tell(f"not enough memory here{detail and f' ({detail})'}; {MEMORY_FIX}")
    if problem := import_problem(error):
        return UnavailableError.exit_code, _tell(problem)
    if isinstance(error, OSError):
        _give_up(sys.stdout)
        name = brief(error.filename or "standard output")
        return OutputError.exit_code, _tell(f"{error.strerror or brief(error)}: {name}")
    raise error


def _tell(message: str) -> str:
    cut = (word if len(word) <= LONGEST_WORD else f"{word[:LONGEST_WORD]}..." for word in message.split())
    return f"txport: {' '.join(cut)}"


def _prepare_streams() -> None:
    """Replace closed streams by ones that discard text; write data as UTF-8 in every locale."""
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def _give_up(stream: TextIO) -> None:
    """Redirect a stream that can't be written to the null device; otherwise Python prints an error when it exits."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
