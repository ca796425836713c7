"""The thread of a live engine: it admits requests, runs the steps of all lanes, and ends each request by itself.

Searches of one kind share a lane, and those that are admitted together with equal options share a group. Everything but
the queue belongs to this thread.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np

from txport.errors import DeadlineError, EngineError, QueueFullError
from txport.models.facts import Facts
from txport.runtimes.base import ContinuousRuntime, Ints, QueuedRuntime, State
from txport.search.generate import start
from txport.search.lanes import Kind, Lane, Outcome
from txport.search.options import Found
from txport.serving.tickets import Stats, Ticket

logger = logging.getLogger(__name__)
WORTH_SHRINKING = 0.25  # fraction of free slots at which a state shrinks
SETTLED = 4  # steps without new requests before it does
COMPANY = 0.25  # requests that are admitted at once, as a fraction of those that run
PATIENCE = 0.02  # seconds that fewer wait for others, if a step is as short: each entry takes time of its own
SPARE = 64  # entries of a heap, beside twice the live ones, before the others are removed
PACE = 0.1  # weight of the newest step in the mean time between two finished requests


class Worker:
    """Run requests in up to `slots` slots; up to `queue` more wait. Sources enter by `budget` tokens in each step."""

    def __init__(self, runtime: ContinuousRuntime, facts: Facts, slots: int, queue: int, budget: int) -> None:
        self._runtime = runtime
        self._facts = facts
        self._slots = slots
        self._queue = queue
        self._budget = budget
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Ticket]] = []  # a heap; requests that have ended are still in it
        self._deadlines: list[tuple[float, int, Ticket]] = []  # a heap
        self._numbers = itertools.count()
        self._live: set[Ticket] = set()  # those that wait or run
        self._given_up: deque[Ticket] = deque()  # running requests whose rows are to be dropped
        self._coming: deque[tuple[list[Ticket], Future[State]]] = deque()  # groups that are being encoded
        self._lanes: dict[Kind, Lane[Ticket]] = {}
        self._new: dict[Kind, list[Ticket]] = {}  # admitted since the last step
        self._closed: str | None = None
        self._admitted = 0.0  # when a request was last admitted
        self._quiet = 0  # steps since a request entered
        self._round = 0.0  # seconds that the last step of all lanes took
        self._pace = 0.0  # seconds between two finished requests
        self._last_end: float | None = None
        self._stats = Stats(slots=slots)
        self._longest = facts.writes.longest
        # an asynchronous device encodes during steps by itself, and for its own thread
        is_queued = isinstance(runtime, QueuedRuntime)
        self._encoder = None if is_queued else ThreadPoolExecutor(1, "txport encoder")
        self._thread = threading.Thread(target=self._run, name="txport engine", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether requests are taken."""
        return self._closed is None

    @property
    def stats(self) -> Stats:
        """The statistics now."""
        with self._changed:
            lanes = list(self._lanes.values())
            return replace(self._stats, lanes=len(lanes), rows=sum(lane.rows for lane in lanes))

    def full(self, count: int = 1) -> QueueFullError | None:
        """Return the error of `count` more requests, or None if there is room for them."""
        waiting = self._stats.waiting
        if waiting + count <= self._queue + self._slots - self._stats.running:
            return None
        seconds = max(self._pace * waiting, 0.001)
        what = f"{waiting} requests wait in the engine, whose queue holds {self._queue}"
        return QueueFullError(f"{what}; try again in about {seconds:.3g} seconds", seconds)

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Add requests; raise `QueueFullError` if too many wait, `EngineError` after `close`."""
        with self._changed:
            if self._closed is not None:
                raise EngineError(self._closed)
            if (full := self.full(len(tickets))) is not None:
                self._stats.refused += len(tickets)
                raise full
            for ticket in tickets:
                ticket.leave = self._leave
                number = next(self._numbers)
                heapq.heappush(self._waiting, (ticket.order, number, ticket))
                if ticket.deadline is not None:
                    heapq.heappush(self._deadlines, (ticket.deadline, number, ticket))
            self._live.update(tickets)
            self._stats.waiting += len(tickets)
            self._changed.notify()
        for ticket in tickets:
            ticket.future.add_done_callback(partial(self._on_cancel, ticket))

    def close(self, *, cancel: bool) -> None:
        """Take no more requests; wait until the others have ended, or cancel them."""
        with self._changed:
            self._closed = self._closed or "the engine is closed"
            tickets = list(self._live) if cancel else []
            self._changed.notify()
        for ticket in tickets:
            ticket.future.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _on_cancel(self, ticket: Ticket, future: Future[list[Found]]) -> None:
        if future.cancelled():
            ticket.times.ended = time.monotonic()
            self._leave(ticket, None)

    def _leave(self, ticket: Ticket, outcome: Outcome | None) -> None:
        """Count a request that ended, cancelled if it has no outcome; if it was given up, free its place."""
        stats = self._stats
        with self._changed:
            self._live.discard(ticket)
            stats.cancelled += outcome is None
            stats.failed += isinstance(outcome, Exception)
            stats.expired += isinstance(outcome, DeadlineError)
            stats.finished += isinstance(outcome, list)
            if isinstance(outcome, list):
                stats.tokens += len(outcome[0].tokens) - len(ticket.request[1]) if outcome else 0
                stats.prompt_tokens += ticket.size
                assert ticket.times.ended is not None
                stats.seconds += ticket.times.ended - ticket.times.submitted
            if ticket.is_waiting:
                ticket.is_waiting = False
                stats.waiting -= 1
            else:
                stats.running -= 1
                if not isinstance(outcome, list):
                    self._given_up.append(ticket)

    def _run(self) -> None:
        try:
            while self._has_work():
                self._expire()
                self._drop()
                self._admit()
                self._quiet += 1
                started = time.monotonic()
                for kind in list(self._lanes):
                    self._step(kind)
                self._round = time.monotonic() - started
        except BaseException as error:
            with self._changed:
                self._closed = "the engine has failed; the log has the reason"
                tickets = list(self._live)
            logger.error("the live engine has failed", exc_info=error)
            problem = EngineError(self._closed)
            problem.__cause__ = error
            for ticket in tickets:
                ticket.end(problem)
        finally:
            if self._encoder is not None:
                self._encoder.shutdown()

    def _has_work(self) -> bool:
        """Wait for work; return False if there is none and the engine is closed."""
        with self._changed:
            while not (self._lanes or self._coming or self._stats.waiting):
                if self._closed is not None:
                    return False
                self._last_end = None
                self._changed.wait()
            return True

    def _expire(self) -> None:
        """Fail the requests whose deadline has passed."""
        now = time.monotonic()
        if len(self._deadlines) > 2 * len(self._live) + SPARE:
            with self._changed:
                self._deadlines = [each for each in self._deadlines if not each[2].future.done()]
                heapq.heapify(self._deadlines)
        while self._deadlines and self._deadlines[0][0] <= now:
            with self._changed:
                _, _, ticket = heapq.heappop(self._deadlines)
            assert ticket.deadline is not None
            seconds = ticket.deadline - ticket.times.submitted
            where = "while it waited" if ticket.is_waiting else "before its result was complete"
            ticket.end(DeadlineError(f"the deadline of the request, {seconds:g} seconds, passed {where}"))

    def _drop(self) -> None:
        """Free the slots of requests that were given up, with the next step."""
        while self._given_up:
            ticket = self._given_up.popleft()
            for group in self._lanes[ticket.kind].groups if ticket.kind in self._lanes else ():
                if ticket in group.items and group.targets is not None:
                    group.targets.drop(group.items.index(ticket))

    def _admit(self) -> None:
        """Admit the first requests of the queue, as slots and budget allow.

        They are encoded during the steps of the running ones, if there are any.
        """
        while self._coming and (self._coming[0][1].done() or not self._lanes):
            self._begin(*self._coming.popleft())
        if self._coming:
            return
        groups: dict[object, list[Ticket]] = {}
        for ticket in self._next():
            groups.setdefault(ticket.group, []).append(ticket)
        for tickets in groups.values():
            tickets.sort(key=lambda ticket: ticket.size)  # runtimes encode neighbours of similar length together
            if self._lanes and self._encoder is not None:
                self._coming.append((tickets, self._encoder.submit(self._encode, tickets)))
            else:
                self._begin(tickets, finished(partial(self._encode, tickets)))

    def _next(self) -> list[Ticket]:
        chosen: list[Ticket] = []
        left = self._budget
        with self._changed:
            free = self._slots - self._stats.running
            if not self._is_worth(min(free, self._stats.waiting)):
                return []
            if len(self._waiting) > 2 * self._stats.waiting + SPARE:
                self._waiting = [each for each in self._waiting if each[2].is_waiting]
                heapq.heapify(self._waiting)
            while self._waiting and len(chosen) < free:
                ticket = self._waiting[0][2]
                if ticket.is_waiting and chosen and ticket.size > left:
                    break
                heapq.heappop(self._waiting)
                if ticket.is_waiting:
                    ticket.is_waiting = False
                    left -= ticket.size
                    chosen.append(ticket)
            if chosen:
                self._admitted = time.monotonic()
            self._stats.waiting -= len(chosen)
            self._stats.running += len(chosen)
        return chosen

    def _is_worth(self, count: int) -> bool:
        """Return False if `count` requests should wait for others to form a group with, as a short step allows."""
        if not self._waiting or count >= COMPANY * self._stats.running:
            return True
        since = max(self._admitted, self._waiting[0][2].times.submitted)
        return time.monotonic() + self._round - since > PATIENCE

    def _encode(self, tickets: list[Ticket]) -> State:
        """Return a new state of the sources of a group."""
        now = time.monotonic()
        for ticket in tickets:
            ticket.times.admitted = now
        return start(self._runtime, [ticket.request[0] for ticket in tickets], self._facts, self._longest)

    def _begin(self, tickets: list[Ticket], encoded: Future[State]) -> None:
        """Begin the search of a group in the lane of its kind."""
        kind = tickets[0].kind
        try:
            state = encoded.result()
        except Exception as error:
            self._end([(ticket, error) for ticket in tickets])
            return
        lane = self._lanes.setdefault(kind, Lane(self._runtime, self._facts, kind.rows))
        self._new.setdefault(kind, []).extend(tickets)
        try:
            self._quiet = 0
            slots = place(lane, state, len(tickets))
            lane.begin(slots, tickets, [ticket.request for ticket in tickets], tickets[0].options)
            self._given_up.extend(ticket for ticket in tickets if ticket.future.done())
        except Exception as error:
            self._fail(kind, error, tickets)

    def _step(self, kind: Kind) -> None:
        """Run one step of a lane, and end the requests that have ended; a lane without requests is closed."""
        lane = self._lanes[kind]
        try:
            ended = lane.step()
        except Exception as error:
            self._fail(kind, error)
            return
        self._stats.steps += 1
        self._time_first(self._new.pop(kind, []))
        self._end(ended)
        for group in lane.groups:
            if group.targets is not None and any(ticket.watchers for ticket in group.items):
                for ticket, tokens in zip(group.items, group.targets.certain(), strict=True):
                    ticket.grow(tokens)
        if not lane.groups:
            del self._lanes[kind]
            return
        free = lane.slots - np.count_nonzero(lane.is_taken)
        if free >= WORTH_SHRINKING * lane.slots and self._quiet >= SETTLED:
            lane.shrink()

    def _time_first(self, tickets: list[Ticket]) -> None:
        now = time.monotonic()
        for ticket in tickets:
            ticket.times.first_token = now
            self._stats.first_token_seconds += now - ticket.times.submitted
        self._stats.first_tokens += len(tickets)

    def _end(self, ended: Sequence[tuple[Ticket, Outcome]]) -> None:
        for ticket, outcome in ended:
            ticket.end(outcome)
        if ended:
            now = time.monotonic()
            if self._last_end is not None:
                self._pace += PACE * ((now - self._last_end) / len(ended) - self._pace)
            self._last_end = now

    def _fail(self, kind: Kind, error: Exception, more: Sequence[Ticket] = ()) -> None:
        """End all requests of a lane with an error of the runtime; the next ones get a new state."""
        lane = self._lanes.pop(kind)
        self._new.pop(kind, None)
        tickets = {id(ticket): ticket for group in lane.groups for ticket in group.items}
        tickets |= {id(ticket): ticket for ticket in more}
        self._end([(ticket, error) for ticket in tickets.values() if not ticket.future.done()])


def finished(work: Callable[[], State]) -> Future[State]:
    """Return the future of work that is done now."""
    future: Future[State] = Future()
    try:
        future.set_result(work())
    except Exception as error:
        future.set_exception(error)
    return future


def place(lane: Lane[Ticket], state: State, count: int) -> Ints:
    """Put the `count` sources of a new state into slots of a lane, which grows if it must; return the slots (N,)."""
    every = np.arange(count)
    if not lane.slots:
        lane.open(state, count)
        return every
    free = np.flatnonzero(~lane.is_taken)
    slots = np.concatenate([free, lane.slots + np.arange(max(count - len(free), 0))])[:count]
    if slots[-1] >= lane.slots:
        lane.extend(int(slots[-1]) + 1)
    lane.admit(slots, state, every)
    return slots
