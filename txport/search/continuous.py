"""Continuous batching: one state for a stream of inputs, in which new ones take the places of those that are done.

Inputs that are admitted together are a cohort, which searches as a batch does and knows of no other; here their steps
become one. Letters: P places, each of one source, K rows at a place, R = P x K rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.models.config import TransformerConfig
from txport.runtimes.base import ContinuousRuntime, Ints, Scores, State
from txport.runtimes.slots import spread
from txport.search.asks import Search, Select, Step
from txport.search.generate import encode, longest_target, plan
from txport.search.options import Found, SearchOptions

WORTH_ADMITTING = 0.25  # of the places must be free before others are admitted, or the rest moves together
NOBODY = -1  # in place of a token

Request = tuple[Sequence[int], Sequence[int]]  # a source, and what its target begins with


class Encoded(NamedTuple):
    """A state of requests that are encoded, the first of them, and those that are still to be admitted."""

    state: State
    first: int
    numbers: range


class Cohort:
    """A search under way: which requests it serves, where its rows lie, and the step that it waits for."""

    def __init__(self, numbers: range, search: Search, rows: Ints) -> None:
        self.numbers, self.search, self.rows = numbers, search, rows
        self.step: Step | None = None


class Hall:
    """The places of one state, and the cohorts that hold them."""

    def __init__(
        self,
        runtime: ContinuousRuntime,
        requests: Sequence[Request],
        config: TransformerConfig,
        options: SearchOptions,
        places: int,
    ) -> None:
        self._runtime, self._requests, self._config, self._options = runtime, requests, config, options
        self._longest = longest_target(options, [prefix for _, prefix in requests])
        self._width = options.nbest if options.do_sample else options.beams
        self.results: list[list[Found]] = [[] for _ in requests]
        self._cohorts: list[Cohort] = []
        self._places = min(places, len(requests))
        self._batches = self._encode()
        self._state, _, numbers = next(self._batches)
        self._ahead: Encoded | None = None
        self._moves = np.repeat(np.arange(self._places), self._width)  # which old row each row is to be
        self._sit(numbers, np.arange(self._places))

    def run(self) -> list[list[Found]]:
        """Search until all is found."""
        while self._cohorts:
            self._move()
            self._step()
            self._fill()
        return self.results

    def _encode(self) -> Iterator[Encoded]:
        """States of as many requests at a time as there are places: more at once are encoded faster."""
        for start in range(0, len(self._requests), self._places):
            numbers = range(start, min(start + self._places, len(self._requests)))
            sources = [self._requests[number][0] for number in numbers]
            yield Encoded(encode(self._runtime, sources, self._config, self._longest), start, numbers)

    def _sit(self, numbers: range, places: Ints) -> None:
        """A new cohort at free places; at each, the first row is used until the search wants more."""
        sources, prefixes = zip(*(self._requests[number] for number in numbers), strict=True)
        search = plan(sources, self._config, self._options, prefixes, at_once=True)
        self._cohorts.append(cohort := Cohort(numbers, search, places * self._width))
        self._answer(cohort, None)

    def _step(self) -> None:
        """One step of the runtime for all."""
        tokens = np.full(len(self._moves), NOBODY)
        steps = [(cohort, cohort.step) for cohort in self._cohorts if cohort.step is not None]
        for cohort, step in steps:
            tokens[cohort.rows] = step.tokens
        one, tops = steps[0][1], [step.top for _, step in steps if step.top is not None]
        top = max(tops) if tops else None  # all ask alike, but for how many
        found, self._state = self._runtime.step(tokens, self._state, top=top, normalise=one.normalise, align=one.align)
        for cohort, step in steps:
            self._answer(cohort, part(found, cohort.rows, step.top))
        self._cohorts = [cohort for cohort in self._cohorts if cohort.step is not None]

    def _answer(self, cohort: Cohort, found: Scores | None) -> None:
        """Let a cohort go on until it asks for its next step, or ends."""
        cohort.step = None
        try:
            while not isinstance(ask := cohort.search.send(found), Step):
                found = None
                if isinstance(ask, Select):
                    self._select(cohort, cohort.rows[ask.rows])
            cohort.step = ask
        except StopIteration as end:
            for number, result in zip(cohort.numbers, end.value, strict=True):
                self.results[number] = result

    def _select(self, cohort: Cohort, wanted: Ints) -> None:
        """Let the rows of a cohort go on from old ones: each stays where it is, but if another has it already."""
        cohort.rows = spread(wanted, self._width)
        if not np.array_equal(cohort.rows, wanted):
            moves = self._moves.copy()
            moves[cohort.rows] = self._moves[wanted]
            self._moves = moves

    def _move(self) -> None:
        if not np.array_equal(self._moves, still := np.arange(len(self._moves))):
            self._state, self._moves = self._runtime.select(self._state, self._moves), still

    def _fill(self) -> None:
        """Admit new requests where enough places are free; once there are none, move together."""
        taken = np.zeros(self._places, np.bool_)
        for cohort in self._cohorts:
            taken[cohort.rows // self._width] = True
        if self._places - np.count_nonzero(taken) < WORTH_ADMITTING * self._places:
            return
        while not taken.all() and (ahead := self._ahead or next(self._batches, None)):
            numbers = ahead.numbers[: self._places - np.count_nonzero(taken)]
            places = np.flatnonzero(~taken)[: len(numbers)]
            self._state = self._runtime.admit(self._state, places, ahead.state, np.array(numbers) - ahead.first)
            rest = ahead.numbers[len(numbers) :]
            self._ahead = ahead._replace(numbers=rest) if rest else None
            self._sit(numbers, places)
            taken[places] = True
        if not taken.all() and self._cohorts:
            self._shrink(taken)

    def _shrink(self, taken: NDArray[np.bool_]) -> None:
        """Give up the places that nobody will take any more."""
        kept, new = np.flatnonzero(taken), np.cumsum(taken) - 1
        self._state = self._runtime.select(self._state, self._moves[rows_at(kept, self._width)])
        for cohort in self._cohorts:
            cohort.rows = new[cohort.rows // self._width] * self._width + cohort.rows % self._width
        self._places = len(kept)
        self._moves = np.arange(self._places * self._width)


def rows_at(places: Ints, width: int) -> Ints:
    """The rows of some places."""
    return (places[:, None] * width + np.arange(width)).ravel()


def part(found: Scores, rows: Ints, top: int | None) -> Scores:
    """What a step says of some rows, and of no more tokens than they asked for."""
    own = found.of(rows)
    return own._replace(values=own.values[:, :top], ids=None if own.ids is None else own.ids[:, :top])
