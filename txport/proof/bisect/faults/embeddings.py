"""Faults of the input embeddings: token embeddings, positions and segment."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from txport.models.parts import Embedding
from txport.proof.bisect.faults.common import wrong_sum
from txport.proof.bisect.faults.evidence import Cause, Evidence
from txport.system.arrays import Array
from txport.targets.ports import STEP

SHIFTS = (1, -1, 2, -2)


def moved(evidence: Evidence) -> Cause | None:
    """Tokens at wrong positions, or without positions."""
    table = _table(evidence)
    if table is None:
        return None
    own = _places(evidence, table)
    tokens = evidence.expected.reshape(len(own), -1) - table[own]
    for shift in SHIFTS:
        if evidence.explains(tokens + table[(own + shift) % len(table)]):
            return Cause("position", f"positions are off by {shift:+d}")
    anew = (0 * own if evidence.role == STEP else own - own.min()) + _part(evidence).offset
    if evidence.explains(tokens + table[anew % len(table)]):
        return Cause("position", "positions restart at 0 in each call")
    return Cause("position", "no position is added") if evidence.explains(tokens) else None


def wrong_positions(evidence: Evidence) -> Cause | None:
    """A table of positions or a segment vector that differs from the model's."""
    assert evidence.embedding is not None
    names = (f"{evidence.embedding.name}.{own}" for own in ("positions", "segment"))
    return next((evidence.wrong[name].cause for name in names if name in evidence.wrong), None)


def wrong_summand(evidence: Evidence) -> Cause | None:
    """A sum in which the token embedding, the position or the segment is missing or scaled."""
    parts = {"the embedding of a token": _looked_up(evidence)}
    table = _table(evidence)
    if table is not None:
        parts["that of a position"] = table[_places(evidence, table)]
    segment = getattr(_part(evidence), "segment", None)
    if isinstance(segment, Tensor):
        parts["that of the segment"] = np.broadcast_to(segment.numpy(), parts["the embedding of a token"].shape)
    return wrong_sum(evidence, parts)


def position_rows(evidence: Evidence) -> Iterator[Array]:
    """Yield PyTorch's position vectors, per token and without repetitions, and the sum without them."""
    table = _table(evidence)
    if table is not None:
        own = _places(evidence, table)
        yield from (table[own], table[np.unique(own)], evidence.expected.reshape(len(own), -1) - table[own])


def _part(evidence: Evidence) -> Embedding:
    assert evidence.embedding is not None
    part = evidence.embedding.part
    assert isinstance(part, Embedding)
    return part


def _table(evidence: Evidence) -> Array | None:
    """Return PyTorch's table of positions (positions, D); None if the model adds none."""
    positions = _part(evidence).positions
    return None if positions is None else positions.detach().numpy()


def _looked_up(evidence: Evidence) -> Array:
    """Return the token embeddings of the input before scaling: (tokens, D)."""
    assert evidence.embedding is not None
    call = evidence.embedding.inner_calls(_part(evidence).tokens)[0]
    return call.gave.reshape(-1, call.gave.shape[-1])


def _places(evidence: Evidence, table: Array) -> Array:
    """Return, for each token in order, the row of the position table that is nearest to PyTorch's added vector."""
    part = _part(evidence)
    segment = getattr(part, "segment", None)
    added = evidence.expected.reshape(-1, table.shape[1]) - _looked_up(evidence) * part.scale
    if isinstance(segment, Tensor):
        added = added - segment.detach().numpy()
    found: Array = (np.square(table).sum(1) - 2 * added @ table.T).argmin(1)
    return found
