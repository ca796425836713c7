"""Continuous batching: one state for a stream of inputs, in which new ones take the slots of those that are done.

A slot is a place for one source in a continuous batch, with as many rows as its search may have at once. Inputs that
are admitted together are a request group, which searches as a batch does and knows of no other; here the steps of all
groups become one. Letters: P slots, each of one source, K rows at a slot, R = P x K rows.
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

WORTH_ADMITTING = 0.25  # of the slots must be free before others are admitted, or the rest moves together
NOBODY = -1  # in place of a token

GenerationRequest = tuple[Source, Sequence[int]]  # a source, and what its target begins with


class Encoded(NamedTuple):
    """A state of requests that are encoded, the first of them, and those that are still to be admitted."""

    state: State
    first: int
    numbers: range


class RequestGroup:
    """A search under way: which requests it serves, where its rows lie, and the step that it waits for."""

    def __init__(self, numbers: range, search: Search, rows: Ints) -> None:
        self.numbers = numbers
        self.search = search
        self.rows = rows
        self.step: Step | None = None


class Scheduler:
    """The slots of one state, and the groups that hold them."""

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
        self._is_queued = isinstance(runtime, QueuedRuntime)  # then others are encoded while steps are searched
        self._moves = np.repeat(np.arange(self._slots), self._width)  # which old row each row is to be
        self._assign(numbers, np.arange(self._slots))

    def run(self) -> list[list[Found]]:
        """Search until all is found."""
        while self._groups:
            self._move()
            self._step()
            if self._is_queued:
                self._ahead = self._ahead or next(self._batches, None)
            self._fill()
        return self.results

    def _encode(self) -> Iterator[Encoded]:
        """States of as many requests at a time as there are slots: more at once are encoded faster."""
        for first in range(0, len(self._requests), self._slots):
            numbers = range(first, min(first + self._slots, len(self._requests)))
            sources = [self._requests[number][0] for number in numbers]
            yield Encoded(start(self._runtime, sources, self._facts, self._longest), first, numbers)

    def _assign(self, numbers: range, slots: Ints) -> None:
        """A new group at free slots; at each, the first row is used until the search wants more."""
        sources, prefixes = zip(*(self._requests[number] for number in numbers), strict=True)
        search = plan(sources, self._facts, self._options, prefixes, at_once=True)
        self._groups.append(group := RequestGroup(numbers, search, slots * self._width))
        self._answer(group, None)

    def _step(self) -> None:
        """One step of the runtime for all."""
        tokens = np.full(len(self._moves), NOBODY)
        steps = [(group, group.step) for group in self._groups if group.step is not None]
        for group, step in steps:
            tokens[group.rows] = step.tokens
        one = steps[0][1]
        tops = [step.top for _, step in steps if step.top is not None]
        top = max(tops) if tops else None  # all ask alike, but for how many
        found, self._state = self._runtime.step(tokens, self._state, top=top, normalise=one.normalise, align=one.align)
        for group, step in steps:
            self._answer(group, part(found, group.rows, step.top))
        self._groups = [group for group in self._groups if group.step is not None]

    def _answer(self, group: RequestGroup, found: Scores | None) -> None:
        """Let a group go on until it asks for its next step, or ends."""
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
        """Let the rows of a group go on from old ones: each stays where it is, but if another has it already."""
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
        """Admit new requests where enough slots are free; once there are none, move together."""
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
        """Give up the slots that nobody will take any more."""
        kept = np.flatnonzero(taken)
        new = np.cumsum(taken) - 1
        self._state = self._runtime.select(self._state, self._moves[rows_at(kept, self._width)])
        for group in self._groups:
            group.rows = new[group.rows // self._width] * self._width + group.rows % self._width
        self._slots = len(kept)
        self._moves = np.arange(self._slots * self._width)


def rows_at(slots: Ints, width: int) -> Ints:
    """The rows of some slots."""
    return (slots[:, None] * width + np.arange(width)).ravel()


def part(found: Scores, rows: Ints, top: int | None) -> Scores:
    """What a step says of some rows, and of no more tokens than they asked for."""
    own = found.of(rows)
    return own._replace(values=own.values[:, :top], ids=None if own.ids is None else own.ids[:, :top])
