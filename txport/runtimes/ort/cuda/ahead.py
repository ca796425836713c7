"""Steps that are queued before anybody asks for them: each goes on from the best tokens of the one before.

Whoever asks for a step with just these tokens finds it done, or under way. Otherwise what was queued counts as never
done: the lengths say how far the caches are filled, and what lies behind is written over.
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
    """What is read of a step: how many of the best tokens, whether all logits, whether attention."""

    tokens: int
    logits: bool
    align: bool


class Ahead:
    """The steps under way of one batch, and how many of them are worth it.

    As long as search takes the best tokens, there are twice as many each time; once it does not, there are none.
    """

    def __init__(self) -> None:
        self.best: Ints | None = None  # of the last step that was taken, by slot: what the next one went on from
        self._pending: deque[Fetched] = deque()
        self._requested: StepOutputs | None = None
        self._streak = 1

    def __len__(self) -> int:
        return len(self._pending)

    def wanted(self, top: int) -> int:
        """How many steps there should be; of several best tokens that are requested, another may be taken."""
        return min(1 << (self._streak - 1), MOST) if self._streak > (top > 1) else 0

    def matches_prediction(self, tokens: Ints, active: NDArray[np.bool_]) -> bool:
        """Whether the active slots go on from their best tokens."""
        return self.best is not None and np.array_equal(tokens[active], self.best[active])

    def take(self, tokens: Ints, active: NDArray[np.bool_], requested: StepOutputs) -> Fetched | None:
        """The step that goes on from these tokens, if it is under way; else there is none under way any more."""
        matches = self.matches_prediction(tokens, active)
        if self.best is not None:
            self._streak = min(self._streak + 1, MOST) if matches else 0
        if self._pending and matches and requested == self._requested:
            return self._pending.popleft()
        if self._pending:
            self.drop()
        return None

    def add(self, fetched: Fetched, requested: StepOutputs) -> None:
        """One more is under way."""
        self._pending.append(fetched)
        self._requested = requested

    def drop(self) -> None:
        """Nothing that is under way will be taken, and the device's tokens are others than those that were."""
        self._pending.clear()
        self.best = None
        self._streak = 0
