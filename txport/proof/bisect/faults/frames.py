"""Faults of the input of an audio encoder: its convolutions, and the positions that are added."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from txport.models.parts import ACTIVATIONS, Frames
from txport.proof.bisect.calls import PartCall, altered
from txport.proof.bisect.faults.evidence import Cause, Evidence

SHIFTS = (1, -1)


def no_channel_bias(evidence: Evidence) -> Cause | None:
    """A convolution without its bias."""
    part = _convolution(evidence)
    if part.bias is None:
        return None
    bias = part.bias.detach().double().numpy()[:, None]
    return Cause("weight", "its bias is not added") if evidence.explains(evidence.expected - bias) else None


@torch.inference_mode()
def other_frames(evidence: Evidence) -> Cause | None:
    """A convolution whose frames are shifted by one, or whose kernel is reversed."""
    part = _convolution(evidence)
    call = evidence.call
    assert call is not None
    x = call.arguments[0]
    assert x is not None
    size = part.kernel_size[0] // 2
    bare = altered(part, padding=(0,))
    found = {f"its frames are off by {by:+d}": bare(F.pad(x, (size + by, size - by))).numpy() for by in SHIFTS}
    found["its kernel is reversed"] = altered(part, weight=part.weight.flip(2))(x).numpy()
    what = evidence.best(found)
    return None if what is None else Cause("convolution", what)


def _convolution(evidence: Evidence) -> nn.Conv1d:
    assert evidence.call is not None
    assert isinstance(evidence.call.part, nn.Conv1d)
    return evidence.call.part


def wrong_table(evidence: Evidence) -> Cause | None:
    """A table of positions that differs from the model's."""
    name = f"{_frames(evidence).name}.positions"
    return evidence.wrong[name].cause if name in evidence.wrong else None


def other_places(evidence: Evidence) -> Cause | None:
    """Positions that are not added, or are off by one."""
    part = _part(evidence)
    table = part.positions.detach().double().numpy()
    convolved = evidence.expected.reshape(-1, *table.shape) - table  # (B, T, D)
    found = {"no position is added": convolved}
    found |= {f"positions are off by {by:+d}": convolved + np.roll(table, by, 0) for by in SHIFTS}
    what = evidence.best(found)
    return None if what is None else Cause("position", what)


@torch.inference_mode()
def other_bend(evidence: Evidence) -> Cause | None:
    """Another activation after the last convolution, or none."""
    part = _part(evidence)
    x = _frames(evidence).inner_calls(part.second)[0].result
    others = {name: bend for name, bend in ACTIVATIONS.items() if name != part.activation}
    found = {name: bend(x).transpose(1, 2) + part.positions for name, bend in others.items()}
    found["no activation"] = x.transpose(1, 2) + part.positions
    what = evidence.best({name: each.numpy() for name, each in found.items()})
    return None if what is None else Cause("activation", f"{what} in place of {part.activation}")


def _frames(evidence: Evidence) -> PartCall:
    assert evidence.frames is not None
    return evidence.frames


def _part(evidence: Evidence) -> Frames:
    part = _frames(evidence).part
    assert isinstance(part, Frames)
    return part
