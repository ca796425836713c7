"""The fault models of each kind of value, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from txport.models.parts import NORM_TYPES, Attention, Embedding, FeedForward, Frames, GatedFeedForward, Residual
from txport.proof.faults.attention import (
    other_cache,
    other_cap,
    other_heads,
    other_mask,
    other_scale,
    other_sinks,
    other_window,
)
from txport.proof.faults.common import (
    multiple,
    no_bias,
    not_finite,
    other_output,
    summands,
    wrong_table,
    wrong_weight,
)
from txport.proof.faults.evidence import INPUT, OUTPUT, FaultModel
from txport.proof.faults.feed_forward import other_activation, other_gate, other_limit
from txport.proof.faults.inputs import moved, other_bend, other_frames, other_places, wrong_summand
from txport.proof.faults.norms import epsilon, other_norm
from txport.proof.faults.positions import other_bias, other_distances, other_turn

FaultModels = tuple[FaultModel, ...]

_norm: FaultModels = (wrong_weight, not_finite, other_norm, epsilon, multiple)
_feed_forward: FaultModels = (not_finite, other_activation, other_gate, other_limit, multiple)
_attention: FaultModels = (
    not_finite,
    other_window,
    other_mask,
    other_cache,
    other_turn,
    other_distances,
    other_heads,
    wrong_table,
    other_bias,
    other_sinks,
    other_cap,
    other_scale,
    multiple,
)
FAULTS: Mapping[object, FaultModels] = {
    nn.Linear: (wrong_weight, not_finite, no_bias, multiple),
    nn.Conv1d: (wrong_weight, not_finite, no_bias, other_frames, multiple),
    nn.Embedding: (wrong_weight, not_finite, multiple),
    **dict.fromkeys(NORM_TYPES, _norm),
    Embedding: (not_finite, moved, wrong_table, wrong_summand),
    Frames: (not_finite, wrong_table, other_places, other_bend, multiple),
    Attention: _attention,
    FeedForward: _feed_forward,
    GatedFeedForward: _feed_forward,
    Residual: (not_finite, summands),
    INPUT: (not_finite, other_output, multiple),
    OUTPUT: (not_finite, other_output, multiple),
}


def faults_of(kind: object, faults: Mapping[object, FaultModels] = FAULTS) -> FaultModels | None:
    """Return the fault models of a kind of value, or of the nearest class that it is derived from; None without any."""
    kinds = kind.__mro__ if isinstance(kind, type) else (kind,)
    return next((faults[each] for each in kinds if each in faults), None)
