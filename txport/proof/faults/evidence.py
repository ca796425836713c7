"""The evidence of a wrong value, and the search for its cause: fault models are tried until one explains the value.

A fault model yields hypotheses: a cause, and the value that the part of the model gives in float64 with this fault. If
that is the value that was seen, up to a small share of the error, the cause is found. Names and the structure of a
graph or of a user's module are not used as evidence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor, nn

from txport.checkpoints.weights.streamed import stay
from txport.models.model import Model
from txport.models.parts import Attention, FeedForward, GatedFeedForward
from txport.proof.faults.calls import PartCall, Record
from txport.system.arrays import Array

EXPLAINED = 0.02  # share of the error that may remain if a fault model is right
GRID, STEPS = 97, 200  # number of grid points and of search steps
INPUT, OUTPUT = "input", "output"  # kinds of values: what goes into a part, what the model gives


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


Hypothesis = tuple[Cause, Array | None]  # the value under this fault; None if the weights themselves show the fault


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A value at which a model and another source differ: a graph of the model, or the model it was imported from.

    `expected` is the model's value, `seen` the other source's value; `allowed` is the maximum absolute difference.
    `kind` is the type of the part that computes the value, or another key of `FAULTS`; `modules` are the names of the
    parts, `role` is the graph or the side of the model, and `record` has all calls of parts in that run.

    `call` is that of the part: an attention or a feed-forward computes what its last linear layer reads, an embedding
    its result before the norm. It is None for sums, inputs of other parts and outputs. `summands` are the inputs of
    the value, by description. `arrays` are the inputs and outputs of the graph. `wrong` are weights that differ in the
    other source, by the model's first name of each.
    """

    model: Model
    kind: Any
    modules: tuple[str, ...]
    role: str
    record: Record
    expected: Array
    seen: Array
    allowed: float
    call: PartCall | None = None
    summands: Mapping[str, Array] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    wrong: Mapping[str, WrongWeight] = field(default_factory=dict)

    def read_weights(self) -> None:
        """Read the weights of the parts at the value, which fault models use, if the model is streamed."""
        if self.call is not None:
            stay(self.call.part)  # may be a copy of the model's
            for name in (self.call.name, *self.modules):
                stay(self.model.get_submodule(name))

    @property
    def part_call(self) -> PartCall:
        """The call of the part that computes the value, for the fault models of such a part."""
        assert self.call is not None
        return self.call

    def gap(self, values: Array) -> float:
        """Return the largest absolute difference between values and `seen`."""
        return float(np.abs(values.reshape(self.seen.shape) - self.seen).max(initial=0.0))

    def finished(self, values: Array) -> Array:
        """Return the result of a fault model in the form of `seen`."""
        return values

    def left(self, values: Array) -> float:
        """Return the difference between the result of a fault model and `seen`; infinite if the sizes differ."""
        ways = (self.finished(values), values)
        return min((self.gap(each) for each in ways if each.size == self.seen.size), default=np.inf)

    @cached_property
    def limit(self) -> float:
        """The largest difference that a fault model may leave: a small share of the error."""
        error = min(self.gap(self.expected), sys.float_info.max)  # what leaves an infinite difference explains nothing
        return max(EXPLAINED * error, min(self.allowed, error / 4))

    def nearest(self, kind: str, values: Mapping[str, Array | Tensor]) -> Iterator[Hypothesis]:
        """Yield the results of faults of one kind, by description, the nearest to `seen` first."""
        arrays = {what: each.numpy() if isinstance(each, Tensor) else each for what, each in values.items()}
        for what in sorted(arrays, key=lambda what: self.left(arrays[what])):
            yield Cause(kind, what), arrays[what]

    def fitted(self, run: Callable[[float], Array], least: float, most: float) -> float:
        """Return the argument in [least, most] for which `run` is closest to the value that was seen.

        The search is a geometric grid, then a golden-section search. Returns `least` if the sizes differ.
        """

        def error(value: float) -> float:
            found = self.finished(run(value))
            return float(np.square(found.reshape(self.seen.shape) - self.seen).sum())

        if self.finished(run(most)).size != self.seen.size:
            return least
        grid = np.geomspace(least, most, GRID)
        best = int(np.argmin([error(value) for value in grid]))
        low = grid[max(best - 1, 0)]
        high = grid[min(best + 1, len(grid) - 1)]
        for _ in range(STEPS):
            if high - low < 1e-9 * high:
                break
            left = low + 0.382 * (high - low)
            right = low + 0.618 * (high - low)
            low, high = (low, right) if error(left) < error(right) else (left, high)
        return float((low + high) / 2)


FaultModel = Callable[[Any], Iterable[Hypothesis]]


@dataclass(frozen=True)
class Explained:
    """A cause that was found, and the difference that it leaves; None if the weights themselves show it.

    `where` is the place of a cause that concerns the whole model, in words.
    """

    cause: Cause
    left: float | None
    where: str = ""


def explain(evidence: Evidence, fault_models: Iterable[FaultModel]) -> Explained | None:
    """Return the cause by the first hypothesis that explains the value that was seen; None if none does."""
    for fault_model in fault_models:
        for cause, values in fault_model(evidence):
            left = None if values is None else evidence.left(values)
            if left is None or left <= evidence.limit:
                return Explained(cause, left)
    return None


def last_map(part: nn.Module) -> nn.Module | None:
    """Return the last linear layer of an attention or feed-forward; None for other parts."""
    if isinstance(part, Attention):
        return part.output
    return part.outer if isinstance(part, FeedForward | GatedFeedForward) else None
