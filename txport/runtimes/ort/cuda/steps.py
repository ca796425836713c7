"""Steps of a batch: bound once, captured, queued ahead of requests, and read.

Letters: B sources, K rows per source, R = B x K, V tokens of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from txport.models.facts import Facts
from txport.runtimes.base import Ints, Scores
from txport.runtimes.ort.cuda.ahead import StepOutputs
from txport.runtimes.ort.cuda.caches import Caches
from txport.runtimes.ort.cuda.device import CAPTURE_RUNS, EAGER, Binding, Device, Fetched, Tensor, bind
from txport.runtimes.ort.cuda.graphs import Graphs
from txport.runtimes.ort.cuda.state import CudaState
from txport.runtimes.ort.cuda.workspace import Bound
from txport.targets import ports

Bools = NDArray[np.bool_]


class Steps:
    """The step graph over the memory of running batches."""

    def __init__(self, facts: Facts, graphs: Graphs, device: Device, caches: Caches) -> None:
        self._facts = facts
        self._device = device
        self._caches = caches
        self._session = graphs.sessions[ports.STEP]
        self._graph = graphs.described[ports.STEP]

    def counts(self, tops: Iterable[int | None]) -> list[int]:
        """Return the numbers of best tokens for which steps are captured, for requests with these `tops`."""
        return sorted({self._requested(top, align=False).tokens for top in tops}, reverse=True)

    def capture(self, state: CudaState, count: int) -> None:
        """Capture the step of a state's shape for `count` best tokens; the content of its memory is arbitrary."""
        bound = self._bound(state, count)
        if state.limit >= CAPTURE_RUNS and not self._device.is_captured(bound.graph):
            self._tell_tokens(state, np.zeros(state.size, np.int64))
            self._tell_lengths(state, np.zeros(state.size, np.int64))
            self._device.run(bound.binding, bound.graph)

    def run(self, state: CudaState, tokens: Ints, active: Bools, top: int | None, align: bool) -> Scores:
        """Run one step of all slots, of which some are active, and queue further steps ahead."""
        top = None if top is None else min(top, self._facts.writes.size)
        requested = self._requested(top, align)
        fetched = state.ahead.take(tokens, active, requested)
        if fetched is None:
            self._tell(state, tokens, active)
            fetched = self._queue(state, requested, tokens)
        state.lengths += active
        if top is not None:
            self._look_ahead(state, requested, state.ahead.wanted(top))
        return self._read(fetched, state, requested, top)

    def _requested(self, top: int | None, align: bool) -> StepOutputs:
        tokens = min(1 << (top - 1).bit_length(), self._facts.writes.size) if top else 1
        return StepOutputs(tokens, top is None, align)

    def _tell(self, state: CudaState, tokens: Ints, active: Bools) -> None:
        """Upload tokens that are not the device's best tokens, and lengths that differ from the device's count.

        Lengths of unused slots are counted too, and are reset before they exceed the caches.
        """
        self._caches.clear_rows(state)
        if state.ahead.best is None or not state.ahead.matches_prediction(tokens, active):
            self._tell_tokens(state, tokens)
        counted = state.on_device
        if counted is None or (counted[active] != state.lengths[active]).any() or counted.max() >= state.limit:
            self._tell_lengths(state, state.lengths)

    def _tell_tokens(self, state: CudaState, tokens: Ints) -> None:
        given = np.where(tokens < 0, self._facts.writes.pad, tokens).reshape(state.batch, state.width)
        self._device.upload(given, self._tokens(state))

    def _tell_lengths(self, state: CudaState, lengths: Ints) -> None:
        self._device.upload(lengths, self._lengths(state))
        state.on_device = lengths.copy()

    def _queue(self, state: CudaState, requested: StepOutputs, tokens: Ints) -> Fetched:
        """Queue one step from these tokens and the lengths on the device, which has both already."""
        assert state.on_device is not None
        bound = self._bound(state, requested.tokens)
        graph = bound.graph
        if not self._device.is_captured(graph):
            if state.limit - state.on_device.max() >= CAPTURE_RUNS:
                self._device.run(bound.binding, graph)  # runs three steps, so upload tokens and lengths again
                self._tell_tokens(state, tokens)
                self._tell_lengths(state, state.on_device)
            else:
                graph = EAGER
        return self._run_step(state, bound, graph, requested)

    def _look_ahead(self, state: CudaState, requested: StepOutputs, count: int) -> None:
        """Queue steps ahead, up to `count` and the limit of the caches, each from the last one's best tokens."""
        bound = self._bound(state, requested.tokens)
        if not self._device.is_captured(bound.graph):
            return
        assert state.on_device is not None
        while len(state.ahead) < count and state.on_device.max() < state.limit:
            state.ahead.add(self._run_step(state, bound, bound.graph, requested), requested)

    def _run_step(self, state: CudaState, bound: Bound, graph: int, requested: StepOutputs) -> Fetched:
        assert state.on_device is not None
        self._device.run(bound.binding, graph)
        state.on_device += 1
        outputs = bound.binding.outputs
        more = [outputs[ports.LOGITS]] if requested.logits else []
        if requested.align:
            more.append(outputs[ports.CROSS_ATTENTION])
        return self._device.fetch(_both(outputs), *more)

    def _read(self, fetched: Fetched, state: CudaState, requested: StepOutputs, top: int | None) -> Scores:
        """Return the scores of all slots from the outputs of a step."""
        both, *more = fetched.arrays()
        size = 8 * state.size * requested.tokens
        shape = (state.size, requested.tokens)
        ids = both[:size].view(np.int64).reshape(shape)
        values = both[size:].view(np.float32).reshape(shape)
        state.ahead.best = ids[:, 0]
        state.has_nan |= bool(np.isnan(values[:, 0]).any())
        attention = more.pop() if requested.align else None
        return Scores(more[0], None, attention) if top is None else Scores(values[:, :top], ids[:, :top], attention)

    def _bound(self, state: CudaState, count: int) -> Bound:
        """Return the step graph bound to the memory of a state, for `count` best tokens."""
        return state.workspace.bound((ports.STEP, count, *state.shape), lambda: self._bind(state, count))

    def _bind(self, state: CudaState, count: int) -> Binding:
        workspace = state.workspace
        dims = {**state.dims, ports.COUNT: count}
        tokens = self._tokens(state)
        lengths = self._lengths(state)
        own = self._caches.tensors(state, "row")
        inputs = {
            ports.INPUT_IDS: tokens,
            ports.PAST_LENGTHS: lengths,
            **dict(zip(self._caches.names("row"), own, strict=True)),
        }
        if self._facts.is_encoder_decoder:
            inputs[ports.SOURCE_LENGTHS] = workspace.tensor("source lengths", (state.batch,), "int64")
            inputs.update(zip(self._caches.names("source"), self._caches.tensors(state, "source"), strict=True))
        found = workspace.tensor(f"best {count}", (12 * state.size * count,), "uint8")  # ids, log-probs
        shape = (state.size, count)
        outputs = {
            ports.IDS: found._replace(shape=shape, dtype="int64"),
            ports.LOG_PROBS: found._replace(offset=8 * state.size * count, shape=shape, dtype="float32"),
            ports.NEXT_IDS: tokens,
            ports.PRESENT_LENGTHS: lengths,
            **dict(zip(self._graph.present("row").values(), own, strict=True)),
        }
        for name in (ports.LOGITS, ports.CROSS_ATTENTION)[: 1 if self._facts.attention is None else 2]:
            port = self._graph.port(name)
            outputs[name] = workspace.tensor(name, port.shape(dims), port.dtype)
        return bind(self._device, ports.STEP, self._session, inputs, outputs, {ports.COUNT: np.array([count])})

    def _tokens(self, state: CudaState) -> Tensor:
        return state.workspace.tensor("tokens", (state.batch, state.width), "int64")

    def _lengths(self, state: CudaState) -> Tensor:
        return state.workspace.tensor("lengths", (state.size,), "int64")


def _both(outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the best tokens and their log-probs as one tensor of bytes."""
    ids = outputs[ports.IDS]
    values = outputs[ports.LOG_PROBS]
    return ids._replace(shape=(ids.size + values.size,), dtype="uint8")
