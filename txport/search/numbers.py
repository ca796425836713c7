"""Wrappers of runtimes that raise an error if scores are NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from txport.errors import RunError
from txport.runtimes.base import (
    ContinuousRuntime,
    Floats,
    Inputs,
    Ints,
    OnePassRuntime,
    QueuedRuntime,
    Runtime,
    Scores,
    Sizes,
    State,
)

FIX = "look for NaN or infinity in its weights, and at the size of its activations in this precision"


def numbers_only(runtime: Runtime) -> Runtime:
    """Wrap a runtime: it raises `RunError` if scores are NaN. The wrapper supports the same interface."""
    if isinstance(runtime, QueuedRuntime):
        return QueuedNumbers(runtime)
    if isinstance(runtime, OnePassRuntime):
        return OnePassNumbers(runtime)
    return ContinuousNumbers(runtime) if isinstance(runtime, ContinuousRuntime) else Numbers(runtime)


class Numbers:
    """A wrapper of a `Runtime`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """See `Runtime.start`."""
        return self._runtime.start(source, source_lengths, max_length=max_length)

    def step(self, tokens: Ints, state: State, **how: Any) -> tuple[Scores, State]:
        """See `Runtime.step`; scores of unused rows are not checked."""
        found, state = self._runtime.step(tokens, state, **how)
        if np.isnan(found.values).any():
            _require_numbers(found.values[tokens >= 0])
        return found, state

    def select(self, state: State, rows: Ints) -> State:
        """See `Runtime.select`."""
        return self._runtime.select(state, rows)


class ContinuousNumbers(Numbers):
    """A wrapper of a `ContinuousRuntime`."""

    def __init__(self, runtime: ContinuousRuntime) -> None:
        super().__init__(runtime)
        self._continuous = runtime

    def admit(self, state: State, places: Ints, others: State, chosen: Ints) -> State:
        """See `ContinuousRuntime.admit`."""
        return self._continuous.admit(state, places, others, chosen)

    def extend(self, state: State, sources: int) -> State:
        """See `ContinuousRuntime.extend`."""
        return self._continuous.extend(state, sources)

    def reserve(self, state: State, rows: int) -> State:
        """See `ContinuousRuntime.reserve`."""
        return self._continuous.reserve(state, rows)


class OnePassNumbers(ContinuousNumbers):
    """A wrapper of a `OnePassRuntime`."""

    def __init__(self, runtime: OnePassRuntime) -> None:
        super().__init__(runtime)
        self._one_pass = runtime

    def forward(self, texts: Ints, lengths: Ints, first: Ints) -> Iterator[tuple[Ints, Ints, Floats]]:
        """See `OnePassRuntime.forward`."""
        for rows, places, logits in self._one_pass.forward(texts, lengths, first):
            _require_numbers(logits)
            yield rows, places, logits


class QueuedNumbers(ContinuousNumbers):
    """A wrapper of a `QueuedRuntime`."""

    def __init__(self, runtime: QueuedRuntime) -> None:
        super().__init__(runtime)
        self._queued = runtime

    def warm(self, sizes: Sizes) -> None:
        """See `QueuedRuntime.warm`."""
        self._queued.warm(sizes)

    def synchronize(self) -> None:
        """See `QueuedRuntime.synchronize`."""
        self._queued.synchronize()


def _require_numbers(values: Floats) -> None:
    if np.isnan(values).any():
        raise RunError(f"the model's scores are NaN; {FIX}")
