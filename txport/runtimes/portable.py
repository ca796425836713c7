"""The driver of portable bundles, shared by all engines that can run an ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from txport.bundles.manifest import Manifest
from txport.errors import RunError
from txport.runtimes.base import GraphPorts, Inputs, Ints, Outputs, Scores, no_scores, scores
from txport.runtimes.inputs import left_padded, outputs_of, parts_of_prompt, text_inputs
from txport.system.arrays import Array
from txport.targets.portable import TOGETHER
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
    ROWS,
    SELECT,
)

T = TypeVar("T")


class Engine(Protocol[T]):
    """An engine that runs one graph at a time; `T` is its type of tensor, which may be on a device."""

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        ...

    def run(self, role: str, inputs: dict[str, T], outputs: list[str], *, last: bool = False) -> dict[str, T]:
        """Run one graph and return the requested `outputs` by name.

        `last`: the logits of the last token of each row are enough; engines that can't leave out others return all.
        """
        ...

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        ...

    def from_numpy(self, array: Array) -> T:
        """Return an array as a tensor of the engine."""
        ...

    def to_numpy(self, tensor: T) -> Array:
        """Return a tensor of the engine as an array."""
        ...


class Ready(NamedTuple):
    """The last tokens of prompts (R,), which are the first to pass to `step`, and the logits after them (R, V)."""

    tokens: Ints
    logits: Array


@dataclass(frozen=True)
class PortableState(Generic[T]):
    """State of a portable decoder.

    `tensors` are the decoder's inputs other than the tokens, by port. `length` is the number of tokens in the caches,
    including padding, and `max_length` its limit. `sources` (R,) is the source of each row. `ready` is what the first
    step after a prompt returns, which the prompt's run has computed. `unread` (R, n) are the first tokens of targets,
    which the first run reads together; `length` includes them.
    """

    tensors: dict[str, T]
    length: int
    max_length: int
    sources: Ints
    ready: Ready | None = None
    unread: Ints | None = None


class PortableRuntime(Generic[T]):
    """`Runtime`, `EncoderRuntime` and `GraphRuntime` of a portable bundle over an engine.

    Prompts run in parts of `prompt_part` tokens; None: at once.
    """

    def __init__(self, engine: Engine[T], manifest: Manifest, *, prompt_part: int | None = None) -> None:
        self._engine = engine
        self._prompt_part = prompt_part
        self._manifest = manifest
        self._facts = manifest.facts
        self._graphs = manifest.graphs
        self._decoder = self._graphs.get(DECODER)
        self._becomes = {} if self._decoder is None else self._decoder.becomes
        grown = {} if self._decoder is None else self._decoder.present("row")
        self._grows = {name: self._becomes[name] for name in grown.values()}
        self.encoded: dict[bytes, T] | None = None  # kept outputs of the encoder by features; None: none are kept

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> PortableState[T]:
        """See `Runtime.start`."""
        if self._facts.is_causal:
            return self._prefill(source, source_lengths, max_length)
        given, kept = self._sources(source, source_lengths)
        key = b"" if self.encoded is None else source.tobytes()
        hidden = None if self.encoded is None else self.encoded.get(key)
        if hidden is None:
            hidden = self._engine.run(ENCODER, given, [LAST_HIDDEN_STATE])[LAST_HIDDEN_STATE]
        if self.encoded is not None:
            self.encoded[key] = hidden
        tensors = {ENCODER_HIDDEN_STATES: hidden, **kept, **self._empty_caches(len(source))}
        return PortableState(tensors, 0, max_length, np.arange(len(source)))

    def _sources(self, source: Inputs, lengths: Ints) -> tuple[dict[str, T], dict[str, T]]:
        """Return the encoder's inputs, and the decoder's inputs of the source other than the encoder's output."""
        if not self._facts.masks_source:
            features = np.ascontiguousarray(source, self._manifest.dtype)
            return {INPUT_FEATURES: self._engine.from_numpy(features)}, {}
        ids = self._fill_up(source)
        mask = self._engine.from_numpy((np.arange(ids.shape[1])[None, :] < lengths[:, None]).astype(np.int64))
        return {INPUT_IDS: self._engine.from_numpy(ids), ATTENTION_MASK: mask}, {ENCODER_ATTENTION_MASK: mask}

    def _prefill(self, prompts: Inputs, lengths: Ints, max_length: int) -> PortableState[T]:
        """Run prompts, left-padded, so that all rows end at the same position.

        Their last tokens run with the others: a step of its own would read all weights once more.
        """
        ids, mask = left_padded(prompts, lengths, self._facts.writes.pad)
        places = np.maximum(mask.cumsum(axis=1) - 1, 0)
        size = ids.shape[1]
        tensors = self._empty_caches(len(prompts))
        results: dict[str, T] = {}
        for part in parts_of_prompt(size, self._prompt_part or size):
            inputs = {INPUT_IDS: ids[:, part], ATTENTION_MASK: mask[:, : part.stop], POSITION_IDS: places[:, part]}
            given = {name: self._engine.from_numpy(np.ascontiguousarray(each)) for name, each in inputs.items()}
            wanted = [LOGITS, *self._becomes] if part.stop == size else [*self._becomes]
            results = self._engine.run(DECODER, {**given, **tensors}, wanted, last=True)
            tensors = {name: results[output] for output, name in self._becomes.items()}
        ready = Ready(ids[:, -1], self._last_logits(results, len(ids)).copy())  # later runs may overwrite them
        longest = max_length + size - int(lengths.min())  # limit of the shortest prompt, including its padding
        tensors = {ATTENTION_MASK: self._engine.from_numpy(mask), **tensors}
        return PortableState(tensors, size, longest, np.arange(len(prompts)), ready)

    def step(
        self,
        tokens: Ints,
        state: PortableState[T],
        *,
        top: int | None = None,
        normalise: bool = True,
        align: bool = False,
    ) -> tuple[Scores, PortableState[T]]:
        """See `Runtime.step`; the keys and values of the source are fetched once, in the first run."""
        if state.ready is not None:
            assert np.array_equal(tokens, state.ready.tokens), "the first step takes the last tokens of the prompts"
            return scores(state.ready.logits, top, normalise), replace(state, ready=None)
        assert state.length < state.max_length, "a step beyond max_length"
        assert self._decoder is not None
        ids = tokens[:, None] if state.unread is None else np.column_stack([state.unread, tokens])
        rows, count = ids.shape
        is_first = count == state.length + 1
        if top == 0 and is_first and not align and self._facts.is_encoder_decoder:
            return no_scores(rows), replace(state, unread=ids, length=count)
        fetched = self._becomes if is_first else self._grows
        inputs = {INPUT_IDS: self._engine.from_numpy(ids), **state.tensors, **(more := self._beside(state))}
        aligned = [str(self._decoder.attention)] if align else []
        results = self._engine.run(DECODER, inputs, [LOGITS, *fetched, *aligned])
        logits = self._last_logits(results, rows)
        more.pop(POSITION_IDS, None)
        tensors = {**state.tensors, **more, **{name: results[output] for output, name in fetched.items()}}
        found = scores(logits, top, normalise)
        if align:
            assert self._facts.attention is not None
            places = self._engine.to_numpy(state.tensors[ENCODER_HIDDEN_STATES]).shape[1]
            dims = (rows, self._facts.attention.heads, count, places)
            attention = self._fetch(aligned[0], results, dims)[:, :, -1]  # (R, N, S)
            found = found._replace(attention=attention.mean(1, dtype=np.float32))
        return found, replace(state, tensors=tensors, length=state.length + 1, unread=None)

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """See `EncoderRuntime.infer`."""
        filled = self._fill_up(source)
        found = self.run_graph(MODEL, text_inputs(filled, source_lengths, self._facts))
        return outputs_of(self._facts, found, len(source), source.shape[1], filled.shape[1])

    def select(self, state: PortableState[T], rows: Ints) -> PortableState[T]:
        """See `Runtime.select`; tensors of sources are gathered only if a row changes its source."""
        inputs = {**state.tensors, ROWS: self._engine.from_numpy(rows)}
        sources = state.sources[rows]
        stays = self._graphs[SELECT].of_source if np.array_equal(sources, state.sources) else ()
        moves = [name for name in state.tensors if name not in stays]
        results = self._engine.run(SELECT, inputs, [f"selected.{name}" for name in moves])
        tensors = {**state.tensors, **{name: results[f"selected.{name}"] for name in moves}}
        ready = state.ready and Ready(*(each[rows] for each in state.ready))
        unread = None if state.unread is None else state.unread[rows]
        return replace(state, tensors=tensors, sources=sources, ready=ready, unread=unread)

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._engine.ports(role)

    def run_graph(self, role: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """See `GraphRuntime.run_graph`."""
        wanted = [port.name for port in self._graphs[role].outputs]
        tensors = {name: self._engine.from_numpy(array) for name, array in inputs.items()}
        results = self._engine.run(role, tensors, wanted)
        return {name: self._engine.to_numpy(results[name]) for name in wanted}

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return self._engine.placement()

    def _last_logits(self, results: dict[str, T], rows: int) -> Array:
        """Return the logits after the last token of each row: (R, V)."""
        every = self._fetch(LOGITS, results, (rows, None, self._facts.writes.size))
        return every[:, -1].astype(np.float32, copy=False)

    def _fetch(self, name: str, results: dict[str, T], dims: tuple[int | None, ...]) -> Array:
        """Return an output of the decoder as an array; raise `RunError` if its shape is not `dims`, None: any."""
        array = self._engine.to_numpy(results[name])
        if array.ndim != len(dims) or any(dim not in (None, size) for size, dim in zip(array.shape, dims, strict=True)):
            what = f"{name} of shape {array.shape}, expected {dims}"
            raise RunError(f"the decoder graph gives {what}; the bundle is damaged, and `txport verify` says where")
        return array

    def _fill_up(self, source: Inputs) -> Inputs:
        """Pad sources to a multiple of `TOGETHER` tokens, within the model's limit.

        Without this padding, the order of summation, and so the rounding, of a row would depend on other rows.
        """
        size = source.shape[1]
        rest = min(-size % TOGETHER[self._manifest.dtype], self._facts.reads.longest - size)
        return np.pad(source, ((0, 0), (0, rest))) if rest > 0 else source

    def _beside(self, state: PortableState[T]) -> dict[str, T]:
        """Return a causal step's inputs other than token and caches: the mask with the new token, and its position."""
        if ATTENTION_MASK not in state.tensors:
            return {}
        before = self._engine.to_numpy(state.tensors[ATTENTION_MASK])
        mask = np.concatenate([before, np.ones((len(before), 1), np.int64)], axis=1)
        places = before.sum(axis=1, keepdims=True)
        return {ATTENTION_MASK: self._engine.from_numpy(mask), POSITION_IDS: self._engine.from_numpy(places)}

    def _empty_caches(self, rows: int) -> dict[str, T]:
        assert self._decoder is not None
        empty: dict[tuple[int, ...], T] = {}
        caches = {}
        for each, name in self._decoder.past().items():
            shape = each.shape(rows, 0)
            if shape not in empty:
                empty[shape] = self._engine.from_numpy(np.zeros(shape, self._manifest.dtype))
            caches[name] = empty[shape]
        return caches
