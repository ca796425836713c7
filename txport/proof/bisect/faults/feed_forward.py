"""Faults of a feed-forward before its last linear map: run again with another activation, or its maps exchanged."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txport.models.parts import ACTIVATIONS, FeedForward, GatedFeedForward, Linear
from txport.proof.bisect.calls import altered
from txport.proof.bisect.faults.evidence import Cause, Evidence

Array = NDArray[Any]
Part = FeedForward | GatedFeedForward


class Together:
    """What a feed-forward asks of `Ops`: several maps of one input."""

    def together(self, x: Tensor, *maps: Linear) -> tuple[Tensor, ...]:
        """See `Ops.together`."""
        return tuple(each(x) for each in maps)


def read_by(evidence: Evidence) -> tuple[Part, Tensor]:
    """PyTorch's feed-forward where this one errs, and what it reads."""
    assert evidence.block is not None
    part = evidence.block.part
    x = evidence.block.arguments[0]
    assert isinstance(part, FeedForward | GatedFeedForward)
    assert x is not None
    return part, x


@torch.inference_mode()
def before_last(part: Part, x: Tensor, **changes: Any) -> Array:
    """What the last linear map reads, with changes."""
    changed: Any = altered(part, outer=nn.Identity(), **changes)
    found: Array = changed(x, Together()).numpy()
    return found


@torch.inference_mode()
def before_activation(part: Part, x: Tensor) -> Tensor:
    """What the activation reads."""
    first = part.gate if isinstance(part, GatedFeedForward) else part.inner
    found: Tensor = first(x)
    return found


@torch.inference_mode()
def other_activation(evidence: Evidence) -> Cause | None:
    """An activation that is not the model's."""
    part, x = read_by(evidence)
    kinds = {name: before_last(part, x, activation=name) for name in ACTIVATIONS}
    plain = before_activation(part, x)
    kinds["no activation"] = (plain * part.inner(x) if isinstance(part, GatedFeedForward) else plain).numpy()
    name = evidence.best(kinds)
    return None if name is None else Cause("activation", f"{name} in place of {part.activation}")


@torch.inference_mode()
def exchanged(evidence: Evidence) -> Cause | None:
    """A gated feed-forward whose two first maps change places, or one of which is left out."""
    part, x = read_by(evidence)
    if not isinstance(part, GatedFeedForward):
        return None
    activated = ACTIVATIONS[part.activation](part.gate(x))
    ways = {
        "the gate and the map beside it are exchanged": before_last(part, x, gate=part.inner, inner=part.gate),
        "the gate is left out": part.inner(x).numpy(),
        "the map beside the gate is left out": activated.numpy(),
        "the gate is added, not multiplied": (activated + part.inner(x)).numpy(),
    }
    return next((Cause("gate", what) for what, found in ways.items() if evidence.explains(found)), None)
