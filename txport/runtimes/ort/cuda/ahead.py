"""Steps that are queued ahead, before search requests them: each continues with the best tokens of the previous one.

If search requests a step with these tokens, it is already queued or done. Otherwise the queued steps are discarded: the
lengths state how far the caches are filled, and later positions are overwritten.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.runtimes.base import Ints
from txport.runtimes.ort.cuda.device import Fetched

MOST = 8  # steps


class StepOutputs(NamedTuple):
    """Outputs to read of a step: the number of best tokens, and whether to read all logits and attention."""

    tokens: int
    logits: bool
    align: bool


class Ahead:
    """The steps of one batch that are queued ahead, and their number.

    While search continues with the best tokens, the number doubles up to `MOST`. When it does not, the number is 0.
    """

    def __init__(self) -> None:
        self.best: Ints | None = None  # best token of each slot in the last step read: input of the next queued step
        self._pending: deque[Fetched] = deque()
        self._requested: StepOutputs | None = None
        self._streak = 1

    def __len__(self) -> int:
        return len(self._pending)

    def wanted(self, top: int) -> int:
        """Return how many steps to queue ahead; fewer if `top` > 1, because search may choose another token."""
        return min(1 << (self._streak - 1), MOST) if self._streak > (top > 1) else 0

    def matches_prediction(self, tokens: Ints, active: NDArray[np.bool_]) -> bool:
        """Return whether the active slots continue with their best tokens."""
        return self.best is not None and np.array_equal(tokens[active], self.best[active])

    def take(self, tokens: Ints, active: NDArray[np.bool_], requested: StepOutputs) -> Fetched | None:
        """Return the queued step that continues with these tokens, or discard all queued steps and return None."""
        matches = self.matches_prediction(tokens, active)
        if self.best is not None:
            self._streak = min(self._streak + 1, MOST) if matches else 0
        if self._pending and matches and requested == self._requested:
            return self._pending.popleft()
        if self._pending:
            self.drop()
        return None

    def add(self, fetched: Fetched, requested: StepOutputs) -> None:
        """Add a queued step."""
        self._pending.append(fetched)
        self._requested = requested

    def drop(self) -> None:
        """Discard all queued steps; the tokens on the device are no longer the expected ones."""
        self._pending.clear()
        self.best = None
        self._streak = 0
