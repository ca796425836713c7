"""A lane: one state of a runtime, whose slots hold requests that come and go.

A slot holds one source, with the maximum number of rows of its search. Requests that are admitted together are a
request group, which is searched like a separate batch. A group joins another one of equal options, if no constraint
concerns earlier tokens. A lane joins the steps of all its groups into one.
Shape comments: P slots, each of one source, K rows per slot, R = P x K rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from txport.models.facts import Facts
from txport.runtimes.base import ContinuousRuntime, Ints, Scores, State
from txport.runtimes.inputs import Source
from txport.runtimes.slots import rows_of, spread
from txport.search.constraints import reads_all_scores
from txport.search.generate import plan, wanted
from txport.search.options import Found, SearchOptions
from txport.search.requests import Begin, Search, Select, Step, Targets
from txport.search.rows import Rows

NOBODY = -1  # token of an unused row

GenerationRequest = tuple[Source, Sequence[int]]  # a source, and the prefix of its target
Item = TypeVar("Item")  # what a caller calls a request
Outcome = list[Found] | Exception  # the hypotheses of a request, or the error of its search


class Kind(NamedTuple):
    """What searches in one lane have in common; their steps differ only in `top`."""

    rows: int  # per source
    top: int | None  # None: all scores; 0: log-probs of any number of tokens; else the number of unnormalised values
    align: bool


def kind_of(options: SearchOptions, facts: Facts) -> Kind:
    """Return the kind of lane for a search with these options."""
    count = wanted(options, facts)
    if count is None or reads_all_scores(options):
        return Kind(options.rows, None, options.aligns)
    return Kind(options.rows, 0 if options.scores else count, options.aligns)


class RequestGroup(Generic[Item]):
    """A running search: its requests, the indices of its rows, and the step that it waits for."""

    def __init__(self, items: Sequence[Item], search: Search, rows: Ints, options: SearchOptions) -> None:
        self.items = items
        self.search = search
        self.options = options
        self.rows = rows
        self.owners = np.arange(len(items))  # the request of each row
        self.is_running = np.ones(len(items), np.bool_)  # of each request
        self.step: Step | None = None
        self.targets: Targets | None = None  # known before the first step
        self.joins = False  # whether others of equal options may join

    def select(self, chosen: Ints) -> Ints:
        """Select rows; return the requests that have none left."""
        self.owners = self.owners[chosen]
        stays = np.zeros(len(self.items), np.bool_)
        stays[self.owners] = True
        ended = np.flatnonzero(self.is_running & ~stays)
        self.is_running = stays
        return ended

    def join(self, other: RequestGroup[Item]) -> None:
        """Take in a group that waits for its first step, with the same options."""
        assert self.step is not None
        assert other.step is not None
        assert isinstance(self.targets, Rows)
        assert isinstance(other.targets, Rows)
        kept = np.flatnonzero(self.is_running)
        self.targets.join(other.targets, kept)
        self.items = [*(self.items[number] for number in kept.tolist()), *other.items]
        new = np.cumsum(self.is_running) - 1
        self.owners = np.concatenate([new[self.owners], len(kept) + other.owners])
        self.is_running = np.ones(len(self.items), np.bool_)
        self.rows = np.concatenate([self.rows, other.rows])
        self.step = self.step._replace(tokens=np.concatenate([self.step.tokens, other.step.tokens]))
        other.search.close()

    def end(self) -> Ints:
        """End the search; return the requests that were running."""
        running = np.flatnonzero(self.is_running)
        self.is_running = np.zeros(len(self.items), np.bool_)
        return running


class Lane(Generic[Item]):
    """The slots of one state, and the groups of requests in them.

    All searches are of one `Kind`, with `width` rows per source. `facts` are those of the model.
    """

    def __init__(self, runtime: ContinuousRuntime, facts: Facts, width: int) -> None:
        self._runtime = runtime
        self._facts = facts
        self._width = width
        self._state: State = None
        self._moves = np.arange(0)  # the old row of each new row
        self._ended: list[tuple[Item, Outcome]] = []
        self.groups: list[RequestGroup[Item]] = []
        self.slots = 0

    @property
    def is_taken(self) -> NDArray[np.bool_]:
        """Whether each slot holds a request: (P,)."""
        taken = np.zeros(self.slots, np.bool_)
        for group in self.groups:
            taken[group.rows // self._width] = True
        return taken

    @property
    def rows(self) -> int:
        """R, the number of rows of the state."""
        return self.slots * self._width

    def open(self, state: State, slots: int) -> None:
        """Take a new state of `slots` sources, whose slots are free until `begin`."""
        self._state = state
        self.slots = slots
        self._moves = np.repeat(np.arange(slots), self._width)

    def admit(self, slots: Ints, others: State, chosen: Ints) -> None:
        """Put the sources `chosen` (N,) of a new state into free slots (N,); `begin` follows."""
        self._move()  # moves within slots concern their old content
        self._state = self._runtime.admit(self._state, slots, others, chosen)

    def extend(self, slots: int) -> None:
        """Make room for `slots` slots in all."""
        self._move()
        self._state = self._runtime.extend(self._state, slots)
        self.slots = slots
        self._moves = np.arange(slots * self._width)

    def begin(
        self, slots: Ints, items: Sequence[Item], requests: Sequence[GenerationRequest], options: SearchOptions
    ) -> None:
        """Begin the search of requests in these slots (N,); each uses the first row of its slot at first."""
        sources, prefixes = zip(*requests, strict=True)
        search = plan(sources, self._facts, options, prefixes, at_once=True)
        group = RequestGroup(items, search, slots * self._width, options)
        self._answer(group, None)
        for other in self.groups if group.joins and group.step is not None else ():
            if other.joins and other.step is not None and other.options == options:
                other.join(group)
                return
        self.groups.append(group)

    def step(self) -> list[tuple[Item, Outcome]]:
        """Run one step of the runtime for all groups; return the requests that have ended.

        Raises the errors of the runtime, after which the lane can't be used.
        """
        self._move()
        tokens = np.full(len(self._moves), NOBODY)
        steps = [(group, group.step) for group in self.groups if group.step is not None]
        for group, step in steps:
            tokens[group.rows] = step.tokens
        if steps:
            one = steps[0][1]
            top = max((step.top for _, step in steps if step.top is not None), default=None)
            found, self._state = self._runtime.step(
                tokens, self._state, top=top, normalise=one.normalise, align=one.align
            )
            for group, step in steps:
                self._answer(group, part(found, group.rows, step.top))
        self.groups = [group for group in self.groups if group.step is not None]
        ended, self._ended = self._ended, []
        return ended

    def shrink(self) -> None:
        """Remove the free slots from the state."""
        taken = self.is_taken
        kept = np.flatnonzero(taken)
        new = np.cumsum(taken) - 1
        self._state = self._runtime.select(self._state, self._moves[rows_of(kept, self._width)])
        for group in self.groups:
            group.rows = new[group.rows // self._width] * self._width + group.rows % self._width
        self.slots = len(kept)
        self._moves = np.arange(self.slots * self._width)

    def close(self) -> None:
        """Free the state of a lane without groups."""
        self._state = None
        self.slots = 0
        self._moves = np.arange(0)

    def _answer(self, group: RequestGroup[Item], found: Scores | None) -> None:
        """Continue the search of a group until it requests its next step, or ends."""
        group.step = None
        try:
            while not isinstance(request := group.search.send(found), Step):
                found = None
                if isinstance(request, Begin):
                    group.targets, group.joins = request
                elif isinstance(request, Select):
                    self._select(group, request.rows)
            group.step = request
        except StopIteration as end:
            self._finish(group, group.end(), end.value)
        except Exception as error:
            self._ended += [(group.items[number], error) for number in group.end().tolist()]

    def _select(self, group: RequestGroup[Item], chosen: Ints) -> None:
        """Select rows of a group: each new row stays at its old position, unless the position is taken."""
        wanted = group.rows[chosen]
        ended = group.select(chosen)
        if len(ended) and group.targets is not None:
            self._finish(group, ended, group.targets)
        group.rows = spread(wanted, self._width)
        if not np.array_equal(group.rows, wanted):
            moves = self._moves.copy()
            moves[group.rows] = self._moves[wanted]
            self._moves = moves

    def _finish(self, group: RequestGroup[Item], ended: Ints, targets: Targets) -> None:
        items = [group.items[number] for number in ended.tolist()]
        self._ended += zip(items, targets.found(ended), strict=True)

    def _move(self) -> None:
        if not np.array_equal(self._moves, still := np.arange(len(self._moves))):
            self._state = self._runtime.select(self._state, self._moves)
            self._moves = still


def part(found: Scores, rows: Ints, top: int | None) -> Scores:
    """Return the scores of `rows`, of at most `top` tokens each."""
    own = found.of(rows)
    return own._replace(values=own.values[:, :top], ids=None if own.ids is None else own.ids[:, :top])
