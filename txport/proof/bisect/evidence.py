"""What is known of a place that errs, in figures, and the words for the place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from txport.models.model import Model
from txport.proof.bisect.parts import block_of, describe
from txport.proof.bisect.probe import Finding
from txport.proof.bisect.taps import OUT, PORT, Span, Tap, span_before

Array = NDArray[Any]

EXPLAINED = 0.02  # of the error may be left when a fault model is right


@dataclass(frozen=True)
class Cause:
    """What went wrong, in a word and in a sentence."""

    kind: str
    what: str


@dataclass(frozen=True)
class WrongWeight:
    """A weight as a graph and as the checkpoint has it, under the name that the graph gives it."""

    name: str
    held: Array
    expected: Array


@dataclass(frozen=True)
class Evidence:
    """What is known of one tap that errs."""

    finding: Finding
    model: Model
    wrong: Mapping[str, WrongWeight]  # by the model's first name for it

    @property
    def seen(self) -> Array:
        """What the graph gives."""
        return self.finding.observation.seen[self.finding.tap].astype(np.float64)

    @property
    def expected(self) -> Array:
        """What PyTorch gives."""
        return self.finding.observation.truths[self.finding.tap].astype(np.float64)

    @property
    def module(self) -> str:
        """The first module at the tap, by name."""
        return self.finding.tap.modules[0]

    @cached_property
    def span(self) -> Span:
        """The nodes that came to this value."""
        probe = self.finding.probe
        return span_before(probe.load(), probe.taps, self.finding.tap)

    @cached_property
    def reads(self) -> dict[Tap, Array]:
        """PyTorch's values at the taps that the span reads, each once."""
        truths = self.finding.observation.truths
        by_value = {tap.value: tap for tap in reversed(list(truths)) if tap.value in self.span.reads}
        return {tap: truths[tap] for tap in by_value.values()}

    @property
    def before_activation(self) -> Array:
        """What PyTorch's activation reads, where this one errs."""
        return self.finding.observation.record[self.module.replace("outer", "inner")][1]

    @property
    def embedding(self) -> str | None:
        """The embedding of tokens that the span reads, by module, if it does and adds positions to it."""
        names = (tap.modules[0] for tap in self.reads if tap.modules[0].endswith("_embedding.tokens"))
        model = self.model
        return next(
            (name for name in names if model.get_submodule(name.removesuffix(".tokens")).positions is not None), None
        )

    def explains(self, hypothesis: Array) -> bool:
        """Whether what a fault model gives is what was seen."""
        if hypothesis.size != self.seen.size:
            return False
        left = np.abs(hypothesis.reshape(self.seen.shape) - self.seen).max(initial=0.0)
        error = np.abs(self.expected - self.seen).max(initial=0.0)
        return bool(left <= max(EXPLAINED * error, min(self.finding.worst.allowed, error / 4)))


def part_of(evidence: Evidence) -> str:
    """Which list of fault models is meant for a tap."""
    side, module = evidence.finding.tap.side, evidence.module
    if side == PORT:
        return "cache" if module.endswith((".key", ".value")) else "choice"
    if side == OUT:
        kind = evidence.model.get_submodule(module)
        return {nn.LayerNorm: "norm", nn.Embedding: "lookup"}.get(type(kind), "linear")
    if module.endswith("attention.output"):
        return "attention"
    if module.endswith("feed_forward.outer"):
        return "activation"
    if evidence.embedding:
        return "embedding"
    return "residual" if len(evidence.reads) > 1 else "input"


def place_of(evidence: Evidence) -> str:
    """Where a tap errs, in words."""
    part, modules = part_of(evidence), evidence.finding.tap.modules
    if part == "attention":
        return block_of(evidence.module)
    if part == "activation":
        return f"{block_of(evidence.module)}, activation"
    if part == "embedding" and evidence.embedding:
        return describe([evidence.embedding])
    if part == "residual":
        before = [tap.modules[0] for tap in evidence.reads if tap.modules[0].endswith((".output", ".outer"))]
        return f"{block_of(before[-1])}, residual sum" if before else describe(modules)
    return f"what goes into {describe(modules)}" if part == "input" else describe(modules)
