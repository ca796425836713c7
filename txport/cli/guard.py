"""Errors as one line and an exit code, and streams that take what is written to them."""

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
from txport.errors import OutputError, TxportError, UnavailableError, brief
from txport.system.machine import is_out_of_memory
from txport.system.packages import import_problem
from txport.system.terminal import one_line, owns_stderr, printable

SPARE = 1 << 20  # bytes that are given back where an error is told of, which may be that there is no memory
LONGEST_WORD = 400  # characters; longer ones are no names
NO_MEMORY = "txport: not enough memory here; give it more"
MEMORY_FIX = "give it more memory, smaller batches or a smaller model"
_results: ContextVar[TextIO | None] = ContextVar("results", default=None)


def results() -> TextIO:
    """Where results go: standard output, also while code of the user's takes standard error for it."""
    return _results.get() or sys.stdout


@contextlib.contextmanager
def prints_aside() -> Iterator[None]:
    """What code of the user's prints goes to standard error, so that standard output holds results alone."""
    stream = sys.stdout
    token = _results.set(stream)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stream
        _results.reset(token)


def echo(line: str = "", err: bool = False) -> None:
    """Print a line for people; names in it can't steer their terminal."""
    write(printable(line.replace("\n", " ")) + "\n", err=err)


def write(text: str, err: bool = False) -> None:
    """Print what is safe; where nobody reads any more, nothing, since a command still ends with its verdict."""
    try:
        click.echo(text, nl=False, err=err, file=None if err else _results.get())
    except BrokenPipeError:
        _give_up(sys.stderr if err else results())


def progress(message: str) -> None:
    """Progress, for people only: nothing when stderr is no terminal."""
    if sys.stderr.isatty():
        echo(message, err=True)


def run_guarded(command: click.Command, arguments: Iterable[str] | None = None) -> None:
    """Run a command and exit with what its end means, unless it is 0; every error a user can cause is one line.

    Without arguments, it takes those of the process, which ends with it.
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
    except KeyboardInterrupt:
        interrupt.is_over = True
        code = 130
        text = INTERRUPTED
    except Exception as error:  # not even memory to tell of: Python may lose an error between two functions
        if not is_out_of_memory(error):
            raise
        code = UnavailableError.exit_code
        text = NO_MEMORY
    # Here the error is gone, and with it the memory that its frames held.
    try:
        if code == 130:
            progress("")  # ends the line on which the terminal wrote ^C
        for line in text.splitlines():
            echo(line, err=True)
    except OSError:  # nobody reads it
        _give_up(sys.stderr)
    return code


def _outcome(command: click.Command, arguments: list[str], interrupt: Interrupt, spare: list[bytes]) -> tuple[int, str]:
    """Run the command; -> its exit code, and what to say of it, for which there is `spare` memory."""
    try:
        interrupt.begin()
        # Not command.main(): it answers Ctrl-C and a closed pipe in ways of its own.
        with command.make_context(command.name, arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
    except Exception as error:
        spare.clear()
        # Whatever comes after an interrupt comes of it: libraries make errors of their own of it.
        return (130, INTERRUPTED) if interrupt.came or isinstance(error, click.Abort) else _end_of(error)
    return 0, ""


def _end_of(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and what to say of it; an error that nobody foresaw is raised again."""
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
        return UnavailableError.exit_code, _tell(f"not enough memory here{detail and f' ({detail})'}; {MEMORY_FIX}")
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
    """A stream that the caller has closed takes what we write all the same; data is UTF-8 whatever the locale."""
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def _give_up(stream: TextIO) -> None:
    """Send what can't be written nowhere, else Python tries again at its end and complains in its own way."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
