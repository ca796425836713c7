"""Requests of a search to its caller: the same search can run alone, or with others in one state."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol

from txport.runtimes.base import Ints, Scores
from txport.search.options import Found

Certain = Callable[[], list[tuple[int, ...]]]  # returns the certain beginning of each target


class Targets(Protocol):
    """The targets of a running search."""

    def certain(self) -> list[tuple[int, ...]]:
        """Return the certain beginning of the target of each source."""
        ...

    def found(self, sources: Ints | None = None) -> list[list[Found]]:
        """Return the targets of these sources (N,), whose rows have all ended; by default, of all sources."""
        ...

    def drop(self, source: int) -> None:
        """Give up a source: its rows end with the next step."""
        ...


class Step(NamedTuple):
    """Run a step of all rows; the answer is the scores. The fields are arguments of `Runtime.step`.

    Without `is_scored`, the next tokens are given, and the answer is not read.
    """

    tokens: Ints
    top: int | None
    normalise: bool
    align: bool
    is_scored: bool = True


class Select(NamedTuple):
    """Select rows: the new row i is the old row `rows[i]`."""

    rows: Ints


class Reserve(NamedTuple):
    """Reserve room for `rows` rows per source, see `ContinuousRuntime.reserve`."""

    rows: int


class Begin(NamedTuple):
    """Tell the targets of the search, before its first step; no answer is needed.

    With `joins`, other targets of equal options may join them (`Rows.join`) whenever the search waits for a step.
    """

    targets: Targets
    joins: bool


class Progress(NamedTuple):
    """Report the progress of the search; no answer is needed."""

    targets: Targets


SearchRequest = Begin | Step | Select | Reserve | Progress
Search = Generator[SearchRequest, Scores | None, Targets]  # the answer is scores for a step, otherwise None
