"""Faults of a feed-forward before its last linear layer: another activation, or exchanged linear layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from txport.models.parts import ACTIVATIONS, FeedForward, GatedFeedForward, Linear
from txport.proof.bisect.calls import altered
from txport.proof.bisect.faults.evidence import Cause, Evidence
from txport.system.arrays import Array

Part = FeedForward | GatedFeedForward


class Together:
    """The method of `Ops` that a feed-forward requires: several linear layers with one input."""

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """See `Ops.together`."""
        return tuple(each(x) for each in maps)


def read_by(evidence: Evidence) -> tuple[Part, Tensor]:
    """Return PyTorch's feed-forward at the wrong value, and its input."""
    assert evidence.block is not None
    part = evidence.block.part
    x = evidence.block.arguments[0]
    assert isinstance(part, FeedForward | GatedFeedForward)
    assert x is not None
    return part, x


@torch.inference_mode()
def before_last(part: Part, x: Tensor, **changes: object) -> Array:
    """Return the input of the last linear layer, with changed attributes of the part."""
    changed: Any = altered(part, outer=nn.Identity(), **changes)
    found: Array = changed(x, Together()).numpy()
    return found


@torch.inference_mode()
def before_activation(part: Part, x: Tensor) -> Tensor:
    """Return the input of the activation."""
    first = part.gate if isinstance(part, GatedFeedForward) else part.inner
    found: Tensor = first(x)
    return found


@torch.inference_mode()
def other_activation(evidence: Evidence) -> Cause | None:
    """Another activation than the model's, or none."""
    part, x = read_by(evidence)
    kinds = {name: before_last(part, x, activation=name) for name in ACTIVATIONS}
    plain = before_activation(part, x)
    kinds["no activation"] = (plain * part.inner(x) if isinstance(part, GatedFeedForward) else plain).numpy()
    name = evidence.best(kinds)
    return None if name is None else Cause("activation", f"{name} in place of {part.activation}")


@torch.inference_mode()
def exchanged(evidence: Evidence) -> Cause | None:
    """A gated feed-forward with exchanged first linear layers, without one of them, or with an added gate."""
    part, x = read_by(evidence)
    if not isinstance(part, GatedFeedForward):
        return None
    activated = ACTIVATIONS[part.activation](part.gate(x))
    ways = {
        "the gate and the up projection are exchanged": before_last(part, x, gate=part.inner, inner=part.gate),
        "the gate is left out": part.inner(x).numpy(),
        "the up projection is left out": activated.numpy(),
        "the gate is added, not multiplied": (activated + part.inner(x)).numpy(),
    }
    return next((Cause("gate", what) for what, found in ways.items() if evidence.explains(found)), None)
