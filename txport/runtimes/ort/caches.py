"""The memory of a batch at work on the cpu target: keys and values of sources and of rows, and where rows lie.

Letters: B sources, K beams, R = B x K rows, L layers, G key/value heads, M capacity, H head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Ints
from txport.runtimes.ort.pool import Hold

if TYPE_CHECKING:
    from txport.runtimes.ort.fused import Binding


@dataclass
class Source:
    """The keys and values of B sources (2 L, B, N, S, H), and their lengths (B,) int32."""

    hold: Hold
    caches: NDArray[np.float32]
    lengths: NDArray[np.int32]


@dataclass
class Rows:
    """The keys and values of R rows (2 L, R, N, M, H); which of all writes each place of each row is: (R, M)."""

    hold: Hold
    caches: NDArray[np.float32]
    origin: Ints


class FusedState:
    """A batch at work: its memory, and the binding of the step graph to it."""

    def __init__(self, source: Source, rows: Rows, max_length: int) -> None:
        self.source = source
        self.rows = rows
        self.beams = 1
        self.max_length = max_length
        self.place(np.arange(len(source.lengths)))
        self.lengths = np.zeros(len(source.lengths), np.int32)  # of each slot: (R,)
        self.writes = 0
        self.binding: Binding | None = None

    def place(self, slots: Ints) -> None:
        """Let the caller's rows lie in these slots; the others rest."""
        self.slots, self.is_full = slots, np.array_equal(slots, np.arange(self.size))

    @property
    def size(self) -> int:
        """R, the number of slots."""
        return len(self.source.lengths) * self.beams

    @property
    def length(self) -> int:
        """How many places of the buffers are in use: those of the longest row."""
        return int(self.lengths.max(initial=0))


def pick_sources(source: Source, chosen: Ints) -> Source:
    """Some of the sources, in their order; they move up where they lie."""
    for place, row in enumerate(chosen):
        if place != row:
            source.caches[:, place] = source.caches[:, row]
    return Source(source.hold, source.caches[:, : len(chosen)], source.lengths[chosen])


def move(rows: Rows, chosen: Ints, length: int) -> None:
    """Let row i be what row `chosen[i]` was; places that hold the same already stay, and nothing is copied twice."""
    if length == 0:
        return
    wanted = rows.origin[chosen, :length]
    present = rows.origin[: len(chosen), :length]
    different = wanted != present
    starts = different.argmax(axis=1)
    caches = rows.caches
    pending = {int(row): int(chosen[row]) for row in np.flatnonzero(different.any(axis=1))}

    def fill(row: int, content: NDArray[np.float32]) -> None:
        caches[:, row, :, starts[row] : length] = content[:, :, starts[row] : length]

    while pending:
        needed = set(pending.values())
        free = [row for row in pending if row not in needed]
        for row in free:
            fill(row, caches[:, pending.pop(row)])
        if not free:  # rows in circles: one steps aside, and the others follow
            first = row = next(iter(pending))
            aside = caches[:, first, :, :length].copy()
            while (source := pending.pop(row)) != first:
                fill(row, caches[:, source])
                row = source
            fill(row, aside)
    rows.origin[: len(chosen), :length] = wanted
