"""Task quality of a bundle: a score of the outputs of texts with targets, compared with PyTorch's."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from txport.bundles.bundle import Bundle
from txport.errors import UnsupportedError, quoted
from txport.proof.metrics import Metric, References, Score, matches
from txport.proof.parity.tolerances import Tolerance
from txport.runtimes.base import Runtime
from txport.search.generate import generate
from txport.search.options import chosen_options
from txport.text.base import encode_within, shorten
from txport.text.load import tokenizer_of

BATCH = 64
GROUPS = 20  # of texts, for the standard error of a score
EXACT = "exact"
NAMED = 10  # labels that an error names
Texts = Mapping[str, Sequence[str]]  # text -> its targets


@dataclass(frozen=True)
class Quality:
    """The score of a runtime and of PyTorch by a metric, and counts of texts.

    Outputs that are none of their targets are `wrong`: `broken` on the runtime only, `mended` in PyTorch only. The
    outputs of `changed` texts differ from PyTorch's. `allowed`: by how many points the runtime's score may be worse.
    """

    runtime: str
    texts: int
    metric: str
    lower_is_better: bool
    rate: float
    reference: float
    wrong: int
    wrong_in_pytorch: int
    broken: int
    mended: int
    changed: int
    allowed: float

    @property
    def passed(self) -> bool:
        """Return whether the score is within the allowed limit."""
        return self._sign * (self.rate - self.reference) <= self.allowed

    @property
    def _sign(self) -> int:
        return 1 if self.lower_is_better else -1

    def describe(self) -> str:
        """Describe both scores in one line."""
        if self.metric == EXACT:
            rates = f"{self.rate:.2f} % of {self.texts} texts wrong, PyTorch {self.reference:.2f} %"
            return (
                f"{self.runtime}: {rates} ({self.broken} broken, {self.mended} mended, allowed +{self.allowed:.2f} %)"
            )
        scores = f"{self.metric} {self.rate:.2f} on {self.texts} texts, PyTorch {self.reference:.2f}"
        allowed = f"{self._sign * self.allowed:+.2f}"
        return f"{self.runtime}: {scores} ({self.changed} changed, allowed {allowed})"

    def to_dict(self) -> dict[str, object]:
        """Return the scores and counts as JSON values."""
        rounded = {"rate": round(self.rate, 3), "reference": round(self.reference, 3)}
        return {**asdict(self), **rounded, "passed": self.passed}


def require_targets(texts: Texts | None, metric: str | Score, labels: Sequence[str] = ()) -> None:
    """Raise `UnsupportedError` for a text without a target, and for a metric without texts.

    It is also raised for a target that is none of a classifier's `labels`, unless the metric is the user's own.
    """
    if texts is None and metric != EXACT:
        raise UnsupportedError("metric needs texts")
    for text, targets in (texts or {}).items():
        if isinstance(targets, str) or not targets:
            raise UnsupportedError(f"texts: {shorten(text)} needs a list of targets, got {quoted(targets)}")
        strange = next((each for each in targets if each not in labels), None) if labels else None
        if strange is not None and isinstance(metric, str):
            known = ", ".join(labels[:NAMED]) + (", ..." if len(labels) > NAMED else "")
            raise UnsupportedError(f"texts: {quoted(strange)} is no label of the model; its labels are {known}")


def digest_of(texts: Texts) -> str:
    """Return the SHA-256 of texts and targets, so that error rates are compared over the same texts only."""
    return hashlib.sha256(json.dumps([(text, list(each)) for text, each in texts.items()]).encode()).hexdigest()


def generated(bundle: Bundle, runtime: Runtime, texts: Texts) -> list[str]:
    """Return the greedy output of each text, with the bundle's default options.

    Raises `UnsupportedError` for a model that reads audio.
    """
    facts = bundle.manifest.facts
    if facts.vocabulary is not facts.reads:
        raise UnsupportedError("error rates need a model that reads text; this model reads audio")
    tokenizer = tokenizer_of(bundle.texts, bundle.path, facts)
    options = chosen_options(bundle.manifest.generation, {"do_sample": False, "beams": 1, "scores": False})
    encoded = [encode_within(tokenizer, facts.vocabulary.longest, text) for text in texts]
    order = sorted(range(len(encoded)), key=lambda at: len(encoded[at]))
    outputs: dict[int, str] = {}
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        found = generate(runtime, [encoded[at] for at in part], facts, options)
        for at, results in zip(part, found, strict=True):
            before = encoded[at] if facts.is_causal else []
            outputs[at] = tokenizer.continuation(before, results[0].tokens)
    return [outputs[at] for at in range(len(texts))]


def compare_quality(
    label: str, actual: Sequence[str], expected: Sequence[str], texts: Texts, metric: Metric, tolerance: Tolerance
) -> Quality:
    """Compare the score of a runtime's outputs with that of PyTorch's.

    Two standard errors of the difference are added to the tolerance, because chance decides if few texts change.
    """
    references = list(texts.values())
    now, was = matches(references, actual), matches(references, expected)
    broken = sum(before and not after for before, after in zip(was, now, strict=True))
    mended = sum(after and not before for before, after in zip(was, now, strict=True))
    if metric.counts:
        error = 100 * (broken + mended) ** 0.5 / len(references)
    else:
        error = _standard_error(references, actual, expected, metric.score)
    return Quality(
        runtime=label,
        texts=len(references),
        metric=metric.name,
        lower_is_better=metric.lower_is_better,
        rate=metric.score(references, actual),
        reference=metric.score(references, expected),
        wrong=now.count(False),
        wrong_in_pytorch=was.count(False),
        broken=broken,
        mended=mended,
        changed=sum(one != other for one, other in zip(actual, expected, strict=True)),
        allowed=tolerance.points + 2 * error,
    )


def _standard_error(references: References, actual: Sequence[str], expected: Sequence[str], score: Score) -> float:
    """Return the standard error of the difference of two scores by a jackknife that leaves out a group at a time.

    Of a single text, it is the difference itself.
    """
    if list(actual) == list(expected):
        return 0.0
    if (count := min(GROUPS, len(references))) == 1:
        return abs(score(references, actual) - score(references, expected))
    shuffled = random.Random(0).sample(range(len(references)), len(references))  # noqa: S311 - no secret
    differences = []
    for group in range(count):
        kept = [at for place, at in enumerate(shuffled) if place % count != group]
        wanted = [references[at] for at in kept]
        scores = [score(wanted, [outputs[at] for at in kept]) for outputs in (actual, expected)]
        differences.append(scores[0] - scores[1])
    mean = sum(differences) / count
    return float(((count - 1) / count * sum((each - mean) ** 2 for each in differences)) ** 0.5)
