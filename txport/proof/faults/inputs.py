"""Faults of the inputs of a model: embeddings of tokens, positions and segments, and the convolutions of audio."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txport.models.parts import ACTIVATIONS, Embedding, Frames, sinusoids
from txport.proof.faults.common import with_other, wrong_sum
from txport.proof.faults.evidence import Cause, Evidence, Hypothesis
from txport.system.arrays import Array
from txport.targets.ports import STEP

SHIFTS = (1, -1, 2, -2)
LAYOUTS = ("interleaved", "halves", "fairseq")  # of sinusoids


def moved(evidence: Evidence) -> Iterator[Hypothesis]:
    """Tokens at wrong positions, or without positions, or with sinusoids in another layout."""
    part = _part(evidence)
    if part.positions is None:
        return
    table = part.positions.detach().double().numpy()
    own = _places(evidence, table)
    tokens = evidence.expected.reshape(len(own), -1) - table[own]
    for shift in SHIFTS:
        yield Cause("position", f"positions are off by {shift:+d}"), tokens + table[(own + shift) % len(table)]
    anew = (0 * own if evidence.role == STEP else own - own.min()) + part.offset
    yield Cause("position", "positions restart at 0 in each call"), tokens + table[anew % len(table)]
    yield Cause("position", "no position is added"), tokens
    if not isinstance(part.positions, nn.Parameter):
        yield from _of_other_waves(own, tokens, len(table))


def _of_other_waves(own: Array, tokens: Array, longest: int) -> Iterator[Hypothesis]:
    """Yield the tokens (tokens, D) with sinusoids in another layout, also at shifted positions."""
    for layout in LAYOUTS[: 2 if tokens.shape[1] < 4 else 3]:
        waves = sinusoids(longest + max(SHIFTS), tokens.shape[1], layout).double().numpy()
        for offset in (0, *SHIFTS):
            if (own + offset >= 0).all():
                where = f", at positions that are off by {offset:+d}" if offset else ""
                what = f"its sinusoids are those of the layout {layout!r}{where}"
                yield Cause("position", what), tokens + waves[own + offset]


def wrong_summand(evidence: Evidence) -> Iterator[Hypothesis]:
    """A sum in which the token embedding, the position or the segment is missing or scaled."""
    part = _part(evidence)
    parts = {"the embedding of a token": _looked_up(evidence)}
    if part.positions is not None:
        table = part.positions.detach().numpy()
        parts["that of a position"] = table[_places(evidence, table)]
    if isinstance(part.segment, Tensor):
        parts["that of the segment"] = np.broadcast_to(part.segment.numpy(), parts["the embedding of a token"].shape)
    yield from wrong_sum(evidence, parts)


def position_rows(evidence: Evidence) -> Iterator[Array]:
    """Yield PyTorch's position vectors, per token and without repetitions, and the sum without them."""
    positions = _part(evidence).positions
    if positions is not None:
        table = positions.detach().numpy()
        own = _places(evidence, table)
        yield from (table[own], table[np.unique(own)], evidence.expected.reshape(len(own), -1) - table[own])


def _part(evidence: Evidence) -> Embedding:
    part = evidence.part_call.part
    assert isinstance(part, Embedding)
    return part


def _looked_up(evidence: Evidence) -> Array:
    """Return the token embeddings of the input before scaling: (tokens, D)."""
    call = evidence.part_call.inner_calls(_part(evidence).tokens)[0]
    return call.gave.reshape(-1, call.gave.shape[-1])


def _places(evidence: Evidence, table: Array) -> Array:
    """Return, for each token in order, the row of the position table that is nearest to PyTorch's added vector."""
    part = _part(evidence)
    added = evidence.expected.reshape(-1, table.shape[1]) - _looked_up(evidence) * part.scale
    if isinstance(part.segment, Tensor):
        added = added - part.segment.detach().numpy()
    found: Array = (np.square(table).sum(1) - 2 * added @ table.T).argmin(1)
    return found


# ------------------------------------------------------------------------------------------ the encoder of audio
def other_frames(evidence: Evidence) -> Iterator[Hypothesis]:
    """A convolution whose frames are shifted by one, or whose kernel is reversed."""
    part = evidence.part_call.part
    assert isinstance(part, nn.Conv1d)
    x = evidence.part_call.tensor
    size = part.kernel_size[0] // 2
    shifted = {by: F.pad(x, (size + by, size - by)) for by in (1, -1)}
    found = {f"its frames are off by {by:+d}": with_other(part, each, padding=(0,)) for by, each in shifted.items()}
    found["its kernel is reversed"] = with_other(part, x, weight=part.weight.flip(2))
    yield from evidence.nearest("convolution", found)


def other_places(evidence: Evidence) -> Iterator[Hypothesis]:
    """Positions of frames that are not added, or are off by one."""
    part = evidence.part_call.part
    assert isinstance(part, Frames)
    table = part.positions.detach().double().numpy()
    convolved = evidence.expected.reshape(-1, *table.shape) - table  # (B, T, D)
    found = {f"positions are off by {by:+d}": convolved + np.roll(table, by, 0) for by in (1, -1)}
    yield from evidence.nearest("position", {"no position is added": convolved, **found})


@torch.inference_mode()
def other_bend(evidence: Evidence) -> list[Hypothesis]:
    """Another activation after the last convolution, or none."""
    part = evidence.part_call.part
    assert isinstance(part, Frames)
    x = evidence.part_call.inner_calls(part.second)[0].result
    kinds = {name: bend(x) for name, bend in ACTIVATIONS.items() if name != part.activation} | {"no activation": x}
    found = {
        f"{name} in place of {part.activation}": each.transpose(1, 2) + part.positions for name, each in kinds.items()
    }
    return list(evidence.nearest("activation", found))
