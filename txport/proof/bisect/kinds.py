"""The kinds of parts: for each, the description of its position and its fault models.

A fault model runs a part again in float64 with one change, or computes its result under one fault. If this result
equals the graph's value, up to a small share of the error, the fault is the cause. Names and the structure of the graph
are not used as evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from txport.errors import ParityError
from txport.models.facts import StateTensor
from txport.models.parts import NORM_TYPES, Attention, Embedding, FeedForward, Frames, GatedFeedForward, Residual
from txport.proof.bisect.evidence import INPUT_KIND, PORT_KIND, TapEvidence
from txport.proof.bisect.faults.attention import (
    other_cache,
    other_cap,
    other_heads,
    other_mask,
    other_scale,
    other_window,
)
from txport.proof.bisect.faults.caches import other_cached_heads, swapped_ports
from txport.proof.bisect.faults.common import (
    inner_weight,
    multiple,
    no_bias,
    not_finite,
    other_output,
    summands,
    wrong_weight,
)
from txport.proof.bisect.faults.embeddings import moved, wrong_positions, wrong_summand
from txport.proof.bisect.faults.evidence import Cause
from txport.proof.bisect.faults.feed_forward import exchanged, other_activation
from txport.proof.bisect.faults.frames import no_channel_bias, other_bend, other_frames, other_places, wrong_table
from txport.proof.bisect.faults.norms import epsilon, other_affine, other_norm, wrong_epsilon
from txport.proof.bisect.faults.positions import other_bias, other_cached_turn, other_distances, other_turn
from txport.proof.bisect.taps import OUT
from txport.proof.bisect.words import describe, describe_state

UNKNOWN = "operator"  # the kind of a fault that no fault model explains
FaultModel = Callable[[TapEvidence], Cause | None]


@dataclass(frozen=True)
class Kind:
    """The description of a position of this kind, and its fault models in the order in which they are tried."""

    words: Callable[[TapEvidence], str]
    faults: tuple[FaultModel, ...]


def _itself(evidence: TapEvidence) -> str:
    return describe(evidence.model, evidence.finding.tap.modules)


def _block(evidence: TapEvidence) -> str:
    assert evidence.block is not None
    return describe(evidence.model, [evidence.block.name])


def _activation(evidence: TapEvidence) -> str:
    return f"{_block(evidence)}, activation"


def _embedding(evidence: TapEvidence) -> str:
    assert evidence.embedding is not None
    return describe(evidence.model, [evidence.embedding.name])


def _frames(evidence: TapEvidence) -> str:
    assert evidence.frames is not None
    return describe(evidence.model, [evidence.frames.name])


def _sum(evidence: TapEvidence) -> str:
    """Describe a residual sum by the last sublayer that it adds."""
    calls = [evidence.call_at(tap) for tap in evidence.reads if tap.side == OUT]
    ends = [found for call in calls if call is not None and (found := evidence.sublayer_of(call))]
    return f"{describe(evidence.model, [ends[-1]])}, residual sum" if ends else _itself(evidence)


def _input(evidence: TapEvidence) -> str:
    return f"what goes into {_itself(evidence)}"


def _cache(evidence: TapEvidence) -> str:
    assert evidence.finding.tap.state is not None
    return describe_state(evidence.finding.tap.state)


_norm = Kind(_itself, (wrong_weight, wrong_epsilon, not_finite, other_affine, other_norm, epsilon, multiple))
_feed_forward = Kind(_activation, (not_finite, other_activation, exchanged, multiple))
KINDS: Mapping[type, Kind] = {
    nn.Linear: Kind(_itself, (wrong_weight, not_finite, no_bias, multiple)),
    nn.Conv1d: Kind(_itself, (wrong_weight, not_finite, no_channel_bias, other_frames, multiple)),
    nn.Embedding: Kind(_itself, (wrong_weight, not_finite, multiple)),
    **dict.fromkeys(NORM_TYPES, _norm),
    Embedding: Kind(_embedding, (not_finite, moved, wrong_positions, wrong_summand)),
    Frames: Kind(_frames, (not_finite, wrong_table, other_places, other_bend, multiple)),
    Attention: Kind(
        _block,
        (
            not_finite,
            other_mask,
            other_window,
            other_cache,
            other_turn,
            other_distances,
            other_heads,
            inner_weight,
            other_bias,
            other_cap,
            other_scale,
            multiple,
        ),
    ),
    FeedForward: _feed_forward,
    GatedFeedForward: _feed_forward,
    Residual: Kind(_sum, (not_finite, summands)),
    StateTensor: Kind(_cache, (not_finite, swapped_ports, other_cached_turn, other_cached_heads, multiple)),
    INPUT_KIND: Kind(_input, (not_finite, other_output, multiple)),
    PORT_KIND: Kind(_itself, (not_finite, other_output, multiple)),
}


def kind_of(evidence: TapEvidence) -> Kind:
    """Return the kind of the value at a tap; raise `ParityError` if there is none."""
    for each in evidence.kind.__mro__:
        if each in KINDS:
            return KINDS[each]
    name = evidence.finding.tap.name
    raise ParityError(f"no part covers {name}, a {evidence.kind.__name__}: give this kind of part words and faults")


def place_of(evidence: TapEvidence) -> str:
    """Describe the position of a tap, and name the parts of the user's own that compute the value."""
    again = f" (call {evidence.finding.tap.nth + 1})" if evidence.finding.tap.nth else ""
    own = f" (a part of {' and '.join(evidence.own_parts)})" if evidence.own_parts else ""
    where = evidence.lost.where if evidence.lost is not None else kind_of(evidence).words(evidence)
    return where + again + own


def cause_of(evidence: TapEvidence) -> Cause:
    """Return the cause by the first fault model that explains the graph's value."""
    if evidence.seen.shape != evidence.expected.shape:
        return Cause("shape", f"its shape is {evidence.seen.shape}, expected {evidence.expected.shape}")
    own = (evidence.wrong.get(each.tensor) for each in evidence.own)
    if (wrong := next((each for each in own if each is not None), None)) is not None:
        return wrong.cause
    if evidence.lost is not None:
        return evidence.lost.cause
    for fault_model in kind_of(evidence).faults:
        if cause := fault_model(evidence):
            return cause
    return Cause(UNKNOWN, "what it gives is not what PyTorch computes from the same values")
