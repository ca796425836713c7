"""The report of a comparison: all results, and the settings and versions that produced them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from txport.errors import ParityError
from txport.proof.parity.measures import (
    FORCED,
    FORMAT,
    GRAPH,
    INFERRED,
    ONE_PASS,
    WEIGHTS,
    Comparison,
    badness,
    finite,
    number,
    to_dict,
)
from txport.proof.parity.quality import Quality
from txport.proof.parity.tokens import TokenComparison
from txport.targets.ports import LOGITS

if TYPE_CHECKING:
    from txport.proof.bisect.culprit import Culprit


SAID = ("left_out", "reference", "computed", "unused")  # recorded in a manifest if not empty


@dataclass(frozen=True)
class Report:
    """All results of a comparison; `about` describes the bundle, settings and versions.

    `drift` has one line for each value that is worse than in a baseline. `beyond` has one for each limit of what few
    bits may cost that the outputs exceed (`about["loss"]` has the cost), and one for a value beyond the range of fp16.
    If the bundle was `bisected` and a `culprit` was found, the report fails: its error can be smaller than the
    tolerance of a quantised bundle.
    """

    about: dict[str, Any]
    tensors: list[Comparison] = field(default_factory=list)
    tokens: list[TokenComparison] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    bisected: bool = False
    culprit: Culprit | None = None

    @property
    def passed(self) -> bool:
        """True if every comparison passed, no limit is exceeded, nothing drifted, and there is no culprit."""
        return not self.beyond and not self.drift and self.culprit is None and self.is_equal

    @property
    def is_equal(self) -> bool:
        """True if every comparison passed."""
        return all(each.passed for each in self.everything())

    def everything(self) -> Iterator[Comparison | TokenComparison | Quality]:
        """Yield all comparisons: tensors, then tokens, then quality."""
        yield from self.tensors
        yield from self.tokens
        yield from self.quality

    @property
    def verdict(self) -> str:
        """The verdict: "pass" or "fail"."""
        return "pass" if self.passed else "fail"

    @property
    def worst(self) -> Comparison:
        """The comparison with the largest ratio of difference to tolerance.

        Among failures, weights come first, then graphs, because they explain the errors of complete runs.
        """
        return max(self.tensors, key=_urgency)

    def describe_worst(self) -> str:
        """Describe the worst failure in one line, or the worst passing comparison if nothing failed."""
        if self.beyond or (self.worst.passed and not self.passed):
            return self.failures()[0]
        return self.worst.describe()

    @property
    def passed_cases(self) -> set[str]:
        """The names of the cases in which nothing failed."""
        every: list[Comparison | TokenComparison] = [*self.tensors, *self.tokens]
        return {each.case for each in every} - {each.case for each in every if not each.passed}

    def failures(self) -> list[str]:
        """Return one line per failure, limits first, then the worst differences."""
        rank = {id(each): number for number, each in enumerate(sorted(self.tensors, key=_urgency, reverse=True))}
        failed = [each for each in self.everything() if not each.passed]
        failed.sort(key=lambda each: rank.get(id(each), len(rank)))
        culprits = [] if self.culprit is None else [self.culprit.describe()]
        return self.beyond + [each.describe() for each in failed] + culprits + self.drift

    def worst_of(self, tensor: str) -> float:
        """Return the largest absolute difference of one port, over all cases and runtimes; 0 if it was not compared."""
        return max((each.max_abs for each in self.tensors if each.tensor == tensor), default=0.0)

    @property
    def worst_output(self) -> float:
        """The largest absolute difference of the logits, or of the outputs of an encoder-only model."""
        return max(map(self.worst_of, self.about.get("outputs", [LOGITS])))

    @property
    def near_ties(self) -> int:
        """The number of rows whose tokens differ from PyTorch's, with scores that are equal within rounding."""
        return sum(each.near_ties for each in self.tokens)

    def summary(self) -> dict[str, Any]:
        """Return the values that a manifest records; they are the same on every machine."""
        return {
            "verdict": self.verdict,
            "runtimes": sorted(self.about["ran"]),
            "cases": len({each.case for each in self.tensors}),
            "rows_searched": sum(each.rows for each in self.tokens),
            "seed": self.about["seed"],
            **{name: self.about[name] for name in SAID if self.about.get(name)},
        }

    def figures(self) -> dict[str, Any]:
        """Return measured values, for people; they depend on the kernels, and differ between machines."""
        own = self.about["pytorch"].get("worst_logit_difference")
        return {
            "worst_logit_difference": float(f"{self.worst_output:.3g}"),
            "near_ties": self.near_ties,
            **({} if own is None else {"pytorch_logit_difference": float(f"{own:.3g}")}),
        }

    def to_dict(self) -> dict[str, object]:
        """Return JSON values; NaN and infinity become strings."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            **self.about,
            "worst_logit_difference": number(self.worst_output),
            "worst": {**finite(asdict(self.worst)), "description": self.worst.describe()},
            "quality": [each.to_dict() for each in self.quality] or "not measured",
            "beyond": self.beyond,
            "drift": self.drift,
            **({"culprit": self.culprit and self.culprit.to_dict()} if self.bisected else {}),
            "cases": [self._case(part) for part in self.by_case()],
        }

    def by_case(self) -> list[Part]:
        """Return the comparisons grouped by case and runtime, weights included."""
        parts: dict[tuple[str, str], Part] = {}
        for tensor in self.tensors:
            parts.setdefault((tensor.case, tensor.runtime), Part(tensor.case, tensor.runtime)).tensors.append(tensor)
        for tokens in self.tokens:
            parts.setdefault((tokens.case, tokens.runtime), Part(tokens.case, tokens.runtime)).tokens.append(tokens)
        return list(parts.values())

    @staticmethod
    def _case(part: Part) -> dict[str, object]:
        return {
            "case": part.case,
            "runtime": part.runtime,
            "verdict": "pass" if part.passed else "fail",
            "tensors": [to_dict(each) for each in part.tensors],
            "tokens": [{**asdict(each), "passed": each.passed} for each in part.tokens],
        }


def _urgency(each: Comparison) -> tuple[int, bool, float]:
    """Return a sort key: the most important comparison has the largest key.

    Failing weights and graphs come first, because they explain other failures. Passing weights come last, because the
    rounding of quantised weights uses the whole tolerance.
    """
    explains = {WEIGHTS: 3, GRAPH: 2, FORCED: 1, ONE_PASS: 1, INFERRED: 1}
    passing = -1 if each.kind == WEIGHTS else 0
    return passing if each.passed else explains[each.kind], bool(np.isnan(each.badness)), each.badness


@dataclass(frozen=True)
class Part:
    """The comparisons of one case on one runtime."""

    case: str
    runtime: str
    tensors: list[Comparison] = field(default_factory=list)
    tokens: list[TokenComparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """True if all comparisons passed."""
        return all(each.passed for each in self.tensors) and all(each.passed for each in self.tokens)

    @property
    def badness(self) -> float:
        """The largest ratio of difference to tolerance; infinite if tokens are wrong or a value is NaN."""
        worst = max(map(badness, self.tensors), default=0.0)
        return worst if all(each.passed for each in self.tokens) else np.inf

    @property
    def worst(self) -> Comparison | None:
        """The tensor with the largest ratio of difference to tolerance; None if there are no tensors."""
        return max(self.tensors, key=badness, default=None)


@dataclass(frozen=True)
class Broken:
    """A comparison that could not be completed because a graph does not run; for the fields, see `Report`."""

    error: ParityError
    bisected: bool = False
    culprit: Culprit | None = None

    @property
    def message(self) -> str:
        """The graph that does not run, and the error of its runtime."""
        return str(self.error)

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        culprit = {"culprit": self.culprit and self.culprit.to_dict()} if self.bisected else {}
        return {"format": FORMAT, "verdict": "fail", "error": self.message, **culprit}
