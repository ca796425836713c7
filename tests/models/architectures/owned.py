"""The architecture of `own/mine.py` among those of the package, for as long as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txport.models import architecture, architectures

OWN = str(Path(__file__).parent / "own")


@contextmanager
def beside_the_others() -> Iterator[None]:
    """Let the file lie where architectures are looked for."""
    caches = (architecture.names, architecture.presets)
    architectures.__path__.append(OWN)
    for each in caches:
        each.cache_clear()
    try:
        yield
    finally:
        architectures.__path__.remove(OWN)
        for each in caches:
            each.cache_clear()
