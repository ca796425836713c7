"""Key/value caches of rows and sources on the device, and the graphs that move them.

Letters: B sources, K rows per source, R = B x K rows, S source length, M capacity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from txport.models.facts import Owner
from txport.runtimes.base import Ints
from txport.runtimes.ort.cuda.device import Device, Tensor, bind
from txport.runtimes.ort.cuda.graphs import Graphs
from txport.runtimes.ort.cuda.state import CudaState
from txport.runtimes.ort.cuda.workspace import Workspace
from txport.targets import ports
from txport.targets.ports import Port

SELECT: dict[Owner, str] = {"row": ports.SELECT_ROWS, "source": ports.SELECT_SOURCES}
GROW: dict[Owner, str] = {"row": ports.GROW_ROWS, "source": ports.GROW_SOURCES}
ADMIT: dict[Owner, str] = {"row": ports.ADMIT_ROWS, "source": ports.ADMIT_SOURCES}
COUNTED: dict[Owner, str] = {"row": ports.ALL_ROWS, "source": ports.BATCH}  # dims for their number
LENGTHS: dict[Owner, str] = {"row": ports.ROOM, "source": ports.SOURCE}  # dims for their lengths


class Caches:
    """The caches of rows and of sources of running batches. An `owner` is "row" or "source"."""

    def __init__(self, device: Device, graphs: Graphs) -> None:
        self._device = device
        self._sessions = graphs.sessions
        kept = [port for port in graphs.described[ports.STEP].inputs if port.state is not None]
        owners: tuple[Owner, ...] = ("row", "source")
        self._ports: dict[Owner, list[Port]] = {
            owner: [port for port in kept if port.state is not None and port.state.owner == owner] for owner in owners
        }

    def names(self, owner: Owner) -> list[str]:
        """Return the names of the step graph's inputs for the caches of an owner."""
        return [port.name for port in self._ports[owner]]

    def tensors(
        self, state: CudaState, owner: Owner, workspace: Workspace | None = None, /, *, other: bool = False, **dims: int
    ) -> list[Tensor]:
        """Return the caches of an owner in the order of the ports.

        `other` returns those in the other slab, where results are written, and `dims` replace dims of the state. A
        `workspace` returns those that the state would have there.
        """
        side = (state.rows_side if owner == "row" else state.source_side) ^ other
        lengths = {**state.dims, **dims}
        return (workspace or state.workspace).tensors(f"{owner}s {side}", self._ports[owner], lengths)

    def span(self, state: CudaState, owner: Owner, workspace: Workspace | None = None) -> Tensor:
        """Return all caches of an owner as one tensor of bytes, with the gaps between them."""
        every = self.tensors(state, owner, workspace)
        return every[0]._replace(shape=(every[-1].offset + every[-1].size,), dtype="uint8")

    def clear_rows(self, state: CudaState) -> None:
        """Set the rows' caches to zero if another batch used them: NaN remains NaN even if it is masked."""
        if not state.is_clean:
            for tensor in self.tensors(state, "row"):
                self._device.clear(tensor)
            state.is_clean = True

    def clear_slots(self, state: CudaState, slots: Ints) -> None:
        """Set the caches of some slots to zero."""
        for tensor in self.tensors(state, "row"):
            size = tensor.size // tensor.shape[0]
            for slot in slots.tolist():
                part = tensor._replace(offset=tensor.offset + slot * size, shape=(1, *tensor.shape[1:]))
                self._device.clear(part)

    def select(self, state: CudaState, owner: Owner, chosen: Ints) -> list[Tensor]:
        """Gather chosen rows or sources into the other slab, which `flip` then makes the state's, and return them."""
        dims = {COUNTED[owner]: len(chosen)}
        picked = self.tensors(state, owner, other=True, **dims)
        rows = self._rows(state, chosen)
        self._run(state, SELECT[owner], owner, {ports.ROWS: rows}, "selected", picked, {}, len(chosen))
        return picked

    def grow(self, state: CudaState, owner: Owner, length: int) -> None:
        """Make room for rows or sources of `length` positions."""
        before = state.capacity if owner == "row" else state.places
        if length == before:
            return
        if owner == "source" or state.is_clean:  # unwritten rows need no copy
            grown = self.tensors(state, owner, other=True, **{LENGTHS[owner]: length})
            more = {ports.MORE: np.array([length - before])}
            self._run(state, GROW[owner], owner, {}, "grown", grown, more, length)
            self.flip(state, owner)
        if owner == "row":
            state.capacity = length
        else:
            state.places = length

    def admit(self, state: CudaState, owner: Owner, rows: Ints, others: list[Tensor]) -> None:
        """Overwrite the given rows or sources with `others`, which have the same number and length."""
        names = self.names(owner)
        given = {
            ports.ROWS: self._rows(state, rows),
            **{f"others.{name}": each for name, each in zip(names, others, strict=True)},
        }
        present = self.tensors(state, owner)
        addresses = tuple(each.address for each in others)
        self._run(state, ADMIT[owner], owner, given, "admitted", present, {}, (len(rows), addresses))

    def flip(self, state: CudaState, owner: Owner) -> None:
        """Make the other slab the state's."""
        if owner == "row":
            state.rows_side ^= 1
        else:
            state.source_side ^= 1

    def _rows(self, state: CudaState, chosen: Ints) -> Tensor:
        rows = state.workspace.tensor("chosen", (len(chosen),), "int64")
        self._device.upload(chosen, rows)
        return rows

    def _run(
        self,
        state: CudaState,
        role: str,
        owner: Owner,
        given: Mapping[str, Tensor],
        prefix: str,
        results: Sequence[Tensor],
        host: Mapping[str, Any],
        detail: object,
    ) -> None:
        """Run a graph over the caches, bound once per state shape and `detail`."""
        names = self.names(owner)
        past = self.tensors(state, owner)
        outputs = {f"{prefix}.{name}": each for name, each in zip(names, results, strict=True)}
        inputs = {**dict(zip(names, past, strict=True)), **given}
        bound = state.workspace.bound(
            (role, *state.shape, detail), lambda: bind(self._device, role, self._sessions[role], inputs, outputs, host)
        )
        self._device.run(bound.binding)
