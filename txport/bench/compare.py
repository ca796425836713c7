"""Verdicts on two reports of `txport bench`: slower, not slower, or too noisy to tell.

The samples of a phase, one a round, are divided by those of the same rounds of the first candidate, or of a fixed
computation if there is one candidate: what slows the whole machine down cancels. The logarithms of these ratios have a
median for each start of the processes, because two processes of one program differ by more than two rounds of one. The
means of these medians are compared. A verdict needs their whole confidence interval on one side of the limit, and
rounds during which other programs used little processor time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txport.bench.plan import PHASES, Plan
from txport.errors import TextError, UnsupportedError
from txport.system.documents import DocumentError, read_json

FORMAT = 3
CERTAIN = 2.576  # standard errors: 99 of 100 intervals hold the true value
BETWEEN = 0.01  # by which two measurements of one program differ that were made at other times on a quiet machine
FEWEST = 5  # starts for a verdict
RATES = ("texts", "tokens", "prompt tokens", "new tokens")
UNTIMED = ("peak memory", "read bandwidth", "bandwidth reached")
Json = dict[str, Any]


class Verdict(NamedTuple):
    """The change of a figure in percent, more is worse, with its interval, and the allowed change."""

    where: str
    change: float
    low: float
    high: float
    allowed: float

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval is above the limit."""
        return self.low > self.allowed

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not contain the limit."""
        return self.is_worse or self.high <= self.allowed

    def describe(self) -> str:
        """Describe the change in one line."""
        return f"{self.where}: {self.change:+.1f} % ({self.low:+.1f} to {self.high:+.1f}), allowed {self.allowed:g} %"


def verdicts(old: Json, new: Json, allowed: float) -> list[Verdict]:
    """Return a verdict for each timed phase of each candidate at each size; `allowed` is in percent.

    Raises `UnsupportedError` for reports that were measured in another way.
    """
    require_same(old, new["plan"], new["candidates"])
    if len(new["candidates"]) == 1 and old["machine"] != new["machine"]:
        raise UnsupportedError(
            "the older report is of another machine; measure it here, or two candidates, whose ratio is compared"
        )
    before, after = dict(_samples(old)), dict(_samples(new))
    if missing := [*(after.keys() - before.keys()), *(before.keys() - after.keys())]:
        raise UnsupportedError(f"only one of the reports has {missing[0]}; measure both in the same way")
    return [_verdict(where, before[where], after[where], allowed) for where in after]


def noise(old: Json, new: Json) -> str | None:
    """Return why no verdict is possible: other programs were busy; None if it is."""
    for name, report in (("the older report", old), ("this one", new)):
        if report["busy rounds"]:
            return f"other programs used the processor in {report['busy rounds']} rounds of {name}"
    return None


def require_same(old: Json, plan: Mapping[str, Any], labels: Sequence[str] | Mapping[str, object]) -> None:
    """Raise `UnsupportedError` unless an older report has the same plan and candidates, phases and enough starts."""
    if PHASES not in plan["scenario"]:
        raise UnsupportedError("reports are compared by their phases: add the scenario phases")
    if min(plan["rounds"], plan["starts"]) < FEWEST:
        raise UnsupportedError(f"a verdict needs at least {FEWEST} rounds and {FEWEST} starts; measure more of them")
    if old["plan"] != plan or list(old["candidates"]) != list(labels):
        raise UnsupportedError("the older report has another plan or other candidates; measure both in the same way")


def read_report(path: Path) -> Json:
    """Read an older report; raise `TextError` if the file is not a report of this format."""
    try:
        report: Json = read_json(path)
        known = report["format"]
        if known == FORMAT:
            noise(report, report)
            verdicts(report, report, 0.0)  # reads all values that are compared
    except DocumentError as error:
        raise TextError(f"{error}; give a report of `txport bench --report`") from error
    except (AttributeError, ArithmeticError, IndexError, StopIteration, ValueError, KeyError, TypeError) as error:
        raise TextError(f"{path} is not a report of `txport bench`") from error
    if known != FORMAT:
        raise TextError(f"{path} is a report of another format; this txport reads format {FORMAT}: measure it again")
    return report


def plan_of(plan: Plan) -> Json:
    """Return a plan as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()}


def _samples(report: Json) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield each timed phase, and the logarithms of its costs, one for each start: medians of candidate / yardstick."""
    labels = list(report["candidates"])
    for size in report["sizes"]:
        where = f"batch {size['batch']}, beams {size['beams']}, source {size['source']}, tokens {size['tokens']}"
        base = size["figures"][labels[0]] if len(labels) > 1 else None
        for label in labels[1:] or labels:
            timed = {phase: each for phase, each in size["figures"][label].items() if phase not in UNTIMED}
            for phase, each in timed.items():
                reference = _costs(base[phase]["samples"], phase) if base else _costs(size["yardstick"], "")
                ratios = _costs(each["samples"], phase) - reference
                turns = np.array(size["turns"], np.int64)
                if turns.shape != ratios.shape:
                    raise ValueError("another number of rounds")
                medians = [float(np.median(ratios[turns == turn])) for turn in sorted(set(turns.tolist()))]
                yield f"{label}, {where}: {phase}", np.array(medians)


def _costs(samples: Sequence[float], phase: str) -> NDArray[np.float64]:
    values = np.array(samples, np.float64)
    if values.ndim != 1 or not len(values) or not ((values > 0) & np.isfinite(values)).all():
        raise ValueError(f"{phase} has samples that are no times")
    return -np.log(values) if phase in RATES else np.log(values)


def _verdict(where: str, old: NDArray[np.float64], new: NDArray[np.float64], allowed: float) -> Verdict:
    change = float(new.mean() - old.mean())
    width = BETWEEN + math.hypot(half_width(old), half_width(new))
    middle, low, high = (100 * math.expm1(min(value, 50.0)) for value in (change, change - width, change + width))
    return Verdict(where, middle, low, high, allowed)


def half_width(values: NDArray[np.float64]) -> float:
    """Return half the width of the 99 % confidence interval of the mean, by Student's t (Cornish and Fisher)."""
    if len(values) < FEWEST:
        return math.inf
    degrees = len(values) - 1
    z = CERTAIN
    t = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return float(t * values.std(ddof=1) / math.sqrt(len(values)))
