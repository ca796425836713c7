"""Diverse beam search: in each step, a group of beams is penalised for tokens that earlier groups have chosen.

Vijayakumar et al. 2016, "Diverse beam search", with Hamming diversity. Shape comments: B sources, R rows, C candidates
per row, H tokens that earlier groups have chosen in this step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Floats, Ints
from txport.search.beams import Beams, beginning
from txport.search.options import Found, SearchOptions

NOTHING = -1  # no token


class Groups:
    """Like `Beams`, for several groups of beams; the rows of a group are contiguous."""

    def __init__(
        self, lengths: Ints, prefix_lengths: Ints, limits: Ints, options: SearchOptions, ends: tuple[int, ...]
    ) -> None:
        self._options = options
        self._count = len(lengths)
        self._groups = [Beams(lengths, prefix_lengths, limits, options, ends) for _ in range(options.beam_groups)]
        first = 0 if options.forced_bos_token_id is None else 1
        self._forced = np.maximum(prefix_lengths, first)  # number of forced tokens at the start: (B,)
        self._lasts = limits - 1  # number of tokens before the last one: (B,)
        self._length = 0

    @property
    def sources(self) -> Ints:
        """The source of each running row."""
        return np.concatenate([group.sources for group in self._groups])

    @property
    def last(self) -> Ints:
        """The newest token of each running row."""
        return np.concatenate([group.last for group in self._groups])

    def advance(
        self, log_probs: Floats, ids: Ints, attention: Floats | None, stopped: NDArray[np.bool_] | None = None
    ) -> Ints:
        """Candidates (R, C) of every row -> the old row of each row that continues; see `Beams.advance`."""
        heard = np.full((self._count, 0), NOTHING)  # (B, H)
        is_forced = self._are_forced()[:, None]  # forced tokens are not penalised
        self._length += 1
        start = 0
        going = [np.empty(0, np.int64)]
        for group in (group for group in self._groups if len(group.sources)):
            part = slice(start, start + len(group.sources))
            values, order = self._penalise(log_probs[part], ids[part], heard[group.sources], group.wanted)
            tokens = np.take_along_axis(ids[part], order, axis=1)
            own = None if attention is None else attention[part]
            ended = None if stopped is None else np.take_along_axis(stopped[part], order, axis=1)
            going.append(start + group.advance(values, tokens, own, ended))
            heard = np.column_stack([heard, np.where(is_forced, NOTHING, group.last_tokens)])
            start = part.stop
        return np.concatenate(going)

    def _are_forced(self) -> NDArray[np.bool_]:
        """True for the sources whose next token is forced: (B,)."""
        at_last = self._length == self._lasts if self._options.forced_eos_token_id is not None else False
        return (self._length < self._forced) | at_last

    def found(self, sources: Ints | None = None) -> list[list[Found]]:
        """See `Targets.found`; the `nbest` best hypotheses of each source, over all groups."""
        every = [group.found(sources) for group in self._groups]
        joined = [[found for group in each for found in group] for each in zip(*every, strict=True)]
        return [sorted(each, key=lambda found: -found.score)[: self._options.nbest] for each in joined]

    def drop(self, source: int) -> None:
        """See `Targets.drop`."""
        for group in self._groups:
            group.drop(source)

    def certain(self) -> list[tuple[int, ...]]:
        """Return the common beginning of all hypotheses that can still win, per source."""
        every = zip(*(group.certain() for group in self._groups), strict=True)
        return [beginning(min(each), max(each)) for each in every]

    def _penalise(self, log_probs: Floats, ids: Ints, heard: Ints, count: int) -> tuple[Floats, Ints]:
        """Return values and places of the best candidates (R, count) after the diversity penalty.

        `ids` are the candidates (R, C), `heard` the tokens that earlier groups have chosen (R, H).
        """
        often = (ids[:, :, None] == heard[:, None, :]).sum(axis=2)
        values = log_probs - np.float32(self._options.diversity_penalty) * often.astype(np.float32)
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(values, order, axis=1), order
