"""The requests of a search to whoever runs it, so that the same search runs alone or beside others in one state."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

from txport.runtimes.base import Ints, Scores
from txport.search.options import Found

Certain = Callable[[], list[tuple[int, ...]]]  # what each target is known to begin with by now


class Step(NamedTuple):
    """A step of all rows, of which the answer is the scores; the fields are those of `Runtime.step`."""

    tokens: Ints
    top: int | None
    normalise: bool
    align: bool


class Select(NamedTuple):
    """Row i is to be the old row `rows[i]`."""

    rows: Ints


class Reserve(NamedTuple):
    """Sources are to have several rows each before long; attention may then sum as it does over several from now on."""

    rows: int


class Progress(NamedTuple):
    """Nothing is asked: this is how far the search is."""

    certain: Certain


SearchRequest = Step | Select | Reserve | Progress
Search = Generator[SearchRequest, Scores | None, list[list[Found]]]  # scores are the answer to a step, None to all else
