"""Folders that transformers wrote: a name for one of version 4.57, `transformers-5/` and a name for one of version 5.

A folder of version 5 holds the files that are not as in the folder of the same name of version 4.57.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDER = Path(__file__).parent
NEWEST = "transformers-5"
EXPECTED = "expected.npz"
CONFIG = "config.json"


def names() -> list[str]:
    """The names of all folders."""
    found = (path.parent.relative_to(FOLDER).as_posix() for path in FOLDER.rglob(CONFIG))
    return sorted(name for name in found if not name.endswith("_Pooling"))


def whole(name: str, to: Path) -> Path:
    """Write a folder with all its files, of either version."""
    for part in dict.fromkeys((FOLDER / Path(name).name, FOLDER / name)):
        if part.is_dir():
            shutil.copytree(part, to, dirs_exist_ok=True)
    return to


def is_recorded(name: str) -> bool:
    """Whether a folder holds weights and what its model says."""
    return (FOLDER / name / EXPECTED).is_file()
