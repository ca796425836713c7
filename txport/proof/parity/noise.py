"""Runtimes for search over logits with allowed errors: a different result within these errors is no fault."""

from __future__ import annotations

import numpy as np

from txport.proof.masks import bound_of, cut_off
from txport.runtimes.base import Inputs, Ints, Runtime, Scores, State, scores


class Remembering:
    """A runtime that encodes the same sources only once: it keeps the state of the last sources.

    Equal sources with another `max_length` are encoded again, because a state may have room for `max_length` tokens
    only.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sources: object = None
        self._started: State = None

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """See `Runtime.start`; equal rows are computed once."""
        rows = [one.tobytes() + length.tobytes() for one, length in zip(source, source_lengths, strict=True)]
        firsts = {row: number for number, row in reversed(list(enumerate(rows)))}
        kept = sorted(firsts.values())
        if (sources := (max_length, source.shape[1:], *(rows[number] for number in kept))) != self._sources:
            self._started = self._runtime.start(source[kept], source_lengths[kept], max_length=max_length)
            self._sources = sources
        return self._runtime.select(self._started, np.searchsorted(kept, [firsts[row] for row in rows]))

    def step(
        self, tokens: Ints, state: State, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, State]:
        """See `Runtime.step`."""
        return self._runtime.step(tokens, state, top=top, normalise=normalise, align=align)

    def select(self, state: State, rows: Ints) -> State:
        """See `Runtime.select`."""
        return self._runtime.select(state, rows)


class Noisy:
    """A runtime that adds random noise to the logits, at most `share` times the largest logit of the row."""

    def __init__(self, runtime: Runtime, share: float, seed: int) -> None:
        self._runtime = runtime
        self._share = share
        self._rng = np.random.default_rng(seed)

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> State:
        """See `Runtime.start`."""
        return self._runtime.start(source, source_lengths, max_length=max_length)

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
