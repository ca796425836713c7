"""Faults of what goes into the first layer: the embeddings of tokens and of their positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from txport.bundles.ports import INPUT_IDS, PAST_LENGTHS, POSITION_IDS, STEP
from txport.proof.bisect.evidence import Cause, Evidence
from txport.proof.bisect.faults.common import describe_weight, wrong_sum

Array = NDArray[Any]

SHIFTS = (1, -1, 2, -2)


def moved(evidence: Evidence) -> Cause | None:
    """Tokens stand at other positions than their own."""
    own = _places(evidence)
    tokens = evidence.expected.reshape(len(own), -1) - _positions(evidence, own)
    for shift in SHIFTS:
        if evidence.explains(tokens + _positions(evidence, own + shift)):
            return Cause("position", f"positions are off by {shift:+d}")
    anew = 0 * own if evidence.finding.probe.role == STEP else own - own.min()
    if evidence.explains(tokens + _positions(evidence, anew)):
        return Cause("position", "positions start at 0 again in each call")
    return Cause("position", "no position is added") if evidence.explains(tokens) else None


def wrong_positions(evidence: Evidence) -> Cause | None:
    """The table of positions is not the model's."""
    name = f"{_embedding(evidence)}.positions"
    return describe_weight(evidence.wrong[name]) if name in evidence.wrong else None


def wrong_summand(evidence: Evidence) -> Cause | None:
    """The tokens' or the positions' part is scaled."""
    tokens = next(value for tap, value in evidence.reads.items() if tap.modules[0] == evidence.embedding)
    positions = _positions(evidence, _places(evidence))
    return wrong_sum(evidence, {"the embedding of a token": tokens, "that of a position": positions})


def position_rows(evidence: Evidence) -> Iterator[Array]:
    """What PyTorch looks up for the positions, for each token or each row once, and the tokens' part of the sum."""
    own = _places(evidence)
    rows = _positions(evidence, own)
    yield from (rows, _positions(evidence, np.unique(own)), evidence.expected.reshape(rows.shape) - rows)


def _embedding(evidence: Evidence) -> str:
    assert evidence.embedding is not None
    return evidence.embedding.removesuffix(".tokens")


def _positions(evidence: Evidence, places: Array) -> Array:
    """PyTorch's table, looked up at places, in circles: (tokens, D)."""
    table = evidence.model.get_submodule(_embedding(evidence)).positions
    assert isinstance(table, Tensor)
    values: Array = table.detach().numpy()[places % len(table)]
    return values


def _places(evidence: Evidence) -> Array:
    """The position of each token that goes in, in their order."""
    call = evidence.finding.observation.call
    if call.role == STEP:
        return call.inputs[PAST_LENGTHS].astype(np.int64)
    if POSITION_IDS in call.inputs:
        return call.inputs[POSITION_IDS].ravel()
    rows, length = call.inputs[INPUT_IDS].shape
    start = next((call.inputs[name].shape[2] for name in call.becomes.values()), 0)
    return np.tile(np.arange(start, start + length), rows)
