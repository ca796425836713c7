"""The driver of graphs that were exported by other tools, shared by all engines that can run an ONNX graph.

The name of a port determines its input. The first step of a decoder fills the caches from all tokens so far. Each later
step reads one token and returns the rows' new caches. The source's caches are kept from the first step, because a
merged decoder returns empty ones in later steps. A decoder without caches reads all tokens in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from txport.bundles.foreign.contracts import ALIASES, CACHE_POSITION, LOGITS_TO_KEEP, USE_CACHE_BRANCH
from txport.bundles.foreign.files import LATER
from txport.bundles.foreign.manifest import ForeignManifest
from txport.errors import RunError
from txport.models.facts import StateTensor
from txport.runtimes.base import GraphPorts, Inputs, Ints, Outputs, Scores, scores
from txport.runtimes.inputs import left_padded, text_inputs
from txport.runtimes.portable import Engine
from txport.system.arrays import Array
from txport.targets.ports import (
    ATTENTION_MASK,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    ENCODER_HIDDEN_STATES,
    INPUT_FEATURES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LOGITS,
    MODEL,
    POSITION_IDS,
    TOKEN_TYPE_IDS,
    Graph,
)

T = TypeVar("T")
DAMAGED = "it does not do what its ports say"


@dataclass(frozen=True)
class ForeignState(Generic[T]):
    """State of a decoder.

    `tokens` (R, T) are the tokens not in the caches yet. `mask` (R, P) is 1 for all tokens so far except padding.
    `sources` (R,) is the source of each row; tensors of sources are moved only if a row changes its source. `memory`
    has the decoder's inputs of the source, by port. `past` has the caches, empty before the first step.
    """

    tokens: Ints
    mask: Ints
    sources: Ints
    memory: dict[str, T] = field(default_factory=dict)
    past: dict[StateTensor, T] = field(default_factory=dict)


class ForeignRuntime(Generic[T]):
    """`Runtime`, `EncoderRuntime` and `GraphRuntime` over an engine, for rows of equal lengths or graphs with masks."""

    def __init__(self, engine: Engine[T], manifest: ForeignManifest) -> None:
        self._engine = engine
        self._manifest = manifest
        self._facts = manifest.facts
        self._first = manifest.graphs.get(DECODER)
        self._later = manifest.graphs.get(LATER, self._first)

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> ForeignState[T]:
        """See `Runtime.start`; prompts are left-padded, so that all rows end at the same position."""
        rows = len(source)
        sources = np.arange(rows)
        if self._facts.is_causal:
            before = left_padded(source, source_lengths - 1, self._facts.writes.pad)
            return self._prefill(ForeignState[T](*before, sources))
        nothing = np.zeros((rows, 0), np.int64)
        return ForeignState(nothing, nothing, sources, self._encode(source, source_lengths))

    def _encode(self, source: Inputs, lengths: Ints) -> dict[str, T]:
        """Run the encoder and return the decoder's inputs of the source, by port."""
        encoder = self._manifest.graphs[ENCODER]
        if not self._facts.masks_source:
            port = encoder.port(INPUT_FEATURES)
            given = {INPUT_FEATURES: np.ascontiguousarray(source, port.dtype)}
            return {ENCODER_HIDDEN_STATES: self._run(encoder, given, [LAST_HIDDEN_STATE])[LAST_HIDDEN_STATE]}
        mask = (np.arange(source.shape[1])[None, :] < lengths[:, None]).astype(np.int64)
        given = {INPUT_IDS: source, ATTENTION_MASK: mask}
        hidden = self._run(encoder, given, [LAST_HIDDEN_STATE])[LAST_HIDDEN_STATE]
        return {ENCODER_HIDDEN_STATES: hidden, ENCODER_ATTENTION_MASK: self._engine.from_numpy(mask)}

    def _prefill(self, state: ForeignState[T]) -> ForeignState[T]:
        """Run the prompts into the caches and return the state; unchanged for a decoder without caches."""
        if not (self._manifest.has_past and state.tokens.shape[1]):
            return state
        assert self._first is not None
        found = self._run(self._first, self._decoded(self._first, state), list(self._first.present().values()))
        return self._kept(self._first, state, found)

    def step(
        self,
        tokens: Ints,
        state: ForeignState[T],
        *,
        top: int | None = None,
        normalise: bool = True,
        align: bool = False,
    ) -> tuple[Scores, ForeignState[T]]:
        """See `Runtime.step`; these graphs do not output cross-attention, so `align` must be False."""
        assert not align, "no contract of these graphs has attention"
        graph = self._later if state.past else self._first
        assert graph is not None
        new_ids = np.ascontiguousarray(tokens)[:, None]
        state = replace(
            state,
            tokens=np.concatenate([state.tokens, new_ids], axis=1),
            mask=np.concatenate([state.mask, np.ones_like(new_ids)], axis=1),
        )
        fetched = graph.present("row" if state.past else None) if self._manifest.has_past else {}
        found = self._run(graph, self._decoded(graph, state), [LOGITS, *fetched.values()])
        logits = self._engine.to_numpy(found[LOGITS])
        wanted = (len(tokens), self._facts.writes.size)
        if logits.ndim != 3 or (len(logits), logits.shape[2]) != wanted or logits.shape[1] < 1:
            what = f"{LOGITS} of shape {logits.shape}, expected ({wanted[0]}, tokens, {wanted[1]})"
            raise RunError(f"{self._manifest.graphs[graph.role].file} gives {what}: {DAMAGED}")
        last = logits[:, -1].astype(np.float32, copy=False)  # (R, V)
        return scores(last, top, normalise), self._kept(graph, state, found) if fetched else state

    def _kept(self, graph: Graph, state: ForeignState[T], found: Mapping[str, T]) -> ForeignState[T]:
        """Return the state after a run: with its new caches, and without pending tokens."""
        new = {each: found[name] for each, name in graph.present().items() if name in found}
        return replace(state, tokens=state.tokens[:, :0], past={**state.past, **new})

    def _decoded(self, graph: Graph, state: ForeignState[T]) -> dict[str, object]:
        """Return a decoder's inputs by port, as arrays or tensors of the engine."""
        rows, count = state.tokens.shape
        before = state.mask.shape[1] - count
        places = np.maximum(state.mask.cumsum(axis=1) - 1, 0)[:, before:]
        given: dict[str, object] = {
            INPUT_IDS: state.tokens,
            ATTENTION_MASK: state.mask,
            POSITION_IDS: places,
            CACHE_POSITION: np.arange(before, before + count),
            LOGITS_TO_KEEP: np.array(1),
            USE_CACHE_BRANCH: np.array([bool(state.past)]),
            **state.memory,
        }
        past = graph.past()
        if past and not state.past:
            return {**given, **self._empty(graph, rows)}
        return {**given, **{name: state.past[each] for each, name in past.items()}}

    def _empty(self, graph: Graph, rows: int) -> dict[str, Array]:
        """Return caches of length 0."""
        return {name: np.zeros(each.shape(rows, 0), graph.port(name).dtype) for each, name in graph.past().items()}

    def select(self, state: ForeignState[T], rows: Ints) -> ForeignState[T]:
        """See `Runtime.select`."""
        sources = state.sources[rows]
        stay = np.array_equal(sources, state.sources)  # tensors of a source are equal in all of its rows
        memory = state.memory if stay else {name: self._taken(each, rows) for name, each in state.memory.items()}
        past = {
            each: tensor if stay and each.owner == "source" else self._taken(tensor, rows)
            for each, tensor in state.past.items()
        }
        return replace(
            state, tokens=state.tokens[rows], mask=state.mask[rows], sources=sources, memory=memory, past=past
        )

    def _taken(self, tensor: T, rows: Ints) -> T:
        return self._engine.from_numpy(self._engine.to_numpy(tensor)[rows])

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """See `EncoderRuntime.infer`."""
        graph = self._manifest.graphs[MODEL]
        places = np.ascontiguousarray(np.broadcast_to(np.arange(source.shape[1]), source.shape))
        given = {TOKEN_TYPE_IDS: np.zeros_like(source), POSITION_IDS: places}
        given |= text_inputs(source, source_lengths, self._manifest.facts)
        found = self._run(graph, given, [port.name for port in graph.outputs])
        outputs: Outputs = {}
        for each in self._facts.outputs:
            name = each.name if each.name in found else ALIASES[each.name]
            array = self._engine.to_numpy(found[name])
            wanted = each.shape(*source.shape)
            if array.shape != wanted:
                raise RunError(f"{graph.file} gives {each.name} of shape {array.shape}, expected {wanted}: {DAMAGED}")
            outputs[each.name] = array
        return outputs

    def _run(self, graph: Graph, given: Mapping[str, Any], outputs: list[str]) -> dict[str, T]:
        """Run a graph with those of the `given` inputs that are its ports, and return the outputs."""
        wanted = {port.name: given[port.name] for port in graph.inputs}
        tensors = {
            name: self._engine.from_numpy(np.asarray(each)) if isinstance(each, np.ndarray) else each
            for name, each in wanted.items()
        }
        return self._engine.run(graph.role, tensors, outputs)

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._engine.ports(role)

    def run_graph(self, role: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """See `GraphRuntime.run_graph`."""
        graph = self._manifest.graphs[role]
        names = [port.name for port in graph.outputs]
        found = self._run(graph, inputs, names)
        return {name: self._engine.to_numpy(found[name]) for name in names}

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return self._engine.placement()
