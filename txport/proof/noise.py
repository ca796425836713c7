"""What search would find if logits were off by as much as they may be: a difference by that is no fault."""

from __future__ import annotations

import numpy as np

from txport.proof.tolerances import Tolerance
from txport.runtimes.base import Ints, Runtime, Scores, State, scores


class Noisy:
    """A runtime whose logits are moved at random, by no more than a tolerance lets them."""

    def __init__(self, runtime: Runtime, tolerance: Tolerance, seed: int, share: float = 1.0) -> None:
        self._runtime, self._tolerance, self._share = runtime, tolerance, share
        self._rng = np.random.default_rng(seed)

    def encode(self, source: Ints, source_lengths: Ints, *, max_length: int) -> State:
        """See `Runtime.encode`."""
        return self._runtime.encode(source, source_lengths, max_length=max_length)

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        """See `Runtime.step`."""
        found, state = self._runtime.step(tokens, state, align=align)
        largest = np.abs(found.values).max(axis=1)
        spread = np.array([[self._share * self._tolerance.noise_of(each)] for each in largest], np.float32)  # (R, 1)
        moved = found.values + spread * self._rng.uniform(-1, 1, found.values.shape).astype(np.float32)
        return scores(moved, top, normalise)._replace(attention=found.attention), state

    def select(self, state: State, rows: Ints) -> State:
        """See `Runtime.select`."""
        return self._runtime.select(state, rows)
