"""Errors as one line and an exit code, and streams that take what is written to them."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any

import click

from txport.errors import OutputError, TxportError


def say(message: str) -> None:
    """Progress, for people only: nothing when stderr is no terminal."""
    if sys.stderr.isatty():
        click.echo(message, err=True)


def run_guarded(command: click.Command, arguments: Iterable[str] | None = None) -> None:
    """Run a command and exit with the code that its end means; every error a user can cause is one line."""
    signal.signal(signal.SIGTERM, _interrupt)
    _prepare_streams()
    try:
        # Not command.main(): it answers Ctrl-C and a closed pipe in ways of its own.
        with command.make_context(command.name, list(sys.argv[1:] if arguments is None else arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except TxportError as error:
        _fail(str(error), error.exit_code)
    except BrokenPipeError:  # `txport run ... | head`
        _give_up_stdout()
    except (KeyboardInterrupt, click.Abort):
        say("")  # ends the line on which the terminal wrote ^C
        _fail("interrupted; nothing was left half-written", 130)
    except OSError as error:
        _give_up_stdout()
        _fail(f"{error.strerror or error}: {error.filename or 'standard output'}", OutputError.exit_code)


def _prepare_streams() -> None:
    """A stream that the caller has closed takes what we write all the same; data is UTF-8 whatever the locale."""
    sys.stdout, sys.stderr = sys.stdout or io.StringIO(), sys.stderr or io.StringIO()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


def _give_up_stdout() -> None:
    """Send what can't be written nowhere, else Python tries again at its end and complains in its own way."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> None:
    click.echo(f"txport: {' '.join(message.split())}", err=True)
    sys.exit(code)
