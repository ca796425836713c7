"""Why a part of a graph errs: a list of fault models for each part, each tried on the figures.

A fault model computes what the part would give under one fault, which is the cause if that is what was seen, up to a
small share of the error. Nothing is concluded from names or from the shape of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

from txport.proof.bisect.evidence import Cause, Evidence, part_of
from txport.proof.bisect.faults.attention import other_cache, other_mask, other_scale
from txport.proof.bisect.faults.caches import swapped_ports
from txport.proof.bisect.faults.common import (
    epsilon,
    multiple,
    no_bias,
    not_finite,
    other_activation,
    summands,
    wrong_weight,
)
from txport.proof.bisect.faults.embeddings import moved, wrong_positions, wrong_summand

FaultModel = Callable[[Evidence], Cause | None]

FAULT_MODELS: dict[str, list[FaultModel]] = {
    "linear": [wrong_weight, not_finite, no_bias, multiple],
    "norm": [wrong_weight, not_finite, epsilon, multiple],
    "lookup": [wrong_weight, not_finite, multiple],
    "embedding": [not_finite, moved, wrong_positions, wrong_summand],
    "attention": [not_finite, other_mask, other_cache, other_scale, multiple],
    "activation": [not_finite, other_activation, multiple],
    "residual": [not_finite, summands],
    "cache": [not_finite, swapped_ports, multiple],
    "input": [not_finite, multiple],
    "choice": [not_finite, multiple],
}


def cause_of(evidence: Evidence) -> Cause:
    """The first fault model that explains what was seen."""
    if evidence.seen.shape != evidence.expected.shape:
        return Cause("shape", f"its shape is {evidence.seen.shape}, expected {evidence.expected.shape}")
    for fault_model in FAULT_MODELS[part_of(evidence)]:
        if cause := fault_model(evidence):
            return cause
    return Cause("operator", "what it gives is not what PyTorch computes from the same values")
