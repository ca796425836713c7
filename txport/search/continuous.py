"""Continuous batching: one state for a stream of requests, in which new requests take the slots of finished ones.

A slot holds one source, with the maximum number of rows of its search. Requests that are admitted together are a
request group, which is searched like a separate batch; the scheduler joins the steps of all groups into one. Shape
comments: P slots, each of one source, K rows per slot, R = P x K rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.models.facts import Facts
from txport.runtimes.base import ContinuousRuntime, Ints, QueuedRuntime, Scores, State
from txport.runtimes.inputs import Source
from txport.runtimes.slots import spread
from txport.search.generate import longest_target, plan, start
from txport.search.options import Found, SearchOptions
from txport.search.requests import Search, Select, Step

WORTH_ADMITTING = 0.25  # fraction of free slots at which requests are admitted or the state shrinks
NOBODY = -1  # token of an unused row

GenerationRequest = tuple[Source, Sequence[int]]  # a source, and the prefix of its target


class Encoded(NamedTuple):
    """A state of encoded requests, the number of the first one, and the numbers of those that wait for admission."""

    state: State
    first: int
    numbers: range


class RequestGroup:
    """A running search: the numbers of its requests, the indices of its rows, and the step that it waits for."""

    def __init__(self, numbers: range, search: Search, rows: Ints) -> None:
        self.numbers = numbers
        self.search = search
        self.rows = rows
        self.step: Step | None = None


class Scheduler:
    """Run the searches of all requests in the slots of one state."""

    def __init__(
        self,
        runtime: ContinuousRuntime,
        requests: Sequence[GenerationRequest],
        facts: Facts,
        options: SearchOptions,
        slots: int,
    ) -> None:
        self._runtime = runtime
        self._requests = requests
        self._facts = facts
        self._options = options
        sources, prefixes = zip(*requests, strict=True)
        self._longest = longest_target(sources, facts, options, prefixes)
        self._width = options.rows
        self.results: list[list[Found]] = [[] for _ in requests]
        self._groups: list[RequestGroup] = []
        self._slots = min(slots, len(requests))
        self._batches = self._encode()
        self._state, _, numbers = next(self._batches)
        self._ahead: Encoded | None = None
        self._is_queued = isinstance(runtime, QueuedRuntime)  # then the next requests are encoded during the search
        self._moves = np.repeat(np.arange(self._slots), self._width)  # the old row of each new row
        self._assign(numbers, np.arange(self._slots))

    def run(self) -> list[list[Found]]:
        """Run all searches; return the hypotheses per request, in order."""
        while self._groups:
            self._move()
            self._step()
            if self._is_queued:
                self._ahead = self._ahead or next(self._batches, None)
            self._fill()
        return self.results

    def _encode(self) -> Iterator[Encoded]:
        """Yield states of as many encoded requests as there are slots: large batches are encoded faster."""
        for first in range(0, len(self._requests), self._slots):
            numbers = range(first, min(first + self._slots, len(self._requests)))
            sources = [self._requests[number][0] for number in numbers]
            yield Encoded(start(self._runtime, sources, self._facts, self._longest), first, numbers)

    def _assign(self, numbers: range, slots: Ints) -> None:
        """Start a new group in free slots; it uses the first row of each slot until its search selects more rows."""
        sources, prefixes = zip(*(self._requests[number] for number in numbers), strict=True)
        search = plan(sources, self._facts, self._options, prefixes, at_once=True)
        self._groups.append(group := RequestGroup(numbers, search, slots * self._width))
        self._answer(group, None)

    def _step(self) -> None:
        """Run one step of the runtime for all groups."""
        tokens = np.full(len(self._moves), NOBODY)
        steps = [(group, group.step) for group in self._groups if group.step is not None]
        for group, step in steps:
            tokens[group.rows] = step.tokens
        one = steps[0][1]
        tops = [step.top for _, step in steps if step.top is not None]
        top = max(tops) if tops else None  # the steps of all groups differ only in `top`
        found, self._state = self._runtime.step(tokens, self._state, top=top, normalise=one.normalise, align=one.align)
        for group, step in steps:
            self._answer(group, part(found, group.rows, step.top))
        self._groups = [group for group in self._groups if group.step is not None]

    def _answer(self, group: RequestGroup, found: Scores | None) -> None:
        """Continue the search of a group until it requests its next step, or ends."""
        group.step = None
        try:
            while not isinstance(request := group.search.send(found), Step):
                found = None
                if isinstance(request, Select):
                    self._select(group, group.rows[request.rows])
            group.step = request
        except StopIteration as end:
            for number, result in zip(group.numbers, end.value, strict=True):
                self.results[number] = result

    def _select(self, group: RequestGroup, wanted: Ints) -> None:
        """Select rows of a group: each new row stays at its old position, unless the position is taken."""
        group.rows = spread(wanted, self._width)
        if not np.array_equal(group.rows, wanted):
            moves = self._moves.copy()
            moves[group.rows] = self._moves[wanted]
            self._moves = moves

    def _move(self) -> None:
        if not np.array_equal(self._moves, still := np.arange(len(self._moves))):
            self._state = self._runtime.select(self._state, self._moves)
            self._moves = still

    def _fill(self) -> None:
        """Admit new requests if enough slots are free; if no requests are left, shrink the state."""
        taken = np.zeros(self._slots, np.bool_)
        for group in self._groups:
            taken[group.rows // self._width] = True
        if self._slots - np.count_nonzero(taken) < WORTH_ADMITTING * self._slots:
            return
        while not taken.all() and (ahead := self._ahead or next(self._batches, None)):
            numbers = ahead.numbers[: self._slots - np.count_nonzero(taken)]
            slots = np.flatnonzero(~taken)[: len(numbers)]
            self._state = self._runtime.admit(self._state, slots, ahead.state, np.array(numbers) - ahead.first)
            rest = ahead.numbers[len(numbers) :]
            self._ahead = ahead._replace(numbers=rest) if rest else None
            self._assign(numbers, slots)
            taken[slots] = True
        if not taken.all() and self._groups:
            self._shrink(taken)

    def _shrink(self, taken: NDArray[np.bool_]) -> None:
        """Remove the free slots from the state."""
        kept = np.flatnonzero(taken)
        new = np.cumsum(taken) - 1
        self._state = self._runtime.select(self._state, self._moves[rows_at(kept, self._width)])
        for group in self._groups:
            group.rows = new[group.rows // self._width] * self._width + group.rows % self._width
        self._slots = len(kept)
        self._moves = np.arange(self._slots * self._width)


def rows_at(slots: Ints, width: int) -> Ints:
    """Return the row indices of slots."""
    return (slots[:, None] * width + np.arange(width)).ravel()


def part(found: Scores, rows: Ints, top: int | None) -> Scores:
    """Return the scores of `rows`, of at most `top` tokens each."""
    own = found.of(rows)
    return own._replace(values=own.values[:, :top], ids=None if own.ids is None else own.ids[:, :top])
