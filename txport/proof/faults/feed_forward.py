"""Faults of a feed-forward before its last linear layer: another activation, or exchanged linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from txport.models.parts import ACTIVATIONS, FeedForward, GatedFeedForward
from txport.proof.faults.evidence import Cause, Evidence, Hypothesis


def read_by(evidence: Evidence) -> tuple[FeedForward | GatedFeedForward, Tensor]:
    """Return PyTorch's feed-forward at the wrong value, and its input."""
    part = evidence.part_call.part
    assert isinstance(part, FeedForward | GatedFeedForward)
    return part, evidence.part_call.tensor


@torch.inference_mode()
def before_activation(part: FeedForward | GatedFeedForward, x: Tensor) -> Tensor:
    """Return the input of the activation."""
    first = part.gate if isinstance(part, GatedFeedForward) else part.inner
    found: Tensor = first(x)
    return found


@torch.inference_mode()
def other_activation(evidence: Evidence) -> list[Hypothesis]:
    """Another activation than the model's, or none."""
    part, x = read_by(evidence)
    plain = before_activation(part, x)
    up = part.inner(x) if isinstance(part, GatedFeedForward) else 1.0
    kinds = {name: activate(plain) * up for name, activate in ACTIVATIONS.items()} | {"no activation": plain * up}
    words = {f"{name} in place of {part.activation}": each for name, each in kinds.items()}
    return list(evidence.nearest("activation", words))


@torch.inference_mode()
def other_gate(evidence: Evidence) -> list[Hypothesis]:
    """A gated feed-forward with exchanged first linear layers, without one of them, or with an added gate."""
    part, x = read_by(evidence)
    if not isinstance(part, GatedFeedForward):
        return []
    activate = ACTIVATIONS[part.activation]
    gate, up = part.gate(x), part.inner(x)
    ways = {
        "the gate and the up projection are exchanged": activate(up) * gate,
        "the gate is left out": up,
        "the up projection is left out": activate(gate),
        "the gate is added, not multiplied": activate(gate) + up,
    }
    return [(Cause("gate", what), each.numpy()) for what, each in ways.items()]
