"""Rules of timestamp tokens in transcripts: they come in pairs, do not decrease, and need enough probability.

Section 2.3 of Radford et al. 2022: each segment of a target begins and ends with a timestamp. Shape comments: R rows, T
tokens so far, V vocabulary, N timestamp tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Floats, Ints, log_softmax

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class TimestampRules:
    """A `logits_processor` for timestamps; the first `begin` tokens of each row are given.

    Timestamps are the tokens from `first` on. `end` is the end token; text tokens are those before it. The first
    timestamp is at most `first + latest`; None: no limit.
    """

    begin: int
    first: int
    end: int
    latest: int | None = None

    def __call__(self, scores: Floats, tokens: Ints) -> Floats:
        """Logits or log-probs (R, V), tokens (R, T) -> scores (R, V), -inf for forbidden tokens.

        The scores are not changed while T < `begin`.
        """
        if tokens.shape[1] < self.begin:
            return scores
        allowed = scores.copy()
        ids = tokens[:, self.begin :]
        allowed[:, self.first - 1] = -np.inf  # the no-timestamps token
        if ids.shape[1]:
            self._pair(allowed, ids)
        else:
            allowed[:, : self.first] = -np.inf
            if self.latest is not None:
                allowed[:, self.first + self.latest + 1 :] = -np.inf
        return self._prefer(allowed)

    def _pair(self, scores: Floats, ids: Ints) -> None:
        """Forbid tokens in place: text follows two timestamps; a timestamp or the end follows text and one timestamp.

        Timestamps do not decrease, and only the first of a segment can equal the last of the previous one.
        """
        is_time = ids >= self.first  # (R, T)
        after_time = is_time[:, -1]
        after_two = after_time & (is_time[:, -2] if ids.shape[1] > 1 else True)
        closes = after_time & ~after_two  # the same timestamp can begin the next segment
        scores[after_two, self.first :] = -np.inf
        scores[closes, : self.end] = -np.inf
        newest = np.where(is_time, np.arange(ids.shape[1]), -1).max(axis=1)  # position of the last timestamp: (R,)
        last = np.where(newest >= 0, ids[np.arange(len(ids)), newest], self.first - 1)
        least = np.where(closes, last, last + 1)
        times = np.arange(self.first, scores.shape[1])  # (N,)
        later = scores[:, self.first :]  # a view
        later[(times < least[:, None]) & (newest >= 0)[:, None]] = -np.inf

    def _prefer(self, scores: Floats) -> Floats:
        """Forbid text where the timestamps together are more probable than any other token."""
        values = scores.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_probs = log_softmax(values, values)
            times = np.logaddexp.reduce(log_probs[:, self.first :], axis=1)
        is_time = times > log_probs[:, : self.first].max(axis=1)
        scores[is_time, : self.first] = -np.inf
        return scores
