"""`txport import` as users run it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from txport import cli


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, str, str]]:
    """Run `txport import`: -> its exit code, and what it wrote to stdout and stderr."""

    def call(*arguments: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["txport"])
        code: Any = 0
        try:
            cli.main(["import", *map(str, arguments)])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()

    return call
