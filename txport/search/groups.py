"""Diverse beam search: the beams of a source in groups, each of which avoids what those before it say in this step.

Vijayakumar et al. 2016, "Diverse beam search", with Hamming diversity. Shape comments: R rows, C candidates a row,
H tokens that were heard of a source.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Floats, Ints
from txport.search.beams import Beams, beginning
from txport.search.options import Found, SearchOptions

NOTHING = -1  # in place of a token


class Groups:
    """As `Beams`, for several groups of them; the rows of a group stand together."""

    def __init__(
        self, lengths: Ints, prefix_lengths: Ints, limits: Ints, options: SearchOptions, ends: tuple[int, ...]
    ) -> None:
        self._options = options
        self._count = len(lengths)
        self._groups = [Beams(lengths, prefix_lengths, limits, options, ends) for _ in range(options.beam_groups)]
        first = 0 if options.forced_bos_token_id is None else 1
        self._forced = np.maximum(prefix_lengths, first)  # how many tokens are given at first: (B,)
        self._lasts = limits - 1  # and after how many the last is: (B,)
        self._length = 0

    @property
    def sources(self) -> Ints:
        """The source of each running row."""
        return np.concatenate([group.sources for group in self._groups])

    @property
    def last(self) -> Ints:
        """The newest token of each running row."""
        return np.concatenate([group.last for group in self._groups])

    def advance(self, log_probs: Floats, ids: Ints, attention: Floats | None) -> Ints:
        """Candidates (R, C) of every row -> which row each of the rows that go on comes from."""
        heard = np.full((self._count, 0), NOTHING)  # (B, H)
        is_forced = self._are_forced()[:, None]  # what all have to say costs nobody anything
        self._length += 1
        start = 0
        going = [np.empty(0, np.int64)]
        for group in (group for group in self._groups if len(group.sources)):
            part = slice(start, start + len(group.sources))
            values, tokens = self._penalise(log_probs[part], ids[part], heard[group.sources], group.wanted)
            going.append(start + group.advance(values, tokens, None if attention is None else attention[part]))
            heard = np.column_stack([heard, np.where(is_forced, NOTHING, group.last_tokens)])
            start = part.stop
        return np.concatenate(going)

    def _are_forced(self) -> NDArray[np.bool_]:
        """Whether the next token of each source is given: (B,)."""
        at_last = self._length == self._lasts if self._options.forced_eos_token_id is not None else False
        return (self._length < self._forced) | at_last

    def best(self) -> list[list[Found]]:
        """The `nbest` best of each source, whichever group found them."""
        every = [group.best_of(self._options.nbest) for group in self._groups]
        joined = [[found for group in each for found in group] for each in zip(*every, strict=True)]
        return [sorted(each, key=lambda found: -found.score)[: self._options.nbest] for each in joined]

    def certain(self) -> list[tuple[int, ...]]:
        """What all hypotheses of a source that may still win begin with."""
        every = zip(*(group.certain() for group in self._groups), strict=True)
        return [beginning(min(each), max(each)) for each in every]

    def _penalise(self, log_probs: Floats, ids: Ints, heard: Ints, count: int) -> tuple[Floats, Ints]:
        """The best candidates after each has lost as much as it was heard: (R, C) with (R, H) -> (R, count)."""
        often = (ids[:, :, None] == heard[:, None, :]).sum(axis=2)
        values = log_probs - np.float32(self._options.diversity_penalty) * often.astype(np.float32)
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]
        at = np.arange(len(ids))[:, None]
        return values[at, order], ids[at, order]
