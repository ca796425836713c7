"""Bundles for bulk work; its tests need pyarrow."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="bulk work needs pyarrow")

from tests.bulk.encoders import make_bundles


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles by ability."""
    return make_bundles(tmp_path_factory.mktemp("encoders"))
