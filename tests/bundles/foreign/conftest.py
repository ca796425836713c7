"""Portable bundles of the small models in tests/recorded/families, from which folders of others are made."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from tests.recorded import FAMILIES as FOLDER
from tests.seeded import bundle_of
from txport.bundles.bundle import Bundle
from txport.checkpoints.checkpoint import load_checkpoint


@pytest.fixture(scope="session")
def portable(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """The portable bundle of a family, by its name."""
    folder = tmp_path_factory.mktemp("portable")
    return cache(lambda name: bundle_of(load_checkpoint(str(FOLDER / name)), folder / name, "portable"))
