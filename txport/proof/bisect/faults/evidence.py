"""What fault models are given of a place that errs: figures, and the part of the model that computes there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import nn

from txport.models.model import Model
from txport.models.parts import Attention, FeedForward, GatedFeedForward
from txport.proof.bisect.calls import PartCall, Record

Array = NDArray[Any]

EXPLAINED = 0.02  # of the error may be left when a fault model is right


@dataclass(frozen=True)
class Cause:
    """What went wrong, in a word and in a sentence."""

    kind: str
    what: str


@dataclass(frozen=True)
class WrongWeight:
    """A weight as a graph and as the checkpoint has it, under the name that the graph gives it."""

    name: str
    held: Array
    expected: Array


class Evidence(Protocol):
    """A place of a model at which something else gives other values: a graph of it, or what it was imported from.

    `expected` is what the model gives, `seen` what the other does, of which so much is `allowed`. `modules` are the
    names of the parts at the place, `role` is the graph in which it is, `record` all calls of parts in that run.
    `summands` are the values that came there, in words, `arrays` the inputs and outputs of the graph. `wrong` are
    weights that the other has other numbers for, by the model's first name for them.
    """

    model: Model
    wrong: Mapping[str, WrongWeight]

    @property
    def seen(self) -> Array: ...  # noqa: D102

    @property
    def expected(self) -> Array: ...  # noqa: D102

    @property
    def allowed(self) -> float: ...  # noqa: D102

    @property
    def modules(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def role(self) -> str: ...  # noqa: D102

    @property
    def record(self) -> Record: ...  # noqa: D102

    @property
    def arrays(self) -> Mapping[str, Array]: ...  # noqa: D102

    @property
    def summands(self) -> Mapping[str, Array]: ...  # noqa: D102

    @property
    def call(self) -> PartCall | None:
        """The call of the part at the place; None where there is none."""
        ...

    @property
    def block(self) -> PartCall | None:
        """The call of the attention or feed-forward whose result is there, but for its last linear map."""
        ...

    @property
    def embedding(self) -> PartCall | None:
        """The call of the embedding, but for its norm, whose result is there."""
        ...

    @property
    def frames(self) -> PartCall | None:
        """The call of the part that reads frames whose result is there."""
        ...

    def explains(self, hypothesis: Array) -> bool:
        """Whether what a fault model gives is what was seen."""
        if hypothesis.size != self.seen.size:
            return False
        error = np.abs(self.expected - self.seen).max(initial=0.0)
        return bool(self.left(hypothesis) <= max(EXPLAINED * error, min(self.allowed, error / 4)))

    def left(self, hypothesis: Array) -> float:
        """The largest difference between what a fault model gives and what was seen."""
        return float(np.abs(hypothesis.reshape(self.seen.shape) - self.seen).max(initial=0.0))

    def best(self, hypotheses: Mapping[str, Array]) -> str | None:
        """The hypothesis that explains what was seen, in words; of several that are much alike, the nearest."""
        found = [what for what, hypothesis in hypotheses.items() if self.explains(hypothesis)]
        return min(found, key=lambda what: self.left(hypotheses[what]), default=None)


def last_map(part: nn.Module) -> nn.Module | None:
    """The linear map that an attention or a feed-forward ends with."""
    if isinstance(part, Attention):
        return part.output
    return part.outer if isinstance(part, FeedForward | GatedFeedForward) else None
