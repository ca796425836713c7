"""The requests of a live engine, and its statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

from txport.models.audio import Features
from txport.models.facts import Facts
from txport.runtimes.inputs import Source
from txport.search.lanes import GenerationRequest, Kind, Outcome, kind_of
from txport.search.options import Found, SearchOptions

AGEING = 1.0  # seconds of waiting that count as much as one step of priority


@dataclass
class Stats:
    """Statistics of a live engine: what it does now, and totals since its start.

    `running` of at most `slots` requests hold `rows` rows in `lanes` states, and `waiting` requests wait. `steps` are
    those of the runtime, `tokens` those of the best hypotheses of finished requests, `prompt_tokens` those of their
    sources. Requests are `finished`, `cancelled`, `failed` (with `expired` deadlines among them), or were `refused` by
    a full queue. `first_token_seconds` is the sum of the times to first tokens, of `first_tokens` requests;
    `seconds` is the sum of the times of finished requests; both count from submission.
    """

    running: int = 0
    waiting: int = 0
    slots: int = 0
    rows: int = 0
    lanes: int = 0
    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    expired: int = 0
    refused: int = 0
    first_tokens: int = 0
    first_token_seconds: float = 0.0
    seconds: float = 0.0


@dataclass
class Times:
    """When a request was submitted, admitted, had its first token, and ended: `time.monotonic()`, or None."""

    submitted: float = field(default_factory=time.monotonic)
    admitted: float | None = None
    first_token: float | None = None
    ended: float | None = None


class Ticket:
    """A request of an engine: its source, prefix and options, and the future of its hypotheses.

    `deadline` is the time by which it must have ended. `tokens` is the certain beginning of its target, if a function
    of `watchers` is called when it grows. `leave` is called before a caller can see the outcome.
    """

    def __init__(
        self,
        source: Source,
        prefix: Sequence[int],
        options: SearchOptions,
        facts: Facts,
        priority: int = 0,
        seconds: float | None = None,
    ) -> None:
        self.request: GenerationRequest = (source, prefix)
        self.options = options
        self.times = Times()
        self.kind: Kind = kind_of(options, facts)
        self.size = facts.reads.longest if isinstance(facts.reads, Features) else len(source)
        self.order = self.times.submitted - priority * AGEING  # the first is admitted first
        self.deadline = None if seconds is None else self.times.submitted + seconds
        self.future: Future[list[Found]] = Future()
        self.is_waiting = True
        self.tokens: tuple[int, ...] = ()
        self.watchers: tuple[Callable[[], None], ...] = ()
        self.leave: Callable[[Ticket, Outcome], None] = lambda *_: None

    @property
    def group(self) -> object:
        """Requests of one group are searched as one batch: their options are equal, and no processor sees others."""
        return self if self.options.logits_processor is not None else (self.kind, self.options)

    def grow(self, tokens: tuple[int, ...]) -> None:
        """Set the certain tokens, and call the watchers if there are more."""
        if tokens != self.tokens:
            self.tokens = tokens
            for watcher in self.watchers:
                watcher()

    def end(self, outcome: Outcome) -> bool:
        """Set the result or the error; return False if the request has ended before."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return False
        self.times.ended = time.monotonic()
        self.leave(self, outcome)
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)
        return True


class Cancellation:
    """Cancels the requests of a transcription, from any thread: those that it has now, and all later ones."""

    def __init__(self) -> None:
        self._tickets: Sequence[Ticket] = ()
        self._is_set = False

    def set(self) -> None:
        """Cancel the requests."""
        self._is_set = True
        for ticket in self._tickets:
            ticket.future.cancel()

    def watch(self, tickets: Sequence[Ticket]) -> None:
        """Take the next requests; raise `CancelledError` if they are not wanted any more."""
        self._tickets = tickets
        if self._is_set:
            raise CancelledError
