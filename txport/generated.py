"""What a generating model's answers look like, as a whole and while they grow."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from txport.search.generate import Steps
from txport.search.options import Alignment

UNFINISHED = "\ufffd"  # what a decoder shows of a character whose other bytes are still to come


@dataclass(frozen=True)
class Hypothesis:
    """One answer: its text, its score (log-probability over a power of its length), its token ids and their log-probs.

    `alignment`, if it was asked for, says the attention of each token: to each token of the source how much, or the
    token to which it is largest.
    """

    output: str
    score: float
    tokens: list[int]
    token_scores: list[float]
    alignment: Alignment = ()


@dataclass(frozen=True)
class Generated:
    """What came of one input; `output` and `score` are the best hypothesis's, or "" and 0 if there is none."""

    input: str
    output: str
    score: float
    hypotheses: list[Hypothesis]

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; alignment only where it was asked for."""
        values = dataclasses.asdict(self)
        for each in (each for each in values["hypotheses"] if not each["alignment"]):
            del each["alignment"]
        return values


def grown(steps: Steps, text_of: Callable[[Sequence[int]], str]) -> Generator[str, None, None]:
    """The text of a search so far, each time that it grows, and at last all of it."""
    output = ""
    with contextlib.closing(steps):
        while True:
            try:
                certain = text_of(next(steps)()[0]).rstrip(UNFINISHED)
            except StopIteration as end:
                whole = text_of(end.value[0][0].tokens)
                if whole != output or not whole:
                    yield whole
                return
            if certain != output and certain.startswith(output):
                output = certain
                yield output
