"""What search would find if logits were off by as much as they may be: a difference by that is no fault."""

from __future__ import annotations

import numpy as np

from txport.proof.masks import bound_of, cut_off
from txport.runtimes.base import Inputs, Ints, Runtime, Scores, State, scores


class Noisy:
    """A runtime, PyTorch first of all, whose logits are moved at random, each by no more than a share of the largest.

    It is asked again and again for the same sources: each is encoded once and kept, since no step changes a state.
    """

    def __init__(self, runtime: Runtime, share: float, seed: int) -> None:
        self._runtime, self._share = runtime, share
        self._rng = np.random.default_rng(seed)
        self._started: dict[bytes, State] = {}

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """See `Runtime.start`."""
        rows = [one.tobytes() + length.tobytes() for one, length in zip(source, source_lengths, strict=True)]
        firsts = {row: number for number, row in reversed(list(enumerate(rows)))}
        kept = sorted(firsts.values())
        together = b"".join(rows[number] for number in kept)
        if together not in self._started:
            state = self._runtime.start(source[kept], source_lengths[kept], max_length=max_length)
            self._started[together] = state
        return self._runtime.select(self._started[together], np.searchsorted(kept, [firsts[row] for row in rows]))

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        """See `Runtime.step`."""
        found, state = self._runtime.step(tokens, state, align=align)
        values = cut_off(found.values, bound_of(found.values))
        largest = np.abs(values).max(axis=1, keepdims=True)  # (R, 1)
        moved = values + self._share * largest * self._rng.uniform(-1, 1, values.shape)
        return scores(moved, top, normalise)._replace(attention=found.attention), state

    def select(self, state: State, rows: Ints) -> State:
        """See `Runtime.select`."""
        return self._runtime.select(state, rows)
