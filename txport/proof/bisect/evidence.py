"""The evidence of a wrong value at a tap of a graph, for fault models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import nn

from txport.models.facts import StateTensor
from txport.models.model import Model
from txport.models.parts import Frames, Residual
from txport.proof.bisect.isolation import Span, span_before
from txport.proof.bisect.probe import Finding
from txport.proof.bisect.taps import IN, OUT, PORT, Tap
from txport.proof.faults.calls import PartCall
from txport.proof.faults.evidence import INPUT, OUTPUT, Evidence, WrongWeight, last_map
from txport.proof.faults.words import describe
from txport.system.arrays import Array


@dataclass(frozen=True, kw_only=True)
class GraphEvidence(Evidence):
    """The evidence of one tap with a wrong value; `reads` are PyTorch's values at the taps that its `span` reads."""

    finding: Finding
    span: Span
    reads: Mapping[Tap, Array]


def evidence_of(finding: Finding, model: Model, wrong: Mapping[str, WrongWeight]) -> GraphEvidence:
    """Return the evidence of a finding; `wrong` are the weights that differ, by the model's first name of each."""
    tap, probe, observation = finding.tap, finding.probe, finding.observation
    span = span_before(probe.copy(), probe.taps, tap)
    reads = _reads(finding, span)
    call = _computing(finding, reads)
    if call is not None:
        kind: object = type(call.part)
    elif tap.side == PORT:
        kind = OUTPUT if tap.state is None else StateTensor
    else:
        kind = Residual if len(reads) > 1 else INPUT
    return GraphEvidence(
        model=model,
        kind=kind,
        modules=tap.modules,
        role=probe.role,
        record={name: [each for each in calls if each.kept] for name, calls in observation.record.items()},
        expected=observation.truths[tap].astype(np.float64),
        seen=observation.seen[tap].astype(np.float64),
        allowed=finding.worst.allowed,
        call=call,
        summands={_describe(model, each): value for each, value in reads.items()},
        arrays={**observation.call.inputs, **observation.call.expected},
        wrong=wrong,
        finding=finding,
        span=span,
        reads=reads,
    )


def _reads(finding: Finding, span: Span) -> dict[Tap, Array]:
    """Return PyTorch's values at the taps that a span reads; if a part outputs the tap's value, this output alone."""
    truths = finding.observation.truths
    own = finding.tap
    before = [tap for tap in truths if own.side == IN and tap.side == OUT and tap.value == own.value]
    if before:
        return {before[0]: truths[before[0]]}
    by_value = {tap.value: tap for tap in reversed(list(truths)) if tap.value in span.reads}
    return {tap: truths[tap] for tap in by_value.values()}


def call_at(finding: Finding, tap: Tap) -> PartCall | None:
    """Return the call of the first module at a tap; None if there is none."""
    calls = finding.observation.record.get(tap.modules[0], [])
    return calls[tap.nth] if tap.side != PORT and tap.nth < len(calls) else None


def _computing(finding: Finding, reads: Iterable[Tap]) -> PartCall | None:
    """Return the call of the part that computes the value at the tap of a finding; see `Evidence`."""
    side = finding.tap.side
    own = call_at(finding, finding.tap)
    if own is None or side == OUT:
        return own
    if own.parent is not None and own.part is last_map(own.parent.part):
        return own.parent
    calls = [call_at(finding, tap) for tap in reads]
    before = [call for call in calls if call is not None]
    parents = {call.parent for call in before}
    parent = parents.pop() if len(parents) == 1 and len(before) == len(calls) else None
    if all(isinstance(call.part, nn.Embedding) for call in before):
        return parent
    return parent if parent is not None and isinstance(parent.part, Frames) and parent is not own.parent else None


def _describe(model: Model, tap: Tap) -> str:
    where = describe(model, tap.modules)
    return f"what goes into {where}" if tap.side == IN else f"what {where} gives"
