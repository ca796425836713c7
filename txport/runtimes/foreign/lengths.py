"""Rows of different lengths for graphs without support for padding: rows of equal length run together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from txport.bundles.foreign.manifest import ForeignManifest
from txport.models.facts import Facts
from txport.runtimes.base import GraphPorts, GraphRuntime, Inputs, Ints, Outputs, Scores
from txport.runtimes.foreign.runtime import ForeignRuntime, ForeignState
from txport.runtimes.portable import Engine
from txport.system.arrays import Array

T = TypeVar("T")
Parts = tuple[tuple[Ints, Any], ...]  # indices of rows, and their state


@dataclass(frozen=True)
class ByLength(Generic[T]):
    """Runtime over an inner runtime that supports only rows of equal lengths."""

    inner: ForeignRuntime[T]
    facts: Facts

    def start(self, source: Inputs, source_lengths: Ints, *, max_length: int) -> Parts:
        """See `Runtime.start`."""
        return tuple(
            (rows, self.inner.start(cut, source_lengths[rows], max_length=max_length))
            for rows, cut in _alike(source, source_lengths)
        )

    def step(
        self, tokens: Ints, state: Parts, *, top: int | None = None, normalise: bool = True, align: bool = False
    ) -> tuple[Scores, Parts]:
        """See `Runtime.step`."""
        done = [
            (rows, *self.inner.step(tokens[rows], part, top=top, normalise=normalise, align=align))
            for rows, part in state
        ]
        found = [(rows, each) for rows, each, _ in done]
        values = _together([(rows, each.values) for rows, each in found])
        ids = None if top is None else _together([(rows, each.ids) for rows, each in found])
        return Scores(values, ids), tuple((rows, part) for rows, _, part in done)

    def select(self, state: Parts, rows: Ints) -> Parts:
        """See `Runtime.select`."""
        parts: list[tuple[Ints, ForeignState[T]]] = []
        for held, part in state:
            places = {row: place for place, row in enumerate(held.tolist())}
            wanted = [(new, places[row]) for new, row in enumerate(rows.tolist()) if row in places]
            if wanted:
                new, old = np.array(wanted, np.int64).T
                parts.append((new, self.inner.select(part, old)))
        return tuple(parts)

    def infer(self, source: Ints, source_lengths: Ints) -> Outputs:
        """See `EncoderRuntime.infer`; outputs per token are 0 at padding."""
        outputs: Outputs = {}
        for rows, cut in _alike(source, source_lengths):
            for name, array in self.inner.infer(cut, source_lengths[rows]).items():
                output = next(each for each in self.facts.outputs if each.name == name)
                whole = outputs.setdefault(name, np.zeros(output.shape(*source.shape), array.dtype))
                if output.is_of_tokens:
                    whole[rows, : cut.shape[1]] = array
                else:
                    whole[rows] = array
        return outputs

    def ports(self, role: str) -> GraphPorts:
        """See `GraphRuntime.ports`."""
        return self.inner.ports(role)

    def run_graph(self, role: str, inputs: dict[str, Array]) -> dict[str, Array]:
        """See `GraphRuntime.run_graph`."""
        return self.inner.run_graph(role, inputs)

    def placement(self) -> dict[str, dict[str, int]]:
        """See `GraphRuntime.placement`."""
        return self.inner.placement()


def foreign_runtime(engine: Engine[T], manifest: ForeignManifest) -> GraphRuntime:
    """Return the runtime of a folder that was exported by another tool, over an engine."""
    inner = ForeignRuntime(engine, manifest)
    return inner if manifest.pads else ByLength(inner, manifest.facts)


def _alike(source: Inputs, lengths: Ints) -> Iterator[tuple[Ints, Inputs]]:
    """Yield the indices of the rows of each length, and their sources without padding."""
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        yield rows, np.ascontiguousarray(source[rows, :length])


def _together(parts: list[tuple[Ints, object]]) -> Any:
    """Join the values of all parts in the order of the rows."""
    values = np.concatenate([each for _, each in parts])
    whole = np.empty_like(values)
    whole[np.concatenate([rows for rows, _ in parts])] = values
    return whole
