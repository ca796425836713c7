"""On which threads a device runs graphs: ONNX Runtime keeps what it captures by thread, for as long as its session.

So each new thread would capture all shapes anew, and none of that would ever be freed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait


class Threads:
    """The thread that makes this runs graphs by itself; for all others, one of ours does."""

    def __init__(self) -> None:
        self._here = threading.local()  # by its number, a thread might be one that ended
        self._lock = threading.Lock()
        self._here.is_first = True
        self._ours: ThreadPoolExecutor | None = None
        self._captured: tuple[set[int], set[int]] = set(), set()

    @property
    def captured(self) -> set[int]:
        """The graphs that were captured where this thread's are run."""
        return self._captured[self._is_first]

    def run(self, work: Callable[[], None]) -> None:
        """Do something on the thread for it, and wait until it is done, also where the wait is interrupted."""
        if self._is_first:
            work()
            return
        with self._lock:
            self._ours = self._ours or ThreadPoolExecutor(1, "txport-device")
        future = self._ours.submit(work)
        try:
            future.result()
        finally:
            wait((future,))

    @property
    def _is_first(self) -> bool:
        return getattr(self._here, "is_first", False)
