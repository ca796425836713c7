"""What was measured to be the fastest on processors with the instructions of this one: a table, and no guess.

A line is one comparison by `python -m benchmarks.peers --only openvino`, with both sides at the best of their settings.
Where no line fits a processor, nothing is recommended.
"""

from __future__ import annotations

from typing import NamedTuple

MEASURE = "txport bench BUNDLE --runtime ort --runtime openvino"


class Fact(NamedTuple):
    """One comparison.

    It counts for processors that have all instructions of `has` and none of `lacks`, as Linux calls them
    (`avx512_vnni`, `amx_int8`, `avx512_bf16`, `i8mm`). `best` and `other` are a target, its precision and a runtime:
    "cpu int8, ort". `times` says how many times as fast the better one was.
    """

    has: frozenset[str]
    lacks: frozenset[str]
    task: str
    best: str
    other: str
    times: float
    measured: str  # the processor, and the day


FACTS: tuple[Fact, ...] = ()


def facts_for(flags: frozenset[str]) -> list[Fact]:
    """The lines that count for a processor with these instructions."""
    return [each for each in FACTS if each.has <= flags and not each.lacks & flags]
