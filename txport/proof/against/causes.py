"""The fault models for each kind of tap: those of bisect, and those of imports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from txport.models.parts import NORM_TYPES, Attention, Embedding, FeedForward, Frames, GatedFeedForward, Residual
from txport.proof.against.beside import Beside
from txport.proof.against.faults import (
    any_window,
    inner_transposed,
    lost_bias,
    masked_tokens,
    other_order,
    other_softmax,
    other_waves,
    transposed,
    unread,
)
from txport.proof.against.regrouping import other_number_of_heads, other_roles
from txport.proof.against.taps import END, IN
from txport.proof.bisect.faults.attention import other_cap, other_heads, other_mask, other_scale, other_window
from txport.proof.bisect.faults.common import multiple, no_bias, not_finite, other_output, summands
from txport.proof.bisect.faults.embeddings import moved, wrong_summand
from txport.proof.bisect.faults.evidence import Cause
from txport.proof.bisect.faults.feed_forward import exchanged, other_activation
from txport.proof.bisect.faults.frames import no_channel_bias, other_bend, other_frames, other_places
from txport.proof.bisect.faults.norms import epsilon, other_affine, other_norm
from txport.proof.bisect.faults.positions import other_distances, other_turn

FaultModel = Callable[[Any], Cause | None]

_norm: tuple[FaultModel, ...] = (not_finite, other_affine, other_norm, epsilon, multiple)
_feed_forward: tuple[FaultModel, ...] = (not_finite, other_activation, exchanged, multiple)
FAULTS: Mapping[object, tuple[FaultModel, ...]] = {
    nn.Linear: (not_finite, transposed, lost_bias, no_bias, multiple),
    nn.Conv1d: (not_finite, no_channel_bias, other_frames, multiple),
    nn.Embedding: (not_finite, multiple),
    **dict.fromkeys(NORM_TYPES, _norm),
    Embedding: (not_finite, other_order, unread, moved, other_waves, wrong_summand),
    Frames: (not_finite, other_places, other_bend, multiple),
    Attention: (
        not_finite,
        other_roles,
        other_window,
        other_mask,
        any_window,
        other_turn,
        other_distances,
        other_heads,
        other_number_of_heads,
        other_cap,
        other_scale,
        inner_transposed,
        multiple,
    ),
    FeedForward: _feed_forward,
    GatedFeedForward: _feed_forward,
    Residual: (not_finite, other_order, unread, summands),
    IN: (not_finite, other_order, unread, other_output, multiple),
    END: (masked_tokens, not_finite, unread, other_output, other_softmax, multiple),
}
# fault models whose descriptions are about the import; the others describe the original
OF_IMPORT = (transposed, inner_transposed, lost_bias, unread, other_roles, other_softmax, masked_tokens)


def cause_of(evidence: Beside) -> Cause | None:
    """Return the cause by the first fault model that explains the original's value; None if none does."""
    kind = evidence.kind
    kinds = kind.__mro__ if isinstance(kind, type) else (kind,)
    for fault_model in next((FAULTS[each] for each in kinds if each in FAULTS), ()):
        evidence.closest.clear()
        if cause := fault_model(evidence):
            return cause if fault_model in OF_IMPORT else _of_original(cause)
    evidence.closest.clear()
    return None


def _of_original(cause: Cause) -> Cause:
    """Return the cause in words for imports: bisect describes a graph that differs from the model."""
    what = cause.what.replace("the model's", "the import's").replace("PyTorch has", "the import has")
    what = re.sub("what (it|they) should be", "the import's", what)
    return Cause(cause.kind, f"in the original, {what}")
