"""What others' programs wrote and said: folders of checkpoints, of tokenizers and of other trainers.

Of a folder of transformers, `names` has a name for one of version 4.57, and `transformers-5/` and a name for one of
version 5, which holds the files that are not as in the folder of the same name of version 4.57.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent
FAMILIES = HERE / "families"
TOKENIZERS = HERE / "tokenizers"
WHISPER = HERE / "whisper"
CTRANSLATE2 = HERE / "ctranslate2_models"
SENTENCES = HERE / "sentences"
TEXTS = HERE / "text_models"
ANSWERS = HERE / "answers"
NEWEST = "transformers-5"
EXPECTED, EXPECTED_ANSWERS = "expected.npz", "expected.json"
CONFIG = "config.json"


def names() -> list[str]:
    """The names of all folders of transformers."""
    found = (path.parent.relative_to(FAMILIES).as_posix() for path in FAMILIES.rglob(CONFIG))
    return sorted(name for name in found if not name.endswith("_Pooling"))


def whole(name: str, to: Path) -> Path:
    """Write a folder with all its files, of either version."""
    for part in dict.fromkeys((FAMILIES / Path(name).name, FAMILIES / name)):
        if part.is_dir():
            shutil.copytree(part, to, dirs_exist_ok=True)
    return to


def is_recorded(name: str) -> bool:
    """Whether a folder holds weights and what its model says."""
    return (FAMILIES / name / EXPECTED).is_file()
