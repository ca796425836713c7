"""Task quality of a bundle: the share of texts whose output is none of their targets, compared with PyTorch's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from txport.bundles.bundle import Bundle
from txport.errors import UnsupportedError
from txport.models.tokenizers.base import encode_within
from txport.models.tokenizers.load import tokenizer_of
from txport.proof.parity.tolerances import Tolerance
from txport.runtimes.base import Runtime
from txport.search.generate import generate
from txport.search.options import SearchOptions

BATCH = 64
Texts = Mapping[str, Sequence[str]]  # text -> its targets


@dataclass(frozen=True)
class Quality:
    """Counts of texts with a wrong output; `broken` are wrong on the runtime only, `mended` in PyTorch only.

    `allowed`: by how many percentage points the runtime's error rate may be worse.
    """

    runtime: str
    texts: int
    wrong: int
    wrong_in_pytorch: int
    broken: int
    mended: int
    allowed: float

    @property
    def rate(self) -> float:
        """The error rate in percent: of words, the WER."""
        return 100 * self.wrong / self.texts

    @property
    def reference(self) -> float:
        """PyTorch's error rate in percent."""
        return 100 * self.wrong_in_pytorch / self.texts

    @property
    def passed(self) -> bool:
        """Return whether the error rate is within the allowed limit."""
        return self.rate - self.reference <= self.allowed

    def describe(self) -> str:
        """Describe both error rates in one line."""
        rates = f"{self.rate:.2f} % of {self.texts} texts wrong, PyTorch {self.reference:.2f} %"
        return f"{self.runtime}: {rates} ({self.broken} broken, {self.mended} mended, allowed +{self.allowed:.2f} %)"

    def to_dict(self) -> dict[str, Any]:
        """Return the counts and error rates as JSON values."""
        return {
            **asdict(self),
            "rate": round(self.rate, 3),
            "reference": round(self.reference, 3),
            "passed": self.passed,
        }


def digest_of(texts: Texts) -> str:
    """Return the SHA-256 of texts and targets, so that error rates are compared over the same texts only."""
    return hashlib.sha256(json.dumps([(text, list(each)) for text, each in texts.items()]).encode()).hexdigest()


def right_ones(bundle: Bundle, runtime: Runtime, texts: Texts) -> list[bool]:
    """Return, per text, whether its greedy output is one of its targets.

    Raise `UnsupportedError` for a model that reads audio.
    """
    facts = bundle.manifest.facts
    if facts.vocabulary is not facts.reads:
        raise UnsupportedError("error rates need a model that reads text; this model reads audio")
    tokenizer = tokenizer_of(bundle.texts, bundle.path, facts)
    options = SearchOptions(scores=False)
    encoded = [encode_within(tokenizer, facts.vocabulary.longest, text) for text in texts]
    order = sorted(range(len(encoded)), key=lambda at: len(encoded[at]))
    outputs: dict[int, str] = {}
    for start in range(0, len(order), BATCH):
        part = order[start : start + BATCH]
        found = generate(runtime, [encoded[at] for at in part], facts, options)
        for at, results in zip(part, found, strict=True):
            before = encoded[at] if facts.task == "causal" else []
            outputs[at] = tokenizer.continuation(before, results[0].tokens)
    return [outputs[at] in targets for at, targets in enumerate(texts.values())]


def compare_quality(label: str, actual: Sequence[bool], expected: Sequence[bool], tolerance: Tolerance) -> Quality:
    """Compare the error rates of a runtime and PyTorch.

    Two standard errors of the difference are added to the tolerance, because chance decides if few texts change.
    """
    broken = sum(was and not now for was, now in zip(expected, actual, strict=True))
    mended = sum(now and not was for was, now in zip(expected, actual, strict=True))
    allowed = tolerance.points + 100 * 2 * (broken + mended) ** 0.5 / len(actual)
    return Quality(label, len(actual), len(actual) - sum(actual), len(actual) - sum(expected), broken, mended, allowed)
