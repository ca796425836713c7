"""What CTranslate2 was asked, when `record_ctranslate2` recorded what it finds."""

from typing import Any

import numpy as np

PROMPTS = [[0, 9, 5, 13, 7], [0, 8, 11, 6], [0, 21]]
FEATURES = (8, 24)  # of Whisper: mel bins, frames
HEARD = [[21, 22, 25, 29], [21, 23, 24]]  # what targets begin with
SOURCES = [[9, 5, 13, 7, 20, 6], [8, 11], [25, 6, 17]]


def features(number: int) -> Any:
    """Those of one piece of audio."""
    return np.random.default_rng(number).standard_normal((1, *FEATURES)).astype(np.float32)
