"""Parts of a batch of an encoder, each computed by one thread.

Threads that compute one part each are faster than threads that share every operator: between the products of few bits,
most operators are too small to share, and the activations of a part fit a core's caches (docs/cpu-target.md).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from txport.runtimes.base import Ints
from txport.runtimes.ort.sessions import Sessions

TOKENS = 256  # of a part, padding included
# Tokens of the longest text. The memory of scores grows with its square, and each thread would hold those of one.
LONGEST = 512
TOGETHER = 4  # attention sums over blocks of so many source positions, and over the rest in another order
MOST_HELD_TWICE = 128 << 20  # bytes of weights that the kernels of two sessions may hold

Compute = Callable[[Sessions, slice, int], None]  # sessions of one thread, rows, and their length with padding


class Parts:
    """Computes batches in parts, with sessions of one thread that `start` starts for the first batch."""

    def __init__(self, start: Callable[[], Sessions], threads: int) -> None:
        self._start = start
        self._threads = threads
        self._sessions: Sessions | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._lock = Lock()

    def run(self, compute: Compute, lengths: Ints) -> None:
        """Call `compute` for all rows of a batch, which have `lengths` (B,); raise the first error after all calls."""
        with self._lock:
            if self._sessions is None:
                self._sessions = self._start()
                self._pool = ThreadPoolExecutor(self._threads, "txport-part")
            sessions, pool = self._sessions, self._pool
        assert pool is not None
        calls = [pool.submit(compute, sessions, rows, width) for rows, width in parts_of(lengths, self._threads)]
        errors = [error for each in calls if (error := each.exception()) is not None]
        if errors:
            raise errors[0]


def parts_of(lengths: Ints, threads: int) -> list[tuple[slice, int]]:
    """Return the rows of each part of a batch, and their length with padding.

    There are as many parts as threads, or more, so that a part has at most `TOKENS` tokens or one row.
    """
    count = max(1, min(-(-len(lengths) // threads), TOKENS // int(lengths.max())))
    parts = [slice(first, first + count) for first in range(0, len(lengths), count)]
    return [(rows, -(-int(lengths[rows].max()) // TOGETHER) * TOGETHER) for rows in parts]
