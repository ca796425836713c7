from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder that stands where one is to be written."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "precious").write_text("old")
    return folder
