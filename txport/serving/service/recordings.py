"""Requests of speech models: each recording has a thread, and the windows of all are requests of one engine."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import cast

from txport.api.transcription import Transcribing, Transcript
from txport.errors import QueueFullError
from txport.serving.engine import Engine
from txport.serving.tickets import Cancellation

TOGETHER = 8  # recordings that are read and transcribed together, if the engine has a slot for each


class Recording:
    """A recording that waits or is transcribed; `future` is its transcript."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.cancellation = Cancellation()
        self.future: Future[list[Transcript]]

    def cancel(self) -> None:
        """Give the recording up: one that runs ends, one that waits leaves no content."""
        self.content = b""
        self.cancellation.set()
        self.future.cancel()


class Recordings:
    """Transcribes the contents of audio files; at most `queue` wait, and all have up to `size` bytes together."""

    def __init__(self, engine: Engine, slots: int, queue: int, size: int) -> None:
        self._engine = engine
        self._together = min(TOGETHER, slots)
        self._queue = queue
        self._size = size
        self._threads = ThreadPoolExecutor(self._together, thread_name_prefix="txport-recordings")
        self._changing = threading.Lock()
        self._count = 0
        self._held = 0  # bytes

    @property
    def waiting(self) -> int:
        """The number of recordings that wait for a thread."""
        return max(0, self._count - self._together)

    def submit(self, content: bytes, options: Mapping[str, object]) -> Recording:
        """Return the recording, to be transcribed; raise `QueueFullError` if too many, or too many bytes, are here."""
        with self._changing:
            if self._count >= self._together + self._queue or self._held + len(content) > self._size:
                what = f"{self.waiting} recordings, and {self._held} bytes with those that run"
                raise QueueFullError(f"the queue is full, with {what}; try again later")
            self._count += 1
            self._held += len(content)
        recording = Recording(content)
        recording.future = self._threads.submit(self._run, recording, options)
        recording.future.add_done_callback(partial(self._leave, len(content)))
        return recording

    def close(self) -> None:
        """Drop the recordings that wait; the others end with the engine."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, recording: Recording, options: Mapping[str, object]) -> list[Transcript]:
        cancellation = recording.cancellation
        return self._engine.transcribe(recording.content, cancellation=cancellation, **cast(Transcribing, options))

    def _leave(self, size: int, _: Future[list[Transcript]]) -> None:
        with self._changing:
            self._count -= 1
            self._held -= size
