"""Faults of a feed-forward before its last linear layer: another activation, or exchanged linear layers."""

from __future__ import annotations

import torch
from torch import Tensor

from txport.models.parts import ACTIVATIONS, FeedForward, GatedFeedForward
from txport.proof.faults.calls import altered
from txport.proof.faults.evidence import Cause, Evidence, Hypothesis
from txport.system.arrays import Array


def read_by(evidence: Evidence) -> tuple[FeedForward | GatedFeedForward, Tensor]:
    """Return PyTorch's feed-forward at the wrong value, and its input."""
    part = evidence.part_call.part
    assert isinstance(part, FeedForward | GatedFeedForward)
    return part, evidence.part_call.tensor


@torch.inference_mode()
def before_activation(part: FeedForward | GatedFeedForward, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the input of the activation, and what its result is multiplied by."""
    inner: Tensor = part.inner(x)
    return part.limited(part.gate(x), inner) if isinstance(part, GatedFeedForward) else (inner, torch.ones(()))


@torch.inference_mode()
def other_activation(evidence: Evidence) -> list[Hypothesis]:
    """Another activation than the model's, or none."""
    part, x = read_by(evidence)
    plain, up = before_activation(part, x)
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
    gate, up = before_activation(part, x)
    second, first = part.limited(part.inner(x), part.gate(x))
    ways = {
        "the gate and the up projection are exchanged": activate(second) * first,
        "the gate is left out": up,
        "the up projection is left out": activate(gate),
        "the gate is added, not multiplied": activate(gate) + up,
    }
    return [(Cause("gate", what), each.numpy()) for what, each in ways.items()]


@torch.inference_mode()
def other_limit(evidence: Evidence) -> list[Hypothesis]:
    """A gated feed-forward without the model's limit, or with another one; that which fits best is tried."""
    part, x = read_by(evidence)
    if not isinstance(part, GatedFeedForward) or not part.limit:
        return []
    activate = ACTIVATIONS[part.activation]

    def limited(limit: float) -> Array:
        gate, up = before_activation(altered(part, limit=limit), x)
        found: Array = (activate(gate) * up).numpy()
        return found

    limit = evidence.fitted(limited, part.limit / 64, part.limit * 64)
    ways = {"gates are not limited, and 1 is not added": 0.0, f"gates are limited at {limit:.4g}": limit}
    models = f", the model's are limited at {part.limit:g}"
    return [(Cause("limit", what + models), limited(each)) for what, each in ways.items()]
