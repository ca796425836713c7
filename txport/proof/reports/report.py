"""All that a comparison found, and what it was found with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from txport.bundles.ports import LOGITS
from txport.errors import ParityError
from txport.proof.parity.measures import (
    FORCED,
    FORMAT,
    GRAPH,
    INFERRED,
    WEIGHTS,
    Comparison,
    badness,
    finite,
    number,
    to_dict,
)
from txport.proof.parity.quality import Quality
from txport.proof.parity.tokens import TokenComparison

if TYPE_CHECKING:
    from txport.proof.bisect.culprit import Culprit


SAID = ("left_out", "reference", "computed", "unused")  # what a manifest records where there is any of it


@dataclass(frozen=True)
class Report:
    """All that was compared, and what with; `drift` is what became worse than a baseline, line by line.

    Where it was `bisected`, the part that errs, if one does, fails it: it may be less than few bits round.
    """

    about: dict[str, Any]
    tensors: list[Comparison] = field(default_factory=list)
    tokens: list[TokenComparison] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)
    bisected: bool = False
    culprit: Culprit | None = None

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return not self.drift and self.culprit is None and all(each.passed for each in self.everything())

    def everything(self) -> Iterator[Comparison | TokenComparison | Quality]:
        """All comparisons, tensors first."""
        yield from self.tensors
        yield from self.tokens
        yield from self.quality

    @property
    def verdict(self) -> str:
        """In one word."""
        return "pass" if self.passed else "fail"

    @property
    def worst(self) -> Comparison:
        """The largest difference for what is allowed.

        Of those that fail, a weight comes first, then a graph, since they explain what the whole runtime says.
        """
        return max(self.tensors, key=_urgency)

    def describe_worst(self) -> str:
        """What went wrong, in one line; if nothing did, what came closest to it."""
        if self.worst.passed and not self.passed:
            return self.failures()[0]
        return self.worst.describe()

    def failures(self) -> list[str]:
        """Everything that went wrong, a line each, the worst first."""
        rank = {id(each): number for number, each in enumerate(sorted(self.tensors, key=_urgency, reverse=True))}
        failed = [each for each in self.everything() if not each.passed]
        failed.sort(key=lambda each: rank.get(id(each), len(rank)))
        culprits = [] if self.culprit is None else [self.culprit.describe()]
        return [each.describe() for each in failed] + culprits + self.drift

    def worst_of(self, tensor: str) -> float:
        """The largest absolute difference of one port, over all cases and runtimes; 0 if it was not compared."""
        return max((each.max_abs for each in self.tensors if each.tensor == tensor), default=0.0)

    @property
    def worst_output(self) -> float:
        """The largest absolute difference of what the model gives: logits, or the outputs of one that only encodes."""
        return max(map(self.worst_of, self.about.get("outputs", [LOGITS])))

    @property
    def near_ties(self) -> int:
        """Rows whose tokens are others, and as good."""
        return sum(each.near_ties for each in self.tokens)

    def summary(self) -> dict[str, Any]:
        """What a manifest records: the same for a checkpoint on every machine."""
        return {
            "verdict": self.verdict,
            "runtimes": sorted(self.about["ran"]),
            "cases": len({each.case for each in self.tensors}),
            "rows_searched": sum(each.rows for each in self.tokens),
            "seed": self.about["seed"],
            **{name: self.about[name] for name in SAID if self.about.get(name)},
        }

    def figures(self) -> dict[str, Any]:
        """What was measured, which the kernels of the machine decide: for people, and on no other machine the same."""
        return {
            "worst_logit_difference": float(f"{self.worst_output:.3g}"),
            "near_ties": self.near_ties,
            "pytorch_logit_difference": float(f"{self.about['pytorch']['worst_logit_difference']:.3g}"),
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; NaN and infinity as strings, which JSON has no numbers for."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            **self.about,
            "worst_logit_difference": number(self.worst_output),
            "worst": {**finite(asdict(self.worst)), "description": self.worst.describe()},
            "quality": [each.to_dict() for each in self.quality] or "not measured",
            "drift": self.drift,
            **({"culprit": self.culprit and self.culprit.to_dict()} if self.bisected else {}),
            "cases": [self._case(part) for part in self.by_case()],
        }

    def by_case(self) -> list[Part]:
        """What was compared in each case on each runtime."""
        parts: dict[tuple[str, str], Part] = {}
        for tensor in self.tensors:
            parts.setdefault((tensor.case, tensor.runtime), Part(tensor.case, tensor.runtime)).tensors.append(tensor)
        for tokens in self.tokens:
            parts.setdefault((tokens.case, tokens.runtime), Part(tokens.case, tokens.runtime)).tokens.append(tokens)
        return list(parts.values())

    @staticmethod
    def _case(part: Part) -> dict[str, Any]:
        return {
            "case": part.case,
            "runtime": part.runtime,
            "verdict": "pass" if part.passed else "fail",
            "tensors": [to_dict(each) for each in part.tensors],
            "tokens": [{**asdict(each), "passed": each.passed} for each in part.tokens],
        }


def _urgency(each: Comparison) -> tuple[int, bool, float]:
    """What to look at first; where a weight or a graph fails, it explains the rest.

    A weight that passes comes last: in few bits, rounding uses all that is allowed.
    """
    explains = {WEIGHTS: 3, GRAPH: 2, FORCED: 1, INFERRED: 1}
    passing = -1 if each.kind == WEIGHTS else 0
    return passing if each.passed else explains[each.kind], bool(np.isnan(each.badness)), each.badness


@dataclass(frozen=True)
class Part:
    """One case on one runtime."""

    case: str
    runtime: str
    tensors: list[Comparison] = field(default_factory=list)
    tokens: list[TokenComparison] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether all of it passed."""
        return all(each.passed for each in self.tensors) and all(each.passed for each in self.tokens)

    @property
    def badness(self) -> float:
        """The largest difference for what is allowed; infinite where tokens are wrong or a number is none."""
        worst = max(map(badness, self.tensors), default=0.0)
        return worst if all(each.passed for each in self.tokens) else np.inf

    @property
    def worst(self) -> Comparison | None:
        """The tensor with the largest difference for what is allowed."""
        return max(self.tensors, key=badness, default=None)


@dataclass(frozen=True)
class Broken:
    """A comparison that came to no end, since a graph does not run; `bisected` and `culprit` as of a `Report`."""

    error: ParityError
    bisected: bool = False
    culprit: Culprit | None = None

    @property
    def message(self) -> str:
        """Which graph does not run, and what its runtime says."""
        return str(self.error)

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        culprit = {"culprit": self.culprit and self.culprit.to_dict()} if self.bisected else {}
        return {"format": FORMAT, "verdict": "fail", "error": self.message, **culprit}
