"""Why a part of a graph errs: a list of guesses for each part, each tried on the figures.

A guess computes what the part would give if it were true; it is the cause if that is what was seen, up to a small
share of the error. Nothing is concluded from names or from the shape of the graph.
"""

from __future__ import annotations

from collections.abc import Callable

from txport.proof.evidence import Cause, Evidence, part_of
from txport.proof.guesses.attention import other_cache, other_mask, other_scale
from txport.proof.guesses.caches import swapped_ports
from txport.proof.guesses.common import epsilon, multiple, no_bias, not_finite, other_activation, summands, wrong_weight
from txport.proof.guesses.embeddings import moved, wrong_positions, wrong_summand

Guess = Callable[[Evidence], Cause | None]

GUESSES: dict[str, list[Guess]] = {
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
    """The first guess that explains what was seen."""
    if evidence.seen.shape != evidence.expected.shape:
        return Cause("shape", f"its shape is {evidence.seen.shape}, expected {evidence.expected.shape}")
    for guess in GUESSES[part_of(evidence)]:
        if cause := guess(evidence):
            return cause
    return Cause("operator", "what it gives is not what PyTorch computes from the same values")
