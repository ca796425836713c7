"""Requests of speech models: each recording has a thread, and the windows of all are requests of one engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

from txport.api.transcription import Transcribing, Transcript
from txport.errors import QueueFullError
from txport.serving.engine import Engine

TOGETHER = 8  # recordings that are read and transcribed together


class Recordings:
    """Transcribes the contents of audio files with an engine; at most `queue` wait."""

    def __init__(self, engine: Engine, queue: int) -> None:
        self._engine = engine
        self._queue = queue
        self._threads = ThreadPoolExecutor(TOGETHER, thread_name_prefix="txport-recordings")
        self._changing = threading.Lock()
        self._count = 0

    @property
    def waiting(self) -> int:
        """The number of recordings that wait for a thread."""
        return max(0, self._count - TOGETHER)

    def submit(self, content: bytes, options: Mapping[str, object]) -> Future[list[Transcript]]:
        """Return the future transcript; cancelling it removes a recording that waits.

        Raises `QueueFullError` if too many wait.
        """
        with self._changing:
            if self._count >= TOGETHER + self._queue:
                raise QueueFullError(f"the queue is full, with {self.waiting} recordings; try again later")
            self._count += 1
        future = self._threads.submit(self._engine.transcribe, content, **cast(Transcribing, options))
        future.add_done_callback(self._leave)
        return future

    def close(self) -> None:
        """Wait until all recordings are transcribed."""
        self._threads.shutdown()

    def _leave(self, _: Future[list[Transcript]]) -> None:
        with self._changing:
            self._count -= 1
