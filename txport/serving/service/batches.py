"""Requests of encoder-only models: one thread runs what waits together as one batch.

The other items of a batch do not change a result, so that each is that of its request alone.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from txport.errors import EngineError, QueueFullError, TextError

Work = Callable[..., Sequence[object]]  # (items, **options) -> a result for each item


@dataclass
class Job:
    """The items of one request, and the results so far, in order."""

    work: Work
    items: Sequence[object]
    options: Mapping[str, object]
    future: Future[list[object]] = field(default_factory=Future)
    taken: int = 0
    results: list[object] = field(default_factory=list)

    def is_like(self, other: Job) -> bool:
        """Return whether both can be one batch."""
        return self.work == other.work and self.options == other.options


class Batches:
    """A queue of items and the thread that runs them, `size` together; at most `queue` items wait."""

    def __init__(self, size: int, queue: int) -> None:
        self._size = size
        self._queue = queue
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._waiting = 0
        self._running = 0
        self._seconds = 0.0  # of an item, smoothed
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="txport-batches", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether items are taken."""
        return not self._is_closed

    @property
    def waiting(self) -> int:
        """The number of items that wait."""
        return self._waiting

    @property
    def running(self) -> int:
        """The number of items in the batch that runs."""
        return self._running

    def full(self, count: int = 1) -> QueueFullError | None:
        """Return the error of `count` more items, or None if there is room for them."""
        if self._waiting + count <= self._queue:
            return None
        wait = self._waiting * self._seconds
        return QueueFullError(f"the queue is full, with {self._waiting} inputs; try again later", wait)

    def submit(self, work: Work, items: Sequence[object], options: Mapping[str, object]) -> Future[list[object]]:
        """Return the future results of `work(items, **options)`, which runs in batches; cancelling it removes the rest.

        Raises `QueueFullError` if the queue has no room, and `TextError` for more items than it ever has room for.
        """
        if len(items) > self._queue:
            raise TextError(f"a request may have {self._queue} inputs, this one has {len(items)}; send several")
        job = Job(work, items, options)
        with self._changed:
            if self._is_closed:
                raise EngineError("this model is closed; send the request again")
            if (full := self.full(len(items))) is not None:
                raise full
            if items:
                self._jobs.append(job)
                self._waiting += len(items)
                self._changed.notify()
            else:
                job.future.set_result([])
        return job.future

    def close(self) -> None:
        """End the thread after the batch that runs; whatever waits fails."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while taken := self._take():
                begin = time.perf_counter()
                count = sum(len(items) for _, items in taken)
                _work_off(taken)
                spent = (time.perf_counter() - begin) / count
                self._seconds = spent if not self._seconds else 0.9 * self._seconds + 0.1 * spent
                self._running = 0
        finally:
            self._fail_all()

    def _take(self) -> list[tuple[Job, Sequence[object]]]:
        """Wait for items, and return those of the next batch by job; [] at the end."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._is_closed)
                self._drop_done()
                if self._is_closed:
                    return []
                if self._jobs:
                    return self._next()

    def _next(self) -> list[tuple[Job, Sequence[object]]]:
        found: list[tuple[Job, Sequence[object]]] = []
        room = self._size
        for job in [each for each in self._jobs if each.is_like(self._jobs[0])]:
            if not room:
                break
            items = job.items[job.taken : job.taken + room]
            job.taken += len(items)
            room -= len(items)
            found.append((job, items))
            if job.taken == len(job.items):
                self._jobs.remove(job)
        self._running = self._size - room
        self._waiting -= self._running
        return found

    def _drop_done(self) -> None:
        """Remove the jobs that failed or were cancelled."""
        for job in [each for each in self._jobs if each.future.done()]:
            self._jobs.remove(job)
            self._waiting -= len(job.items) - job.taken

    def _fail_all(self) -> None:
        with self._changed:
            self._is_closed = True
            for job in self._jobs:
                _fail(job, EngineError("this model was closed while the request waited; send it again"))
            self._jobs.clear()
            self._waiting = self._running = 0


def _work_off(taken: Sequence[tuple[Job, Sequence[object]]]) -> None:
    """Run a batch; if it fails, each job alone, so that an error is that of one request."""
    first = taken[0][0]
    try:
        found = iter(first.work([item for _, items in taken for item in items], **first.options))
        for job, items in taken:
            _give(job, [next(found) for _ in items])
    except Exception as error:
        if len(taken) == 1:
            _fail(first, error)
            return
        for one in taken:
            _work_off([one])


def _give(job: Job, results: list[object]) -> None:
    job.results += results
    is_whole = len(job.results) == len(job.items)
    if is_whole and not job.future.done() and job.future.set_running_or_notify_cancel():
        job.future.set_result(job.results)


def _fail(job: Job, error: Exception) -> None:
    if not job.future.done() and job.future.set_running_or_notify_cancel():
        job.future.set_exception(error)
