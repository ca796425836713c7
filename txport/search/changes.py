"""Options that change scores before tokens are banned or forced, in the order of transformers.

Shape comments: B sources, R rows, S source tokens, T tokens so far, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from txport.runtimes.base import Floats, Ints
from txport.search.options import SearchOptions

NOTHING = -1  # no token
LARGEST = 1e30  # score; sums of such scores are finite in fp32


class Changes:
    """The changes of one batch; `read` (B, S) are the tokens of its sources, padded on the right with `NOTHING`."""

    def __init__(self, options: SearchOptions, ends: Ints, read: Ints) -> None:
        self._options = options
        self._ends = ends
        self._read = read
        self._biases = [(np.asarray(words, np.int64), np.float32(bias)) for words, bias in options.sequence_bias]

    def apply(self, values: Floats, seen: Ints, new_tokens: Ints, sources: Ints) -> None:
        """Change the scores (R, V) in place.

        `seen` (R, T) are the tokens of each row so far, `new_tokens` (R,) the number of those after the prefix, and
        `sources` (R,) the sources of the rows.
        """
        for words, bias in self._biases:
            values[ends_with(seen, words[:-1]), words[-1]] += bias
        if (penalty := self._options.encoder_repetition_penalty) != 1:
            _penalise(values, self._read[sources], 1 / penalty)
        if (penalty := self._options.repetition_penalty) != 1:
            _penalise(values, seen, penalty)
        if (decay := self._options.exponential_decay_length_penalty) is not None:
            self._favour_ends(values, new_tokens - decay[0], decay[1])

    def _favour_ends(self, values: Floats, late: Ints, factor: float) -> None:
        """Raise the scores of end tokens by |score| x (factor^late - 1), in the rows where `late` is above 0.

        A raised score is at most `LARGEST`: an infinite one has no differences from others, which sampling needs.
        """
        rows = np.flatnonzero(late > 0)
        at = np.ix_(rows, self._ends)
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.minimum(np.float64(factor) ** late[rows, None] - 1, LARGEST)
            changed = np.minimum(values[at] + np.abs(values[at]) * growth, LARGEST)
        values[at] = np.where(np.isfinite(values[at]), changed, values[at])


def renormalise(values: Floats) -> None:
    """Change scores (R, V) in place to log-probs; a row without allowed tokens stays."""
    rows = np.flatnonzero(values.max(axis=1) > -np.inf)
    allowed = values[rows]
    allowed -= allowed.max(axis=1, keepdims=True)
    values[rows] = allowed - np.log(np.exp(allowed).sum(axis=1, keepdims=True))


def ends_with(seen: Ints, words: Ints) -> Ints:
    """Return the rows of `seen` (R, T) that end with `words`; every row ends with no words."""
    if len(words) > seen.shape[1]:
        return np.empty(0, np.int64)
    return np.flatnonzero((seen[:, seen.shape[1] - len(words) :] == words).all(axis=1))


def _penalise(values: Floats, ids: Ints, penalty: float) -> None:
    """Lower the scores (R, V) of tokens (R, T), in place; a penalty below 1 raises them."""
    rows = np.arange(len(values))[:, None]
    ids = np.where(ids == NOTHING, ids.max(axis=1, keepdims=True), ids)
    old = values[rows, ids]
    values[rows, ids] = np.where(old < 0, old * penalty, old / penalty)
