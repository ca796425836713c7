"""How to search, and what is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from txport.models.errors import UnsupportedError

EarlyStopping = bool | Literal["never"]
STEEPEST = 20  # a length to this power is still a number


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How to search. Names and meanings are Hugging Face's, where they have one.

    A hypothesis scores the sum of its tokens' log-probabilities over its length to the power of
    `length_penalty`, the end token counted. Beam search ends when `beams` hypotheses are finished and
    the best running one can't win any more: as judged by its present length (`early_stopping=False`),
    by the length that suits it best ("never"), or without asking (True). The end token is suppressed
    until there are `min_new_tokens`. Without `scores`, greedy search does not normalise, and scores are NaN.
    """

    max_new_tokens: int
    min_new_tokens: int = 0
    beams: int = 1
    nbest: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    scores: bool = True

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "beams", "nbest"):
            if getattr(self, name) < 1:
                raise UnsupportedError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            limit = f"0 to max_new_tokens, {self.max_new_tokens}"
            raise UnsupportedError(f"min_new_tokens must lie in {limit}; got {self.min_new_tokens}")
        if not self.scores and self.beams > 1:
            raise UnsupportedError("beam search can't do without scores")
        if self.nbest > self.beams:
            raise UnsupportedError(f"nbest can't exceed beams: {self.beams} beams end in at most that many hypotheses")
        if not -STEEPEST <= self.length_penalty <= STEEPEST:  # NaN lies nowhere
            raise UnsupportedError(f"length_penalty must lie in -{STEEPEST} to {STEEPEST}, got {self.length_penalty}")
        if self.early_stopping not in (True, False, "never"):
            raise UnsupportedError(f"early_stopping must be True, False or 'never', got {self.early_stopping!r}")


@dataclass(frozen=True)
class Found:
    """One target: its token ids, the end token included if it was reached, and its score."""

    tokens: tuple[int, ...]
    score: float
