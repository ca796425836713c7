"""Metrics of task quality: a score of outputs beside their targets, by the libraries that the field uses.

Scores are percentages, or points of 100. A text may have several targets.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from txport.errors import UnsupportedError, quoted
from txport.system.numbers import number
from txport.system.packages import needed

QUALITY = "txport[quality]"
References = Sequence[Sequence[str]]  # the targets of each text
Score = Callable[[References, Sequence[str]], float]


@dataclass(frozen=True)
class Metric:
    """A score over all texts; `package` computes it. `counts`: only the texts whose output is a target matter."""

    name: str
    score: Score
    lower_is_better: bool = False
    package: str | None = None
    counts: bool = False


def matches(references: References, outputs: Sequence[str]) -> list[bool]:
    """Return, per text, whether the output is one of its targets."""
    return [output in targets for targets, output in zip(references, outputs, strict=True)]


def _accuracy(references: References, outputs: Sequence[str]) -> float:
    return 100 * sum(matches(references, outputs)) / len(outputs)


def _error_rate(references: References, outputs: Sequence[str]) -> float:
    return 100 - _accuracy(references, outputs)


def _f1(references: References, outputs: Sequence[str]) -> float:
    """Return the F1 score, averaged over all labels that are a target or an output (macro average)."""
    pairs = [
        (output if output in targets else targets[0], output)
        for targets, output in zip(references, outputs, strict=True)
    ]
    hits = Counter(output for target, output in pairs if target == output)
    named = Counter(label for pair in pairs for label in pair)
    return 100 * sum(2 * hits[label] / count for label, count in named.items()) / len(named)


def _by_jiwer(name: str) -> Score:
    """Return an error rate of jiwer, "wer" or "cer": of several targets, the one with the lowest rate counts."""

    def score(references: References, outputs: Sequence[str]) -> float:
        import jiwer

        rate: Any = getattr(jiwer, name)
        closest = [
            targets[0] if len(targets) == 1 else min(targets, key=lambda target: rate(target, output))
            for targets, output in zip(references, outputs, strict=True)
        ]
        return 100 * float(rate(closest, list(outputs)))

    return score


def _by_sacrebleu(name: str) -> Score:
    """Return a score of sacrebleu, "BLEU" or "CHRF", with its defaults."""

    def score(references: References, outputs: Sequence[str]) -> float:
        from sacrebleu import metrics

        streams = [list(stream) for stream in zip_longest(*references)]  # None where a text has fewer targets
        return float(getattr(metrics, name)().corpus_score(list(outputs), streams).score)

    return score


METRICS = {
    metric.name: metric
    for metric in (
        Metric("exact", _error_rate, lower_is_better=True, counts=True),
        Metric("wer", _by_jiwer("wer"), lower_is_better=True, package="jiwer"),
        Metric("cer", _by_jiwer("cer"), lower_is_better=True, package="jiwer"),
        Metric("bleu", _by_sacrebleu("BLEU"), package="sacrebleu"),
        Metric("chrf", _by_sacrebleu("CHRF"), package="sacrebleu"),
        Metric("accuracy", _accuracy, counts=True),
        Metric("f1", _f1),
    )
}


def metric_of(metric: str | Score) -> Metric:
    """Return a metric by its name, or one of a function, of which a larger value is better.

    Raise `UnsupportedError` for an unknown name, and `UnavailableError` if the metric's package is not installed.
    """
    if callable(metric):
        return _own(metric)
    if metric not in METRICS:
        raise UnsupportedError(f"unknown metric {quoted(metric)}; supported: {', '.join(METRICS)}, or a function")
    found = METRICS[metric]
    with needed(QUALITY, f"the metric {metric}"):
        if found.package is not None:
            importlib.import_module(found.package)
    return found


def _own(function: Score) -> Metric:
    name = getattr(function, "__name__", type(function).__name__)

    def score(references: References, outputs: Sequence[str]) -> float:
        found = number(name, function([list(targets) for targets in references], list(outputs)))
        if not math.isfinite(found):
            raise UnsupportedError(f"the metric {name} must return a finite number, got {found}")
        return found

    return Metric(name, score)
