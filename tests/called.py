"""The command line in the process of the tests: quick, since PyTorch is loaded already."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from txport import cli


class Ended(NamedTuple):
    """How a command ended, and what it wrote to stdout and stderr."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """Run a command; whatever was written before it is left out."""

    def run(*arguments: object, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code: Any = 0
        try:
            cli.main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code or 0
        return Ended(code, *capsys.readouterr())

    handler = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, handler)
