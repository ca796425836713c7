"""Continuous batching: one lane for a list of requests, in which new requests take the slots of finished ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from txport.models.facts import Facts
from txport.runtimes.base import ContinuousRuntime, Ints, QueuedRuntime, State
from txport.search.generate import longest_target, start
from txport.search.lanes import GenerationRequest, Lane, Outcome
from txport.search.options import Found, SearchOptions

WORTH_ADMITTING = 0.25  # fraction of free slots at which requests are admitted or the state shrinks


class Encoded(NamedTuple):
    """A state of encoded requests, the number of the first one, and the numbers of those that wait for admission."""

    state: State
    first: int
    numbers: range


class Scheduler:
    """Run the searches of all requests in the slots of one lane."""

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
        self.results: list[list[Found]] = [[] for _ in requests]
        self._lane = Lane[int](runtime, facts, options.rows)
        self._batches = self._encode(min(slots, len(requests)))
        self._ahead: Encoded | None = None
        self._is_queued = isinstance(runtime, QueuedRuntime)  # then the next requests are encoded during the search
        state, _, numbers = next(self._batches)
        self._lane.open(state, len(numbers))
        self._begin(numbers, np.arange(len(numbers)))

    def run(self) -> list[list[Found]]:
        """Run all searches; return the hypotheses per request, in order."""
        while self._lane.groups:
            self._keep(self._lane.step())
            if self._is_queued:
                self._ahead = self._ahead or next(self._batches, None)
            self._fill()
        return self.results

    def _keep(self, ended: list[tuple[int, Outcome]]) -> None:
        for number, outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome
            self.results[number] = outcome

    def _encode(self, slots: int) -> Iterator[Encoded]:
        """Yield states of as many encoded requests as there are slots: large batches are encoded faster."""
        for first in range(0, len(self._requests), slots):
            numbers = range(first, min(first + slots, len(self._requests)))
            sources = [self._requests[number][0] for number in numbers]
            yield Encoded(start(self._runtime, sources, self._facts, self._longest), first, numbers)

    def _begin(self, numbers: range, slots: Ints) -> None:
        self._lane.begin(slots, numbers, [self._requests[number] for number in numbers], self._options)

    def _fill(self) -> None:
        """Admit new requests if enough slots are free; if no requests are left, shrink the state."""
        free = np.flatnonzero(~self._lane.is_taken)
        if len(free) < WORTH_ADMITTING * self._lane.slots:
            return
        while len(free) and (ahead := self._ahead or next(self._batches, None)):
            numbers = ahead.numbers[: len(free)]
            slots, free = np.split(free, [len(numbers)])
            self._lane.admit(slots, ahead.state, np.array(numbers) - ahead.first)
            rest = ahead.numbers[len(numbers) :]
            self._ahead = ahead._replace(numbers=rest) if rest else None
            self._begin(numbers, slots)
        if len(free) and self._lane.groups:
            self._lane.shrink()
