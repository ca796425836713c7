"""What transformers and our graphs are asked alike."""

from __future__ import annotations

from typing import Any

INPUTS = 50
FILL = -1  # the end of a row that is shorter than others
SEARCHES: dict[str, dict[str, Any]] = {  # by the options of transformers
    "greedy": {"max_new_tokens": 12, "num_beams": 1},
    "beams": {"max_new_tokens": 12, "num_beams": 4},
}
SPEECH = "whisper-audio"  # a model that writes down what it hears, window by window
SECONDS = (0.4, 0.7, 1.0, 1.6, 2.3, 3.3)  # of audio, in turn
MOVED = 1e-5  # at most, of log-probabilities, for a near-tie
TRIES = 64  # to find one
