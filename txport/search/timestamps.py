"""Where times may come in a target that writes down speech: in pairs, never backwards, and likely enough.

Section 2.3 of Radford et al. 2022: a target begins with a time, each part of it ends with one, and the next begins with
one. Shape comments: R rows, T tokens so far, V vocabulary, N tokens of times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Floats, Ints, log_softmax

Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class TimestampRules:
    """A `logits_processor`: which tokens may follow, where the first `begin` tokens of each row are given.

    Times are the tokens from `first` on. `end` ends a target, and text are the tokens before it. The first time is at
    most `latest` steps after the beginning, None for any.
    """

    begin: int
    first: int
    end: int
    latest: int | None = None

    def __call__(self, scores: Floats, tokens: Ints) -> Floats:
        """Scores (R, V) of any kind that softmax understands, after tokens (R, T) -> the same, of -inf where forbidden.

        Tokens are judged as they stand: a row that is still in what is given is left as it is.
        """
        if tokens.shape[1] < self.begin:
            return scores
        allowed = scores.copy()
        ids = tokens[:, self.begin :]
        allowed[:, self.first - 1] = -np.inf  # the token that says that there are no times
        if ids.shape[1]:
            self._pair(allowed, ids)
        else:
            allowed[:, : self.first] = -np.inf
            if self.latest is not None:
                allowed[:, self.first + self.latest + 1 :] = -np.inf
        return self._prefer(allowed)

    def _pair(self, scores: Floats, ids: Ints) -> None:
        """After two times comes text; after text and a time, a time or the end; and no time comes twice or back."""
        is_time = ids >= self.first  # (R, T)
        after_time = is_time[:, -1]
        after_two = after_time & (is_time[:, -2] if ids.shape[1] > 1 else True)
        closes = after_time & ~after_two  # it may stand once more, to begin the next part
        scores[after_two, self.first :] = -np.inf
        scores[closes, : self.end] = -np.inf
        newest = np.where(is_time, np.arange(ids.shape[1]), -1).max(axis=1)  # the place of the last time: (R,)
        last = np.where(newest >= 0, ids[np.arange(len(ids)), newest], self.first - 1)
        least = np.where(closes, last, last + 1)
        times = np.arange(self.first, scores.shape[1])  # (N,)
        later = scores[:, self.first :]  # a view
        later[(times < least[:, None]) & (newest >= 0)[:, None]] = -np.inf

    def _prefer(self, scores: Floats) -> Floats:
        """Where all times together are likelier than any other token, it is a time."""
        values = scores.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_probs = log_softmax(values, values)
            times = np.logaddexp.reduce(log_probs[:, self.first :], axis=1)
        is_time = times > log_probs[:, : self.first].max(axis=1)
        scores[is_time, : self.first] = -np.inf
        return scores
