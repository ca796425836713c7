"""The threads on which a device runs graphs.

ONNX Runtime stores captured graphs per thread, for the lifetime of the session. If each new thread ran graphs, it
would capture all shapes again, and their memory would never be freed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait


class Threads:
    """The thread that creates this object runs its own graphs; one worker thread runs those of all other threads."""

    def __init__(self) -> None:
        self._here = threading.local()  # not by thread id, because ids are reused
        self._lock = threading.Lock()
        self._here.is_first = True
        self._ours: ThreadPoolExecutor | None = None
        self._captured: tuple[set[int], set[int]] = set(), set()

    @property
    def captured(self) -> set[int]:
        """The graphs captured on the thread that runs this thread's graphs."""
        return self._captured[self._is_first]

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on the thread for it, and wait until it is done, even if the wait is interrupted."""
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
