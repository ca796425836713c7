"""The hypotheses of beam search, for all sources of a batch at once: who goes on, who has ended, and what they say.

Shape comments: B sources, S of them still running, W rows a source (1 in the first step, K later), C candidates a
row, K beams.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from txport.options import Found, SearchOptions
from txport.runtimes.base import Floats, Ints

Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Beams:
    """The running and the finished hypotheses of each source.

    What a hypothesis says is kept as the step and the beam that it came from, so that a step copies no tokens.
    """

    def __init__(self, count: int, options: SearchOptions, eos_id: int) -> None:
        self._options, self._eos_id, size = options, eos_id, options.beams
        self._running = np.arange(count)
        self._sums: Doubles = np.zeros((count, 1))  # (S, W), the best first
        self._places: Ints = np.zeros((count, 1), np.int64)  # which row of its source each of them is: (S, W)
        self._steps: list[tuple[Ints, Ints]] = []  # the beam before and the token: (B, K) each
        self._scores: Doubles = np.full((count, size), -np.inf)  # of finished ones, falling
        self._origins: Ints = np.zeros((count, size, 2), np.int64)  # their last step and beam before an end token
        self._ended: Bools = np.zeros((count, size), np.bool_)  # whether there is an end token
        self.last: Ints = np.zeros(count, np.int64)  # the newest token of each running row

    def advance(self, log_probs: Floats, ids: Ints) -> Ints:
        """Candidates (S x W, C) of every row -> which row each of the rows that go on comes from."""
        size, (sources, width) = self._options.beams, self._sums.shape
        at = np.arange(sources)[:, None]
        values = log_probs.reshape(sources, width, -1)[at, self._places]  # (S, W, C)
        ids = ids.reshape(sources, width, -1)[at, self._places]
        totals: Doubles = (self._sums[:, :, None] + values).reshape(sources, -1)
        order = np.argsort(-totals, axis=1, kind="stable")[:, : 2 * size]
        parents, totals = order // ids.shape[2], totals[at, order]
        tokens: Ints = ids.reshape(sources, -1)[at, order]
        ended = tokens == self._eos_id
        if ended.any() or tokens.shape[1] < size:
            parents, tokens, totals = self._part(parents, tokens, totals, ended)
        parents, tokens, self._sums = parents[:, :size], tokens[:, :size], totals[:, :size]
        self._record(parents, tokens)
        before = self._places[at, parents]  # where the row of each parent lies
        starts = width * at
        if (done := self._are_done()).any():
            kept = ~done
            self._running, self._sums, tokens = self._running[kept], self._sums[kept], tokens[kept]
            before, starts, at = before[kept], starts[kept], at[: np.count_nonzero(kept)]
        self._places = settle(before)
        rows: Ints = np.empty(before.shape, np.int64)
        last: Ints = np.empty(before.shape, np.int64)
        rows[at, self._places], last[at, self._places] = before + starts, tokens
        self.last = last.ravel()
        return rows.ravel()

    def best(self) -> list[list[Found]]:
        """The `nbest` best of each source; hypotheses that still run compete with their present score."""
        nbest, length = self._options.nbest, len(self._steps)
        if len(self._running):
            beams = np.broadcast_to(np.arange(self._sums.shape[1]), self._sums.shape)
            self._compete(self._running, beams, self._score(self._sums, length), ended=False)
        return [
            [Found(tokens, score) for tokens, score in zip(texts, values, strict=True) if score != -np.inf]
            for texts, values in zip(self._speak(nbest), self._scores[:, :nbest].tolist(), strict=True)
        ]

    def _part(self, parents: Ints, tokens: Ints, totals: Doubles, ended: Bools) -> tuple[Ints, Ints, Doubles]:
        """Of candidates, the best first: those that end compete with the finished ones, the others go on."""
        size, at = self._options.beams, np.arange(len(ended))[:, None]
        if (there := ended[:, :size].any(axis=1)).any():
            totals_of_ended = np.where(ended, totals, -np.inf)[there, :size]
            scores = self._score(totals_of_ended, len(self._steps) + 1)
            self._compete(self._running[there], parents[there, :size], scores, ended=True)
        order = np.argsort(ended, axis=1, kind="stable")[:, :size]
        count = order.shape[1]
        order = order[:, np.arange(size) % count]  # a small vocabulary may have fewer candidates than beams
        dead = ended[at, order] | (np.arange(size) >= count)
        return parents[at, order], tokens[at, order], np.where(dead, -np.inf, totals[at, order])

    def _record(self, parents: Ints, tokens: Ints) -> None:
        step = np.zeros((2, *self._scores.shape), np.int64)
        step[:, self._running] = parents, tokens
        self._steps.append((step[0], step[1]))

    def _score(self, totals: Doubles, length: int) -> Doubles:
        scores: Doubles = totals / float(length) ** self._options.length_penalty
        return scores

    def _compete(self, sources: Ints, beams: Ints, scores: Doubles, *, ended: bool) -> None:
        """Hypotheses of some sources, after the last step and each from its beam, against their finished ones."""
        origins = np.stack([np.full(beams.shape, len(self._steps) - 1), beams], axis=2)
        ends = np.full(beams.shape, ended)
        scores = np.concatenate([self._scores[sources], scores], axis=1)
        worth = np.where(np.isnan(scores), np.finfo(np.float64).min, scores)  # a broken model still says something
        order = np.argsort(-worth, axis=1, kind="stable")[:, : self._options.beams]
        at = np.arange(len(sources))[:, None]
        self._scores[sources] = scores[at, order]
        self._origins[sources] = np.concatenate([self._origins[sources], origins], axis=1)[at, order]
        self._ended[sources] = np.concatenate([self._ended[sources], ends], axis=1)[at, order]

    def _are_done(self) -> Bools:
        """Of the running sources: (S,)."""
        options, best, length = self._options, self._sums.max(axis=1), len(self._steps)
        done: Bools = best == -np.inf
        worst = self._scores[self._running, -1]
        full = worst > -np.inf
        if length == options.max_new_tokens or not full.any():  # at the end all compete
            return done
        if options.early_stopping is True:
            done |= full
            return done
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = options.max_new_tokens
        done |= full & (worst >= self._score(best, length))
        return done

    def _speak(self, nbest: int) -> list[list[tuple[int, ...]]]:
        """The tokens of the best finished hypotheses, from the last step back to the first."""
        steps, beams = np.moveaxis(self._origins[:, :nbest], 2, 0)  # (B, nbest)
        said = np.full((*steps.shape, len(self._steps) + 1), self._eos_id)
        sources = np.broadcast_to(np.arange(len(steps))[:, None], steps.shape)
        for number in reversed(range(len(self._steps))):
            parents, tokens = self._steps[number]
            spoke = steps >= number
            said[:, :, number] = np.where(spoke, tokens[sources, beams], self._eos_id)
            beams = np.where(spoke, parents[sources, beams], beams)
        lengths = steps + 1 + self._ended[:, :nbest]
        return [
            [tuple(ids[:length]) for ids, length in zip(texts, counts, strict=True)]
            for texts, counts in zip(said.tolist(), lengths.tolist(), strict=True)
        ]


def settle(parents: Ints) -> Ints:
    """Places of parents (S, K) -> places of their children, of whom one stays where it was.

    So only the rows of parents who die are written anew.
    """
    at, size = np.arange(len(parents))[:, None], parents.shape[1]
    stays = ~(np.tri(size, k=-1, dtype=np.bool_) & (parents[:, :, None] == parents[:, None, :])).any(axis=2)
    if stays.all():
        return parents
    taken = np.zeros(parents.shape, np.bool_)
    taken[at, parents] = True
    vacant = np.argsort(taken, axis=1, kind="stable")  # the free ones first
    turn = (~stays).cumsum(axis=1) - 1
    return np.where(stays, parents, vacant[at, turn])
