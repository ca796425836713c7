"""`txport import` as users run it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


@pytest.fixture
def run(call: Callable[..., Any]) -> Callable[..., Any]:
    """Run `txport import`: -> its exit code, and what it wrote to stdout and stderr."""
    return partial(call, "import")
