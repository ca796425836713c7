"""The evidence that fault models receive: a wrong value, and the part of the model that computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import nn

from txport.models.model import Model
from txport.models.parts import Attention, FeedForward, GatedFeedForward
from txport.proof.bisect.calls import PartCall, Record
from txport.system.arrays import Array

EXPLAINED = 0.02  # share of the error that may remain if a fault model is right


@dataclass(frozen=True)
class Cause:
    """The cause of an error: its kind, one word, and its description."""

    kind: str
    what: str


@dataclass(frozen=True)
class WrongWeight:
    """A weight that differs from the checkpoint's, by its name in the graph, and how it differs."""

    name: str
    cause: Cause


class Evidence(Protocol):
    """A value at which a model and another source differ: a graph of the model, or the model it was imported from.

    `expected` is the model's value, `seen` the other source's value; `allowed` is the maximum absolute difference.
    `modules` are the names of the parts that compute the value, `role` is the graph with the value, and `record` has
    all calls of parts in that run. `summands` are the inputs of the value, by description. `arrays` are the inputs and
    outputs of the graph. `wrong` are weights that differ in the other source, by the model's first name of each.
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
        """The call of the part that computes the value; None if there is none."""
        ...

    @property
    def block(self) -> PartCall | None:
        """The call of the attention or feed-forward whose last linear layer reads the value, or None."""
        ...

    @property
    def embedding(self) -> PartCall | None:
        """The call of the embedding whose sum before the norm is the value, or None."""
        ...

    @property
    def frames(self) -> PartCall | None:
        """The call of the `Frames` part whose result is the value, or None."""
        ...

    def explains(self, hypothesis: Array) -> bool:
        """Return True if the result of a fault model equals `seen`, up to a small share of the error."""
        if hypothesis.size != self.seen.size:
            return False
        error = np.abs(self.expected - self.seen).max(initial=0.0)
        return bool(self.left(hypothesis) <= max(EXPLAINED * error, min(self.allowed, error / 4)))

    def left(self, hypothesis: Array) -> float:
        """Return the largest absolute difference between the result of a fault model and `seen`."""
        return float(np.abs(hypothesis.reshape(self.seen.shape) - self.seen).max(initial=0.0))

    def best(self, hypotheses: Mapping[str, Array]) -> str | None:
        """Return the description of the nearest hypothesis that explains `seen`; None if none does."""
        found = [what for what, hypothesis in hypotheses.items() if self.explains(hypothesis)]
        return min(found, key=lambda what: self.left(hypotheses[what]), default=None)


def last_map(part: nn.Module) -> nn.Module | None:
    """Return the last linear layer of an attention or feed-forward; None for other parts."""
    if isinstance(part, Attention):
        return part.output
    return part.outer if isinstance(part, FeedForward | GatedFeedForward) else None
