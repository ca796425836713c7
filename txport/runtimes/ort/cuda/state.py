"""The state of a running batch on a device: its layout, the host's view of it, and the queued steps.

Letters: B sources, K rows per source, R = B x K rows, S source length, M capacity.
"""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from txport.runtimes.base import Ints
from txport.runtimes.ort.cuda.ahead import Ahead
from txport.runtimes.ort.cuda.workspace import Workspace, Workspaces
from txport.targets.ports import ALL_ROWS, BATCH, BEAMS, ROOM, SOURCE


class CudaState:
    """State of a running batch. Each source has `width` slots for rows; unused sources and slots are computed too.

    `lengths` (R,) are the tokens in the caches, 0 for unused slots. `on_device` (R,) are the lengths on the device,
    including queued steps; None if unknown. Until its first step, a state is in a workspace for encoding. `encoded`
    marks the end of encoding until the main queue waits for it.
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
        self.rows_side = self.source_side = 0  # which of the two slabs has the caches
        self.is_clean = False  # whether the rows' caches have no content of another batch
        self.has_nan = False  # whether a row's scores were NaN, which would remain in its caches
        self.ahead = Ahead()

    def _lie_in(self, workspaces: Workspaces, workspace: Workspace) -> None:
        self.workspace = workspace
        self._end = weakref.finalize(self, workspaces.give_back, self.workspace)
        self._end.atexit = False

    def move(self, workspaces: Workspaces, workspace: Workspace) -> Workspace:
        """Use another workspace, which returns to `workspaces`; return the old one, which the caller must give back."""
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
        """The number of cache positions in use: the length of the longest row."""
        return int(self.lengths.max(initial=0))

    @property
    def limit(self) -> int:
        """The maximum length of a slot: there are no cache positions beyond it."""
        return min(self.capacity, self.max_length)

    @property
    def shape(self) -> tuple[int, ...]:
        """All values that determine the addresses and shapes of the tensors."""
        return self.batch, self.width, self.capacity, self.places, self.rows_side, self.source_side

    @property
    def dims(self) -> dict[str, int]:
        """The dynamic dims of ports, by name."""
        return {BATCH: self.batch, BEAMS: self.width, ALL_ROWS: self.size, ROOM: self.capacity, SOURCE: self.places}

    @property
    def sources(self) -> Ints:
        """The indices of the sources that the caller's rows belong to, ascending."""
        return np.unique(self.slots // self.width)
