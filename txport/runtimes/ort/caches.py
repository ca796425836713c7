"""The key/value caches of a running batch on the cpu target, and the slots of its rows.

Letters: B sources, K beams, R = B x K rows, L layers, N heads, G key/value heads, S source length, M capacity, H head
size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Ints
from txport.system.arrays import Hold

if TYPE_CHECKING:
    from txport.runtimes.ort.fused import Binding


@dataclass
class Source:
    """The cross-attention keys and values of B sources (2 L, B, N, S, H), and their lengths (B,) int32.

    They are the first of `room`, which has room for more sources.
    """

    hold: Hold
    room: NDArray[np.float32]
    lengths: NDArray[np.int32]

    @property
    def caches(self) -> NDArray[np.float32]:
        """The keys and values: (2 L, B, N, S, H)."""
        return self.room[:, : len(self.lengths)]


@dataclass
class Rows:
    """The self-attention keys and values of R rows (2 L, R, G, M, H).

    `origin` (R, M) is the number of the write that each position has: equal numbers have equal contents.
    """

    hold: Hold
    caches: NDArray[np.float32]
    origin: Ints


class Ready(NamedTuple):
    """The last token of a prompt, and the logits (V,) that the prompt's run has computed after it."""

    token: int
    logits: NDArray[np.float32]


class FusedState:
    """State of a running batch: its memory, and the binding of the step graph to it."""

    def __init__(self, source: Source, make_rows: Callable[[], Rows], max_length: int) -> None:
        self.source = source
        self._rows: Rows | None = None
        self._make_rows = make_rows  # at first use: a state whose sources are admitted to another one needs none
        self.beams = 1
        self.max_length = max_length
        self.place(np.arange(len(source.lengths)))
        self.lengths = np.zeros(len(source.lengths), np.int32)  # tokens in each slot (R,)
        self.writes = 0
        self.ready: dict[int, Ready] = {}  # what the first step returns, by slot
        self.binding: Binding | None = None

    @property
    def rows(self) -> Rows:
        """The keys and values of the rows."""
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    @rows.setter
    def rows(self, rows: Rows) -> None:
        self._rows = rows

    def place(self, slots: Ints) -> None:
        """Put the caller's rows into these slots; the other slots are unused."""
        self.slots, self.is_full = slots, np.array_equal(slots, np.arange(self.size))

    @property
    def size(self) -> int:
        """R, the number of slots."""
        return len(self.source.lengths) * self.beams

    @property
    def length(self) -> int:
        """The number of cache positions in use: the length of the longest row."""
        return int(self.lengths.max(initial=0))


def pick_sources(source: Source, chosen: Ints) -> Source:
    """Return the chosen sources (ascending), moved to the front of the same memory."""
    for place, row in enumerate(chosen):
        if place != row:
            source.room[:, place] = source.room[:, row]
    return Source(source.hold, source.room, source.lengths[chosen])


def put_rows(
    caches: NDArray[np.float32], places: Ints | slice, others: NDArray[np.float32], chosen: Ints | slice, length: int
) -> None:
    """Copy `length` positions of rows of other caches (2 L, R, G, M, H) to places of these.

    One tensor at a time, because an index makes a copy: new memory takes longer than copying.
    """
    for new, old in zip(caches, others, strict=True):
        new[places, :, :length] = old[chosen, :, :length]


def move(rows: Rows, chosen: Ints, length: int) -> None:
    """Copy the old row `chosen[i]` to row i, in place, for the first `length` positions.

    Only positions from the first difference on are copied, each at most once, except in cycles of rows.
    """
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
        if not free:  # only cycles are left: copy one row aside, then move the others
            first = row = next(iter(pending))
            aside = caches[:, first, :, :length].copy()
            while (source := pending.pop(row)) != first:
                fill(row, caches[:, source])
                row = source
            fill(row, aside)
    rows.origin[: len(chosen), :length] = wanted
