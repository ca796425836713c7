"""A batch at work on a device: how its tensors lie, what the host knows of them, and what is under way.

Letters: B sources, K rows of each, R = B x K rows, S source length, M capacity.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from txport.bundles.ports import ALL_ROWS, BATCH, BEAMS, ROOM, SOURCE
from txport.runtimes.base import Ints
from txport.runtimes.ort.cuda.ahead import Ahead
from txport.runtimes.ort.cuda.workspace import Workspace, Workspaces


class CudaState:
    """Rows of the caller lie in slots, of which each source has as many; sources and slots that rest are computed too.

    `lengths` (R,) are tokens in the caches, 0 for slots that rest. `on_device` (R,) are those that the device counts,
    also for what is under way; None where nobody knows. Until its first step, a state lies in memory where sources are
    encoded; `encoded` marks when they are, as long as nothing follows that.
    """

    def __init__(
        self, workspaces: Workspaces, batch: int, places: int, capacity: int, max_length: int, count: int
    ) -> None:
        self._lie_in(workspaces, workspaces.take())
        self.encoded: Any = None
        self.is_settled = True
        self.batch = batch
        self.width = 1
        self.places = places
        self.max_length = max_length
        self.capacity = capacity
        self.slots = np.arange(count)
        self.lengths = np.zeros(batch, np.int64)
        self.source_lengths = np.ones(batch, np.int64)
        self.on_device: Ints | None = None
        self.rows_side = self.source_side = 0  # which of both slabs holds the caches
        self.is_clean = False  # whether the rows' caches are free of what another batch left
        self.has_nan = False  # whether logits of a row were NaN, which would stay in its caches
        self.ahead = Ahead()

    def _lie_in(self, workspaces: Workspaces, workspace: Workspace) -> None:
        self.workspace = workspace
        self._end = weakref.finalize(self, workspaces.give_back, self.workspace)
        self._end.atexit = False

    def move(self, workspaces: Workspaces, workspace: Workspace) -> Workspace:
        """Lie in another workspace from now on, one of these; -> what it lay in, which the caller gives back."""
        old = self.workspace
        self._end.detach()
        self._lie_in(workspaces, workspace)
        return old

    @property
    def size(self) -> int:
        """R, the number of slots."""
        return self.batch * self.width

    @property
    def length(self) -> int:
        """How many places of the caches are in use: those of the longest row."""
        return int(self.lengths.max(initial=0))

    @property
    def limit(self) -> int:
        """Up to which length a slot may count: no cache and no position lies behind."""
        return min(self.capacity, self.max_length)

    @property
    def shape(self) -> tuple[int, ...]:
        """All that the addresses and shapes of its tensors follow from."""
        return self.batch, self.width, self.capacity, self.places, self.rows_side, self.source_side

    @property
    def dims(self) -> dict[str, int]:
        """The dynamic dims of ports, by name."""
        return {BATCH: self.batch, BEAMS: self.width, ALL_ROWS: self.size, ROOM: self.capacity, SOURCE: self.places}

    @property
    def sources(self) -> Ints:
        """Those that any of the caller's rows belongs to, in order."""
        return np.unique(self.slots // self.width)
