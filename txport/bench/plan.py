"""The plan of a benchmark: each setting declared once, and the sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, NamedTuple

PHASES, LIMITS, SINGLE, OFFLINE, SERVER = "phases", "limits", "single", "offline", "server"
USUAL = (PHASES, LIMITS, SINGLE, OFFLINE)
LATENCY, THROUGHPUT, MEMORY = "latency", "throughput", "memory"
GOALS = {LATENCY: "ms", THROUGHPUT: "texts/s", MEMORY: "MB"}  # of `tune`, with their units
SETTING = "setting"  # key of a field's metadata


class Setting(NamedTuple):
    """The declaration of a setting: its help, its least value, its value with `--quick`, and its choices."""

    help: str
    least: float | None = None
    quick: Any = None
    choices: tuple[str, ...] = ()


def _setting(default: object, *declared: Any, **more: Any) -> Any:
    return field(default=default, metadata={SETTING: Setting(*declared, **more)})


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The sizes of a run, in tokens."""

    batch: int = 1
    beams: int = 1
    source: int = 16
    tokens: int = 16


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a benchmark. A tuple may have several values; sizes are measured in every combination."""

    provider: str = "cpu"
    threads: int | None = None
    batch: tuple[int, ...] = _setting((1, 8), "Batch size.", 1)
    beams: tuple[int, ...] = _setting((1,), "Beams per row.", 1)
    source: tuple[int, ...] = _setting((16,), "Source length, in tokens.", 1)
    tokens: tuple[int, ...] = _setting((16,), "Target length, in tokens.", 2)
    scenario: tuple[str, ...] = _setting(
        USUAL,
        "phases: time and memory of each phase, by size; limits: the least time that memory and products allow a phase,"
        " and a profile of its operators; single: latency of one input at a time; offline: inputs and"
        " tokens a second in batches; server: the highest rate of requests whose p99 stays in the bound.",
        choices=(*USUAL, SERVER),
    )
    rounds: int = _setting(30, "Measured rounds of each size; candidates alternate.", 3, 12)
    inputs: int = _setting(1024, "Inputs of single and offline.", 1, 128)
    seconds: float = _setting(
        60.0,
        "Most seconds of single, and of offline, for each candidate; ten runs of server take about as long.",
        0.1,
        3.0,
    )
    bound: float | None = _setting(
        None, "Most milliseconds of p99 of server.  [default: 10 times the median of one request alone]", 0.001
    )
    starts: int = _setting(5, "New processes of each candidate, among which the rounds are divided.", 1, 2)

    def sizes(self) -> list[Protocol]:
        """Return every combination of batch, beams, source and target length."""
        combined = product(self.batch, self.beams, self.source, self.tokens)
        return [Protocol(batch=a, beams=b, source=c, tokens=d) for a, b, c, d in combined]


def settings() -> Iterator[tuple[str, object, Setting]]:
    """Yield the name, the default and the declaration of each setting that is declared here."""
    for each in fields(Plan):
        if SETTING in each.metadata:
            yield each.name, each.default, each.metadata[SETTING]
