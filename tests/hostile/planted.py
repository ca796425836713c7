"""Defects that are put in place of the command line, each of which the attack must find."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tests.hostile.case import BAD, GOOD, Case, Command, Place, command
from tests.hostile.judge import MOST_MEMORY


def _fail(message: str, code: int = BAD) -> None:
    print(f"txport: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _raise() -> None:
    raise KeyError("format")


def _write(path: str, text: str) -> None:
    Path(path).write_text(text, encoding="utf-8")


def _grow() -> None:
    assert len(b"x" * (MOST_MEMORY + 50_000_000))


DEFECTS: dict[str, Callable[[str], object]] = {
    "traceback": lambda out: _raise(),
    "exit code": lambda out: _fail("'a' is not here", 3),
    "message": lambda out: _fail("KeyError('format')"),
    "files outside": lambda out: _write("left.tmp", "in the working directory"),
    "control characters": lambda out: _fail("'\x1b[31m' is no bundle"),
    "raw HTML": lambda out: _write(f"{out}/page.md", "| <img src=x onerror=alert(1)> |"),
    "JSON": lambda out: _write(f"{out}/report.json", '{"worst": NaN}'),
    "memory": lambda out: _grow(),
    "hang": lambda out: time.sleep(3_600),
    "crash": lambda out: os.kill(os.getpid(), signal.SIGSEGV),
    "good": lambda out: _fail("'a' is no bundle; export it again"),
}


def main(arguments: Iterable[str] | None = None) -> None:
    """In place of `txport.cli.main`."""
    _, name, out = sys.argv[1:] if arguments is None else arguments
    DEFECTS[name](out)


def cases() -> Iterator[Case]:
    """One for each defect."""
    yield from (Case(f"planted/{name}", _case(name)) for name in DEFECTS)


def _case(name: str) -> Callable[[Place], list[Command]]:
    return lambda place: [command("planted", name, place.out, codes=[GOOD, BAD])]
