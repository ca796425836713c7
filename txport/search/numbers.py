"""Wrappers of runtimes that raise an error if scores are NaN."""

from __future__ import annotations

from typing import Any

import numpy as np

from txport.errors import RunError
from txport.runtimes.base import ContinuousRuntime, Inputs, Ints, QueuedRuntime, Runtime, Scores, Sizes, State

FIX = "look for NaN or infinity in its weights, and at the size of its activations in this precision"


def numbers_only(runtime: Runtime) -> Runtime:
    """Wrap a runtime: `step` raises `RunError` if scores are NaN. The wrapper supports the same interface."""
    if isinstance(runtime, QueuedRuntime):
        return QueuedNumbers(runtime)
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
        if np.isnan(found.values).any() and np.isnan(found.values[tokens >= 0]).any():
            raise RunError(f"the model's scores are NaN; {FIX}")
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
