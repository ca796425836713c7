"""What a search asks of whoever runs it, so that the same search runs alone or beside others in one state."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

from txport.errors import RunError
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


class Room(NamedTuple):
    """Sources are to have several rows each before long; attention may then sum as it does over several from now on."""

    rows: int


class Tell(NamedTuple):
    """Nothing is asked: this is how far it is."""

    certain: Certain


def heard(found: Scores) -> Scores:
    """The scores of a step; `RunError` where one is NaN: the weights of a model may have been damaged by training."""
    if np.isnan(found.values).any():
        mend = "look for NaN or infinity in its weights, and at the size of its activations in this precision"
        raise RunError(f"the model's scores are NaN; {mend}")
    return found


Ask = Step | Select | Room | Tell
Search = Generator[Ask, Scores | None, list[list[Found]]]  # scores are the answer to a step, None to all else
