"""The driver of portable bundles, once for every engine that can run an ONNX graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from txport.bundles.manifest import Manifest
from txport.bundles.ports import (
    ATTENTION_MASK,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    ENCODER_HIDDEN_STATES,
    INPUT_IDS,
    LAST_HIDDEN_STATE,
    LOGITS,
    ROWS,
    SELECT,
    cross_attention,
    is_cross,
    past,
    present,
)
from txport.errors import RunError
from txport.runtimes.base import GraphPorts, Ints, Scores, scores

T = TypeVar("T")

# Attention sums over so many places of a source at a time, and over what is left otherwise; over more in fp16, for
# which ONNX Runtime has no softmax on the CPU and takes a ReduceSum.
TOGETHER = {"float32": 4, "float16": 8}


class Engine(Protocol[T]):
    """What runs single graphs; `T` is its tensor, which may live on a device."""

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        ...

    def run(self, role: str, inputs: dict[str, T], outputs: list[str]) -> dict[str, T]:
        """Run one graph and return the outputs asked for."""
        ...

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        ...

    def from_numpy(self, array: NDArray[Any]) -> T:
        """An array as a tensor of the engine."""
        ...

    def to_numpy(self, tensor: T) -> NDArray[Any]:
        """A tensor as an array."""
        ...


@dataclass(frozen=True)
class PortableState(Generic[T]):
    """The decoder's inputs other than the tokens, by port, and how many tokens they hold."""

    tensors: dict[str, T]
    length: int
    max_length: int


class PortableRuntime(Generic[T]):
    """`Runtime` and `GraphRuntime` over an engine."""

    def __init__(self, engine: Engine[T], manifest: Manifest) -> None:
        self._engine, self._manifest = engine, manifest
        self._becomes = dict(zip(present(manifest.config), past(manifest.config), strict=True))
        self._attention = cross_attention(manifest.config)
        self._grows = {output: name for output, name in self._becomes.items() if not is_cross(name)}

    def start(self, source: Ints, source_lengths: Ints, *, max_length: int) -> PortableState[T]:
        """See `Runtime.start`."""
        source = self._fill_up(source)
        mask = (np.arange(source.shape[1])[None, :] < source_lengths[:, None]).astype(np.int64)
        engine_mask = self._engine.from_numpy(mask)
        inputs = {INPUT_IDS: self._engine.from_numpy(source), ATTENTION_MASK: engine_mask}
        hidden = self._engine.run(ENCODER, inputs, [LAST_HIDDEN_STATE])[LAST_HIDDEN_STATE]
        tensors = {ENCODER_HIDDEN_STATES: hidden, ENCODER_ATTENTION_MASK: engine_mask}
        empty = self._engine.from_numpy(self._empty_cache(source.shape[0]))
        return PortableState({**tensors, **dict.fromkeys(self._becomes.values(), empty)}, 0, max_length)

    def step(
        self,
        tokens: Ints,
        state: PortableState[T],
        *,
        top: int | None = None,
        normalise: bool = True,
        align: bool = False,
    ) -> tuple[Scores, PortableState[T]]:
        """See `Runtime.step`; the source's keys and values are fetched once, in the first step."""
        assert state.length < state.max_length, "a step beyond max_length"
        fetched = self._becomes if state.length == 0 else self._grows
        inputs = {INPUT_IDS: self._engine.from_numpy(tokens[:, None]), **state.tensors}
        results = self._engine.run(DECODER, inputs, [LOGITS, *fetched, *([self._attention] if align else [])])
        wanted = (len(tokens), 1, self._manifest.config.target_vocab_size)
        logits = self._fetch(LOGITS, results, wanted)[:, -1].astype(np.float32, copy=False)  # (R, V)
        tensors = {**state.tensors, **{name: results[output] for output, name in fetched.items()}}
        found = scores(logits, top, normalise)
        if align:
            source = state.tensors[ENCODER_ATTENTION_MASK]
            dims = (len(tokens), self._manifest.config.heads, 1, self._engine.to_numpy(source).shape[1])
            attention = self._fetch(self._attention, results, dims)[:, :, -1]  # (R, N, S)
            found = found._replace(attention=attention.mean(1, dtype=np.float32))
        return found, replace(state, tensors=tensors, length=state.length + 1)

    def select(self, state: PortableState[T], rows: Ints) -> PortableState[T]:
        """See `Runtime.select`; the rows are gathered where the tensors live."""
        inputs = {**state.tensors, ROWS: self._engine.from_numpy(rows)}
        results = self._engine.run(SELECT, inputs, [f"selected.{name}" for name in state.tensors])
        return replace(state, tensors={name: results[f"selected.{name}"] for name in state.tensors})

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self._engine.ports(role)

    def run_graph(self, role: str, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """See `GraphRuntime.run_graph`."""
        wanted = [port.name for port in self._manifest.graphs[role].outputs]
        tensors = {name: self._engine.from_numpy(array) for name, array in inputs.items()}
        results = self._engine.run(role, tensors, wanted)
        return {name: self._engine.to_numpy(results[name]) for name in wanted}

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return self._engine.placement()

    def _fetch(self, name: str, results: dict[str, T], dims: tuple[int, ...]) -> NDArray[Any]:
        """An output of the decoder; `RunError` where it has other dims than its port says."""
        array = self._engine.to_numpy(results[name])
        if array.shape != dims:
            what = f"{name} of shape {array.shape}, expected {dims}"
            raise RunError(f"the decoder graph gives {what}; the bundle is damaged, and `txport verify` says where")
        return array

    def _fill_up(self, source: Ints) -> Ints:
        """Padded until nothing is left, so that no row is summed otherwise for the length of others."""
        size = source.shape[1]
        rest = min(-size % TOGETHER[self._manifest.dtype], self._manifest.config.max_length - size)
        return np.pad(source, ((0, 0), (0, rest))) if rest > 0 else source

    def _empty_cache(self, rows: int) -> NDArray[Any]:
        config = self._manifest.config
        return np.zeros((rows, config.heads, 0, config.head_size), dtype=self._manifest.dtype)
