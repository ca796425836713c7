"""What a long command shows on stderr: a bar on a terminal, lines with `--verbose` elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import click

from txport.cli.guard import echo
from txport.system.progress import Progress, Stage, logged
from txport.system.terminal import printable

QUIET = 8.0  # seconds after which a line says what is still going on
F = TypeVar("F", bound=Callable[..., object])


def verbose_option(command: F) -> F:
    """Add `--verbose`, which reports progress where stderr is no terminal."""
    text = "Report progress on stderr in lines. A terminal shows a bar without it."
    return click.option("-v", "--verbose", is_flag=True, help=text)(command)


@contextlib.contextmanager
def shown(verbose: bool) -> Iterator[Progress]:
    """Yield a progress whose messages are shown while the context is open."""
    if sys.stderr.isatty():
        with _bar() as progress:
            yield progress
    elif verbose:
        with _lines() as progress:
            yield progress
    else:
        yield logged


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """Show messages as lines, and stages in a bar below them with the time that they take and the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    left = (TextColumn("left"), TimeRemainingColumn())
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    console = Console(stderr=True, highlight=False)
    with Bar(*columns, *left, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def report(message: str) -> None:
            if isinstance(message, Stage):
                bar.update(task, description=printable(message), completed=message.share)
            else:
                console.print(printable(message), markup=False, soft_wrap=True)

        yield report


@contextlib.contextmanager
def _lines() -> Iterator[Progress]:
    """Print a line for each message, and again when nothing was printed for some seconds."""
    begun = time.monotonic()
    latest = ["starting"]
    is_over = threading.Event()
    news = threading.Event()

    def line(message: str) -> str:
        share = f"{message.share:4.0%}  " if isinstance(message, Stage) else ""
        return f"{time.monotonic() - begun:5.0f} s  {share}{message}"

    def report(message: str) -> None:
        latest[0] = message
        news.set()
        echo(line(message), err=True)

    def remind() -> None:
        while not is_over.is_set():
            if not news.wait(QUIET) and not is_over.is_set():
                echo(f"{line(latest[0])} ...", err=True)
            news.clear()

    thread = threading.Thread(target=remind, name="progress", daemon=True)
    thread.start()
    try:
        yield report
    finally:
        is_over.set()
        news.set()
        thread.join()
