"""The driver of cuda bundles: a step is a replay of a captured graph, and only its best tokens are copied back.

Sources, rows and lengths are rounded up to buckets, so that few graphs are captured. A batch is compacted when it
fits the next smaller bucket. Steps are queued ahead of requests (`ahead`). States are changed in place.
Letters: B sources, K rows per source, R = B x K rows, S source length, T tokens, M capacity, V vocabulary size.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.errors import UnsupportedError
from txport.models.audio import Features
from txport.models.facts import Facts
from txport.runtimes.base import GraphPorts, Inputs, Ints, Outputs, Scores, Sizes
from txport.runtimes.inputs import outputs_of
from txport.runtimes.ort.cuda.caches import Caches
from txport.runtimes.ort.cuda.device import ENCODE_QUEUE, MAIN, Device, Tensor, bind
from txport.runtimes.ort.cuda.graphs import Graphs
from txport.runtimes.ort.cuda.state import CudaState
from txport.runtimes.ort.cuda.steps import Steps
from txport.runtimes.ort.cuda.warm import require_few, shapes
from txport.runtimes.ort.cuda.workspace import Workspaces, batch_bucket, capacity_bucket, source_bucket
from txport.runtimes.slots import rows_of, seat
from txport.system.arrays import Array
from txport.targets.ports import (
    ENCODER,
    INPUT_FEATURES,
    INPUT_IDS,
    MODEL,
    PAST_LENGTHS,
    PREFILL,
    SOURCE_LENGTHS,
)

NOBODY = -1  # the token of an unused slot
TOGETHER = 1 << 14  # tokens of prompts, or of an encoder-only model's sources, per run

Bools = NDArray[np.bool_]


class CudaRuntime:
    """`Runtime` over the graphs of a cuda bundle and a device. Use the last returned state only."""

    def __init__(self, facts: Facts, graphs: Graphs, device: Device) -> None:
        self.facts = facts
        self.graphs = graphs
        self.device = device
        self._described = graphs.described
        self._has_source = facts.is_encoder_decoder
        self._workspaces = Workspaces(device)
        self._encoder_workspaces = Workspaces(device)
        if self.facts.generates:
            self._caches = Caches(device, graphs)
            self._steps = Steps(facts, graphs, device, self._caches)

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> CudaState:
        """See `Runtime.start`; encoding is queued, and can run during the steps of other batches."""
        if not self._has_source:
            return self._prefill(source, source_lengths, max_length)
        count = len(source)
        reads = self.facts.reads
        size = reads.longest if isinstance(reads, Features) else source_bucket(source.shape[1], reads.longest)
        capacity = capacity_bucket(1, self.facts.writes.longest)
        state = CudaState(self._encoder_workspaces, batch_bucket(count), size, capacity, max_length, count)
        state.source_lengths[:count] = source_lengths
        name, pad = (INPUT_FEATURES, 0) if isinstance(reads, Features) else (INPUT_IDS, reads.pad)
        port = self._described[ENCODER].port(name)
        given = np.full(port.shape(state.dims), pad, port.dtype)
        given[tuple(slice(size) for size in source.shape)] = source
        self._encode(state, name, given)
        return state

    def _encode(self, state: CudaState, name: str, given: Inputs) -> None:
        if state.workspace.used is not None:
            self.device.wait_event(ENCODE_QUEUE, state.workspace.used)
        tensor = state.workspace.tensor("given", given.shape, given.dtype.name)
        self.device.upload(given, tensor, ENCODE_QUEUE)
        lengths = self._tell_source_lengths(state, ENCODE_QUEUE)
        cross = self._caches.tensors(state, "source")
        inputs = {name: tensor, SOURCE_LENGTHS: lengths}
        outputs = dict(zip(self._made(ENCODER), cross, strict=True))
        self._run(state, ENCODER, inputs, outputs)
        state.encoded = self.device.mark(ENCODE_QUEUE)
        state.is_settled = False

    def _join(self, state: CudaState) -> None:
        """Let the main queue wait until the sources are encoded."""
        if state.encoded is not None:
            self.device.wait_event(MAIN, state.encoded)
            state.encoded = None

    def _settle(self, state: CudaState) -> None:
        """Move the sources to a workspace for steps: steps are captured over few workspaces.

        The old workspace becomes free for encoding. If there is not enough memory, the state is unchanged.
        """
        if state.is_settled:
            return
        self._join(state)
        workspace = self._workspaces.take()
        try:
            place = self._caches.span(state, "source", workspace)
            workspace.tensor("source lengths", (state.batch,), "int64")
        except BaseException:
            self._workspaces.give_back(workspace)
            raise
        self.device.copy(self._caches.span(state, "source"), place)
        old = state.move(self._workspaces, workspace)
        old.used = self.device.mark(MAIN)
        self._encoder_workspaces.give_back(old)
        self._tell_source_lengths(state)
        state.is_settled = True

    def _prefill(self, prompts: Inputs, lengths: Ints, max_length: int) -> CudaState:
        """Fill the rows' caches with all but the last token of each prompt."""
        count, size = prompts.shape
        capacity = capacity_bucket(size, self.facts.writes.longest)
        state = CudaState(self._workspaces, batch_bucket(count), 0, capacity, max_length, count)
        self._caches.clear_rows(state)
        filled = np.full((state.batch, size), self.facts.writes.pad)
        filled[:count] = prompts
        part = max(1, TOGETHER // state.batch)
        for first in range(0, size - 1, part):
            self._fill(state, filled[:, first : min(first + part, size - 1)], first)
        state.lengths[:count] = lengths - 1
        return state

    def _fill(self, state: CudaState, tokens: Ints, first: int) -> None:
        """Run prompt tokens (B, T), which follow the first `first` tokens of each prompt, into the caches."""
        ids = state.workspace.tensor("given", tokens.shape, "int64")
        before = state.workspace.tensor("before", (state.batch,), "int64")
        self.device.upload(tokens, ids)
        self.device.upload(np.full(state.batch, first), before)
        own = self._caches.tensors(state, "row")
        inputs = {INPUT_IDS: ids, PAST_LENGTHS: before, **dict(zip(self._caches.names("row"), own, strict=True))}
        self._run(state, PREFILL, inputs, dict(zip(self._made(PREFILL), own, strict=True)))

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """See `EncoderRuntime.infer`."""
        batch, size = source.shape
        count = max(1, TOGETHER // size)
        found = list[list[Array]]()
        workspace = self._workspaces.take()
        try:
            for part in (slice(first, first + count) for first in range(0, batch, count)):
                given = {INPUT_IDS: source[part], SOURCE_LENGTHS: source_lengths[part]}
                inputs = {name: workspace.tensor(name, array.shape, "int64") for name, array in given.items()}
                for name, array in given.items():
                    self.device.upload(array, inputs[name])
                rows = len(source[part])
                outputs = dict[str, Tensor]()
                for each in self.facts.outputs:
                    outputs[each.name] = workspace.tensor(each.name, each.shape(rows, size), "float32")
                self.device.run(bind(self.device, MODEL, self.graphs.sessions[MODEL], inputs, outputs))
                found.append(self.device.fetch(*outputs.values()).arrays())
        finally:
            self._workspaces.give_back(workspace)
        names = [each.name for each in self.facts.outputs]
        joined = {name: np.concatenate(parts) for name, parts in zip(names, zip(*found, strict=True), strict=True)}
        return outputs_of(self.facts, joined, batch, size, size)

    def infer_on_device(self, input_ids: Any, source_lengths: Any) -> dict[str, Any]:
        """Like `infer`, for DLPack tensors (B, S) and (B,) int64 -> float32 OrtValues on the device, with padding.

        `torch.from_dlpack` accepts the outputs without a copy. Raise `UnsupportedError` for tensors on another device
        or of another dtype, and for a generating model, whose search reads the best tokens on the host.
        """
        if self.facts.generates:
            raise UnsupportedError("infer_on_device needs an encoder-only model; this model generates")
        given = {INPUT_IDS: input_ids, SOURCE_LENGTHS: source_lengths}
        return self.graphs.run_on_device(MODEL, given, self.device)

    def step(
        self, tokens: Ints, state: CudaState, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, CudaState]:
        """See `Runtime.step` and `ContinuousRuntime`; values of the best tokens are always log-probs."""
        self._settle(state)
        seated = np.full(state.size, NOBODY)
        seated[state.slots] = tokens
        active = seated >= 0
        state.lengths[~active] = 0
        assert state.length < state.max_length, "a step beyond max_length"
        if state.length == state.capacity:
            longest = max(state.max_length, self.facts.writes.longest)
            self._caches.grow(state, "row", capacity_bucket(state.capacity + 1, longest))
        return self._steps.run(state, seated, active, top, align).of(state.slots), state

    def _tell_source_lengths(self, state: CudaState, queue: int = MAIN) -> Tensor:
        tensor = state.workspace.tensor("source lengths", (state.batch,), "int64")
        self.device.upload(state.source_lengths, tensor, queue)
        return tensor

    def _made(self, role: str) -> list[str]:
        """Return the names of a graph's outputs that are parts of the state."""
        return list(self._described[role].present().values())

    def _run(self, state: CudaState, role: str, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """Queue a run of a graph without capture."""
        key = (role, *state.shape, *(each.shape for each in inputs.values()))
        session = self.graphs.sessions[role]
        bound = state.workspace.bound(key, lambda: bind(self.device, role, session, inputs, outputs))
        self.device.run(bound.binding)

    def select(self, state: CudaState, rows: Ints) -> CudaState:
        """See `Runtime.select`; if rows only leave, the others do not move until they fit a smaller bucket."""
        self._settle(state)
        seated = seat(state.slots[rows], state.batch, state.width)
        batch = batch_bucket(len(seated.sources))
        width = seated.width
        slots = seated.slots
        if stays := batch == state.batch:
            slots = seated.sources[slots // width] * width + slots % width
        size = batch * width
        moves = np.minimum(np.arange(size), state.size - 1)
        moves[slots] = seated.old
        lengths = np.zeros(size, np.int64)
        lengths[slots] = state.lengths[seated.old]
        if size != state.size or (moves != np.arange(size)).any():
            self._move(state, moves, is_written=state.length > 0)
        if not stays:
            self._keep_sources(state, seated.sources, batch)
        state.batch = batch
        state.width = width
        state.slots = slots
        state.lengths = lengths
        return state

    def _move(self, state: CudaState, moves: Ints, *, is_written: bool) -> None:
        state.ahead.drop()
        state.on_device = None
        if is_written:
            self._caches.select(state, "row", moves)
            self._caches.flip(state, "row")
        else:
            state.is_clean = False

    def _keep_sources(self, state: CudaState, sources: Ints, batch: int) -> None:
        """Move the given sources to the front, and reduce the batch to `batch` sources."""
        kept = np.concatenate([sources, np.full(batch - len(sources), sources[0])])
        if self._has_source:
            self._caches.select(state, "source", kept)
            self._caches.flip(state, "source")
        state.batch = batch
        state.source_lengths = state.source_lengths[kept]
        if self._has_source:
            self._tell_source_lengths(state)

    def admit(self, state: CudaState, places: Ints, others: CudaState, chosen: Ints) -> CudaState:
        """See `ContinuousRuntime.admit`."""
        self._settle(state)
        state.ahead.drop()
        sources = state.sources[places]
        theirs = others.slots[chosen]
        slots = rows_of(sources, state.width)
        state.lengths[slots] = 0
        state.on_device = None
        if state.has_nan and state.is_clean:
            self._caches.clear_slots(state, slots)
        if self._has_source:
            self._join(others)
            longest = max(state.places, others.places)
            for each in (state, others):
                self._caches.grow(each, "source", longest)
            self._caches.admit(state, "source", sources, self._caches.select(others, "source", theirs))
            state.source_lengths[sources] = others.source_lengths[theirs]
            self._tell_source_lengths(state)
            others.workspace.used = self.device.mark(MAIN)
        elif others.length:
            self._admit_rows(state, sources * state.width, others, theirs)
        return state

    def _admit_rows(self, state: CudaState, rows: Ints, others: CudaState, theirs: Ints) -> None:
        """Copy prompts that were filled into another state to some rows."""
        self._caches.clear_rows(state)
        longest = max(state.capacity, others.capacity)
        for each in (state, others):
            self._caches.grow(each, "row", longest)
        self._caches.admit(state, "row", rows, self._caches.select(others, "row", theirs))
        state.lengths[rows] = others.lengths[theirs]

    def extend(self, state: CudaState, sources: int) -> CudaState:
        """See `ContinuousRuntime.extend`; the rows become adjacent, and new slots have copies that no row uses."""
        self._settle(state)
        batch = batch_bucket(sources)
        width = state.width
        kept = state.sources
        assert np.array_equal(state.slots, rows_of(kept, width)), "only whole sources can be extended"
        count = len(state.slots)
        moves = np.full(batch * width, state.slots[0])
        moves[:count] = state.slots
        lengths = np.zeros(batch * width, np.int64)
        lengths[:count] = state.lengths[state.slots]
        self._move(state, moves, is_written=state.length > 0)
        self._keep_sources(state, kept, batch)
        state.slots = np.arange(sources * width)
        state.lengths = lengths
        return state

    def reserve(self, state: CudaState, rows: int) -> CudaState:
        """See `ContinuousRuntime.reserve`; the first step then has the shape of all others."""
        if rows == state.width:
            return state
        self._settle(state)
        assert state.width == 1, "room is made before the first step"
        size = state.batch * rows
        self._move(state, np.arange(size) // rows, is_written=state.length > 0)
        lengths = np.zeros(size, np.int64)
        lengths[state.slots * rows] = state.lengths[state.slots]
        state.width = rows
        state.lengths = lengths
        state.slots = state.slots * rows
        return state

    def warm(self, sizes: Sizes) -> None:
        """See `QueuedRuntime.warm`; captures the steps of all shapes in workspaces that later batches use first."""
        if not self.facts.generates:
            return
        every = list(shapes(self.facts, sizes))
        counts = self._steps.counts(sizes.tops)
        require_few(sizes, len(every) * len(counts))
        first = every[0]
        size = first.batch, first.places, first.capacity, first.capacity, 0
        states = [CudaState(self._workspaces, *size) for _ in range(sizes.batches)]  # each in a separate workspace
        for state, shape in product(states, every):
            state.batch, state.width, state.capacity, state.places, state.rows_side, state.source_side = shape
            state.source_lengths = np.ones(state.batch, np.int64)
            if self._has_source:
                self._tell_source_lengths(state)
            for count in counts:
                self._steps.capture(state, count)
        self.synchronize()

    def synchronize(self) -> None:
        """See `QueuedRuntime.synchronize`."""
        self.device.synchronize()

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self.graphs.ports(role)

    def run_graph(self, role: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """See `GraphRuntime.run_graph`; half precision is float32 in arrays."""
        return self.graphs.run(role, inputs, self.device)

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return self.graphs.placement()
