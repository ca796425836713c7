"""A time budget for several tasks: a task starts only if the remaining time may be enough, and stops at the limit."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from txport.errors import TxportError
from txport.system.progress import Progress, logged

Result = TypeVar("Result")
MARGIN = 1.25  # factor on the time of the last task of the same kind


class TimeUp(BaseException):
    """The limit was reached during a task; not an `Exception`, which libraries would catch."""


@contextlib.contextmanager
def cut_off(seconds: float) -> Iterator[None]:
    """Raise `TimeUp` in the block after `seconds`; only in the main thread, and only if the system has timers."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, end)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))  # 0 would be no timer
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Budget:
    """A budget of seconds that starts now; `left_out` and `failed` record the tasks without a result."""

    def __init__(
        self, seconds: float, progress: Progress = logged, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._progress = progress
        self._end = clock() + seconds
        self._taken: dict[str, float] = {}  # kind -> seconds of the last task
        self.left_out: list[str] = []
        self.failed: dict[str, str] = {}

    @property
    def left(self) -> float:
        """The seconds until the limit."""
        return self._end - self._clock()

    def presumed(self, kind: str, seconds: float) -> float:
        """Return the expected time of the next task of a kind: `MARGIN` times that of the last one, or `seconds`."""
        return MARGIN * self._taken[kind] if kind in self._taken else seconds

    def run(self, name: str, kind: str, seconds: float, work: Callable[[], Result]) -> Result | None:
        """Return the result of `work`; None if it did not run, was cut off or failed, which is recorded.

        `seconds` is the expected time of the first task of its kind.
        """
        if self.left < (needed := self.presumed(kind, seconds)):
            self.left_out.append(name)
            self._progress(f"left out: {name}, which takes {needed:.0f} s; {max(self.left, 0):.0f} s are left")
            return None
        self._progress(name)
        started = self._clock()
        try:
            with cut_off(self.left):
                return work()
        except TimeUp:
            self.left_out.append(f"{name}, cut off after {self._clock() - started:.0f} s")
            self._progress(f"cut off: {name}")
            return None
        except TxportError as error:
            self.failed[name] = str(error)
            self._progress(f"failed: {name}: {error}")
            return None
        finally:
            self._taken[kind] = self._clock() - started
