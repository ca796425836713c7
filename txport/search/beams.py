"""The running and finished hypotheses of beam search, for all sources of a batch at once.

Shape comments: B sources, S of them still running, W rows per source (1 in the first step, K later), C candidates per
row, K beams, F finished hypotheses that are kept, A source positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Doubles, Floats, Ints
from txport.search.options import Alignment, Found, SearchOptions
from txport.search.rows import alignment, uncovered
from txport.system.arrays import Array

Bools = NDArray[np.bool_]
Pick = Callable[[Array], Array]
NO_END = -1  # instead of an end token, for hypotheses without one


class Turn(NamedTuple):
    """One step of all beams: index of the parent beam, token, and log-prob of the token: (B, K) each."""

    parents: Ints
    tokens: Ints
    log_probs: Doubles

    def map(self, pick: Pick) -> Turn:
        """Apply `pick` to each field."""
        return Turn(pick(self.parents), pick(self.tokens), pick(self.log_probs))


class Finished(NamedTuple):
    """Finished hypotheses by descending score (B, F): last step and beam, and the end token with its log-prob."""

    scores: Doubles
    steps: Ints
    beams: Ints
    ends: Ints
    log_probs: Doubles

    def map(self, pick: Pick) -> Finished:
        """Apply `pick` to each field."""
        return Finished(pick(self.scores), pick(self.steps), pick(self.beams), pick(self.ends), pick(self.log_probs))


class Beams:
    """The running and the finished hypotheses of each source.

    A hypothesis is stored as its last step and beam, with links to parent beams; therefore a step copies no tokens.
    """

    def __init__(
        self, lengths: Ints, prefix_lengths: Ints, limits: Ints, options: SearchOptions, ends: tuple[int, ...]
    ) -> None:
        self._options = options
        self._ends = np.asarray(ends)
        self._source_lengths = lengths
        self._prefix_lengths = prefix_lengths
        self._limits = limits
        self._size = options.beams // options.beam_groups
        count = len(prefix_lengths)
        kept = options.kept
        self._running = np.arange(count)
        self._dropped = np.zeros(count, np.bool_)
        self._sums: Doubles = np.zeros((count, 1))  # (S, W), best first
        self._places: Ints = np.zeros((count, 1), np.int64)  # row of each beam within its source: (S, W)
        self._steps: list[Turn] = []
        self._attention: list[Floats] = []  # attention of each step by beam: (B, W, A) each
        self._seen: Doubles = np.zeros((count, 1, 1))  # attention of each beam, summed over steps: (S, W, A)
        scores = np.full((count, kept), -np.inf)
        log_probs = np.zeros((count, kept))
        steps, beams, end_tokens = np.zeros((3, count, kept), np.int64)
        self._finished = Finished(scores, steps, beams, end_tokens, log_probs)
        self.last: Ints = np.zeros(count, np.int64)  # the newest token of each running row
        self.last_tokens: Ints = np.full((count, self._size), NO_END)  # newest token of each beam: (B, K)

    @property
    def wanted(self) -> int:
        """The number of candidates per row."""
        return wanted_of_group(self._options, self._ends)

    @property
    def sources(self) -> Ints:
        """The source of each running row."""
        return np.repeat(self._running, self._sums.shape[1])

    def advance(
        self, log_probs: Floats, ids: Ints, attention: Floats | None = None, stopped: Bools | None = None
    ) -> Ints:
        """Candidates (S x W, C) of every row, attention (S x W, A) -> the old row of each row that continues.

        `stopped` (S x W, C) tells which candidates complete a stop string.
        """
        size = self._size
        sources, width = self._sums.shape
        at = np.arange(sources)[:, None]
        seen = self._attend(attention)
        values: Doubles = log_probs.reshape(sources, width, -1)[at, self._places].astype(np.float64)  # (S, W, C)
        ids = ids.reshape(sources, width, -1)[at, self._places]
        totals: Doubles = (self._sums[:, :, None] + values).reshape(sources, -1)
        order = np.argsort(-totals, axis=1, kind="stable")[:, : self.wanted]
        step = Turn(order // ids.shape[2], ids.reshape(sources, -1)[at, order], values.reshape(sources, -1)[at, order])
        totals = totals[at, order]
        ended = (step.tokens[:, :, None] == self._ends).any(axis=2)
        if stopped is not None:
            ended |= stopped.reshape(sources, width, -1)[at, self._places].reshape(sources, -1)[at, order]
        if ended.any() or order.shape[1] < size:
            step, totals = self._part(step, totals, ended, seen)
        step = step.map(lambda part: part[:, :size])
        sums = self._sums
        self._sums = totals[:, :size]
        self._record(step)
        self._cut_off(sums)
        self._seen = seen[at, step.parents] if seen.size else seen
        before = self._places[at, step.parents]  # row of each parent
        tokens = step.tokens
        starts = width * at
        if (done := self._are_done() | self._dropped[self._running]).any():
            kept = ~done
            self._running = self._running[kept]
            self._sums = self._sums[kept]
            tokens = tokens[kept]
            self._seen = self._seen[kept]
            before = before[kept]
            starts = starts[kept]
            at = at[: np.count_nonzero(kept)]
        self._places = settle(before)
        rows: Ints = np.empty(before.shape, np.int64)
        last: Ints = np.empty(before.shape, np.int64)
        rows[at, self._places] = before + starts
        last[at, self._places] = tokens
        self.last = last.ravel()
        return rows.ravel()

    def found(self, sources: Ints | None = None) -> list[list[Found]]:
        """See `Targets.found`; the `nbest` best hypotheses of each source."""
        return self.best_of(self._options.nbest, np.arange(len(self._prefix_lengths)) if sources is None else sources)

    def best_of(self, nbest: int, sources: Ints) -> list[list[Found]]:
        """Return the best finished hypotheses of these sources (N,)."""
        ids, log_probs, rows, lengths = self._speak(nbest, sources)
        scores = self._finished.scores[sources, :nbest]
        found: list[list[Found]] = [[] for _ in scores]
        for number, place in np.argwhere(scores != -np.inf).tolist():
            at = (number, place)
            length = int(lengths[at])
            aligned = self._alignment(int(sources[number]), rows[at][:length])
            tokens = ids[at][:length].tolist()
            parts = log_probs[at][:length].tolist()
            found[number].append(Found(tuple(tokens), float(scores[at]), tuple(parts), aligned))
        return found

    def drop(self, source: int) -> None:
        """See `Targets.drop`."""
        self._dropped[source] = True

    def certain(self) -> list[tuple[int, ...]]:
        """Return the common beginning of all hypotheses that can still win, per source."""
        running = {source: row for row, source in enumerate(self._running.tolist())}
        certain = []
        every = np.arange(len(self._prefix_lengths))
        for source, finished in enumerate(self.best_of(self._finished.scores.shape[1], every)):
            generated = [each.tokens for each in finished]
            if source in running:
                alive = np.flatnonzero(self._sums[running[source]] > -np.inf)
                generated += [self._words(source, beam) for beam in alive.tolist()]
            else:
                generated = generated[:1]
            certain.append(beginning(min(generated, default=()), max(generated, default=())))
        return certain

    def _words(self, source: int, beam: int) -> tuple[int, ...]:
        """Return the tokens of a running hypothesis."""
        words = []
        for step in reversed(self._steps):
            words.append(int(step.tokens[source, beam]))
            beam = int(step.parents[source, beam])
        return tuple(reversed(words))

    def _attend(self, attention: Floats | None) -> Doubles:
        """Store attention (S x W, A); return the sum over the steps of each beam, this step included: (S, W, A)."""
        if attention is None:
            return self._seen
        sources, width = self._sums.shape
        at = np.arange(len(self._sums))[:, None]
        own = attention.reshape(sources, width, -1)[at, self._places]  # (S, W, A)
        self._attention.append(np.zeros((len(self._prefix_lengths), *own.shape[1:]), np.float32))
        self._attention[-1][self._running] = own
        return self._seen + own

    def _alignment(self, source: int, rows: Ints) -> Alignment:
        """Return the alignment of one target; `rows` are the beams of its tokens."""
        if self._options.alignment is None or not len(rows):
            return ()
        attention = np.stack([each[source, row] for each, row in zip(self._attention, rows.tolist(), strict=False)])
        return alignment(attention, int(self._source_lengths[source]), self._options.alignment)

    def _part(self, step: Turn, totals: Doubles, ended: Bools, seen: Doubles) -> tuple[Turn, Doubles]:
        """Split candidates, best first: ended ones compete with the finished hypotheses, the others continue."""
        size = self._size
        at = np.arange(len(ended))[:, None]
        if (there := ended[:, :size].any(axis=1)).any():
            ending = step.map(lambda part: part[there, :size])
            sums = np.where(ended, totals, -np.inf)[there, :size]
            sources = self._running[there]
            scores = self._score(sums, sources, len(self._steps) + 1, seen[there], ending.parents)
            self._compete(sources, ending.parents, scores, ending.tokens, ending.log_probs)
        order = np.argsort(ended, axis=1, kind="stable")[:, :size]
        count = order.shape[1]
        order = order[:, np.arange(size) % count]  # a small vocabulary may have fewer candidates than beams
        dead = ended[at, order] | (np.arange(size) >= count)
        return step.map(lambda part: part[at, order]), np.where(dead, -np.inf, totals[at, order])

    def _cut_off(self, sums: Doubles) -> None:
        """Finish the hypotheses of the previous step where no token is allowed and no hypothesis is finished."""
        stuck = (self._sums[:, 0] == -np.inf) & (self._finished.scores[self._running, 0] == -np.inf)
        if stuck.any():
            sources = self._running[stuck]
            sums = sums[stuck]
            beams = np.broadcast_to(np.arange(sums.shape[1]), sums.shape)
            length = len(self._steps) - 1
            scores = self._score(sums, sources, length, self._seen[stuck], beams)
            self._compete(sources, beams, scores, np.full(sums.shape, NO_END), np.zeros(sums.shape), 2)

    def _record(self, step: Turn) -> None:
        self.last_tokens[:] = NO_END
        self.last_tokens[self._running] = np.where(self._sums == -np.inf, NO_END, step.tokens)  # dead beams have none
        if len(self._running) == len(self._prefix_lengths):
            self._steps.append(step)
            return
        whole = step.map(lambda part: np.zeros((len(self._prefix_lengths), part.shape[1]), part.dtype))
        for kept, part in zip(whole, step, strict=True):
            kept[self._running] = part
        self._steps.append(whole)

    def _lengths(self, sources: Ints, length: int | Ints) -> Ints:
        """Return the number of new tokens among `length` tokens, at least 1: (S,)."""
        lengths: Ints = np.maximum(length - self._prefix_lengths[sources], 1)
        return lengths

    def _score(self, totals: Doubles, sources: Ints, length: int, seen: Doubles, beams: Ints) -> Doubles:
        """Return scores (S, K) of sums of log-probs (S, K) at a length, coverage penalty included; `beams` (S, K)."""
        lengths = self._lengths(sources, length).astype(np.float64)
        scores: Doubles = totals / lengths[:, None] ** self._options.length_penalty
        if self._options.coverage_penalty:
            missed = uncovered(seen, self._source_lengths[sources])
            scores += self._options.coverage_penalty * np.take_along_axis(missed, beams, axis=1)
        return scores

    def _compete(
        self, sources: Ints, beams: Ints, scores: Doubles, ends: Ints, log_probs: Doubles, back: int = 1
    ) -> None:
        """Merge hypotheses whose last step is `steps[-back]` into the finished ones of the sources; keep F."""
        steps = np.full(beams.shape, len(self._steps) - back)
        theirs = Finished(scores, steps, beams, ends, log_probs)
        at = np.arange(len(sources))[:, None]
        joined = Finished(
            *(np.concatenate([old[sources], new], axis=1) for old, new in zip(self._finished, theirs, strict=True))
        )
        worth = np.where(
            np.isnan(joined.scores), np.finfo(np.float64).min, joined.scores
        )  # NaN ranks above -inf: a broken model has a result
        order = np.argsort(-worth, axis=1, kind="stable")[:, : self._finished.scores.shape[1]]
        for kept, part in zip(self._finished, joined, strict=True):
            kept[sources] = part[at, order]

    def _are_done(self) -> Bools:
        """Return which running sources are done: (S,). At the length limit, running hypotheses are finished first."""
        options = self._options
        best = self._sums[:, 0]
        length = len(self._steps)
        done: Bools = best == -np.inf
        full_length = self._limits[self._running] == length
        if full_length.any():
            sources = self._running[full_length]
            sums = self._sums[full_length]
            beams = np.broadcast_to(np.arange(sums.shape[1]), sums.shape)
            scores = self._score(sums, sources, length, self._seen[full_length], beams)
            self._compete(sources, beams, scores, np.full(sums.shape, NO_END), np.zeros(sums.shape))
            done |= full_length
        worst = self._finished.scores[self._running, -1]
        full = worst > -np.inf
        if not full.any():
            return done
        if options.early_stopping is True:
            done |= full
            return done
        if options.early_stopping == "never" and options.length_penalty > 0:
            lengths = self._lengths(self._running, self._limits[self._running]).astype(np.float64)
        else:
            lengths = self._lengths(self._running, length).astype(np.float64)
        done |= full & (worst >= best / lengths**options.length_penalty)
        return done

    def _speak(self, nbest: int, chosen: Ints) -> tuple[Ints, Doubles, Ints, Ints]:
        """Return the best finished hypotheses of the chosen sources (N,).

        They are tokens, log-probs and beams (N, nbest, T) each, and lengths (N, nbest).
        """
        finished = self._finished.map(lambda part: part[chosen, :nbest])
        longest = len(self._steps) + 1
        steps = finished.steps
        beams = finished.beams
        ids: Ints = np.repeat(finished.ends[..., None], longest, axis=2)
        log_probs: Doubles = np.repeat(finished.log_probs[..., None], longest, axis=2)
        rows: Ints = np.repeat(beams[..., None], longest, axis=2)
        sources = np.broadcast_to(chosen[:, None], steps.shape)
        for number in reversed(range(len(self._steps))):
            step = self._steps[number]
            is_generated = steps >= number
            ids[:, :, number] = np.where(is_generated, step.tokens[sources, beams], finished.ends)
            log_probs[:, :, number] = np.where(is_generated, step.log_probs[sources, beams], finished.log_probs)
            rows[:, :, number] = beams = np.where(is_generated, step.parents[sources, beams], beams)
        return ids, log_probs, rows, steps + 1 + (finished.ends != NO_END)


def wanted_of_group(options: SearchOptions, ends: Sized) -> int:
    """Return the number of candidates per row, enough to replace ended ones; the same as Hugging Face's."""
    return max(2, 1 + len(ends)) * (options.beams // options.beam_groups)


def wanted_of_row(options: SearchOptions, ends: Sized) -> int:
    """Like `wanted_of_group`, plus one candidate for each beam of the other groups, whose tokens are penalised."""
    return wanted_of_group(options, ends) + options.beams - options.beams // options.beam_groups


def beginning(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """Return the common prefix of two sequences; that of min and max of several is the common prefix of all."""
    place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1), None)
    return one[: min(len(one), len(other)) if place is None else place]


def settle(parents: Ints) -> Ints:
    """Rows of parents (S, K) -> rows of their children; the first child of each parent keeps its row.

    Therefore only rows of parents without children are overwritten.
    """
    at = np.arange(len(parents))[:, None]
    size = parents.shape[1]
    stays = ~(_earlier(size) & (parents[:, :, None] == parents[:, None, :])).any(axis=2)
    if stays.all():
        return parents
    taken = np.zeros(parents.shape, np.bool_)
    taken[at, parents] = True
    vacant = np.argsort(taken, axis=1, kind="stable")  # free rows first
    turn = (~stays).cumsum(axis=1) - 1
    return np.where(stays, parents, vacant[at, turn])


@cache
def _earlier(size: int) -> Bools:
    """Return a mask (K, K) that is True where j < i."""
    return np.tri(size, k=-1, dtype=np.bool_)
