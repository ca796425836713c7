"""Faults of caches that differ from PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from txport.models.parts import Attention, unflatten
from txport.proof.bisect.evidence import GraphEvidence
from txport.proof.faults.attention import INTERLEAVED, interleaved
from txport.proof.faults.calls import PartCall
from txport.proof.faults.common import multiple, not_finite
from txport.proof.faults.evidence import Cause, Hypothesis
from txport.proof.faults.kinds import FaultModels
from txport.proof.faults.positions import Turn, replaced, turned_again, turned_in, turns
from txport.system.arrays import Array


def swapped_ports(evidence: GraphEvidence) -> Iterator[Hypothesis]:
    """A cache with the content, the past or the new positions of another cache, or with new positions off by one."""
    own = evidence.modules[0]
    call = evidence.finding.observation.call
    for name, array in call.expected.items():
        if name != own and array.shape == evidence.seen.shape:
            yield Cause("cache", f"it holds what belongs in {name}"), array
    for what, array in _continued(own, call.becomes.get(own), call.inputs, call.expected):
        yield Cause("cache", what), array


def _continued(
    own: str, past: str | None, inputs: Mapping[str, Array], expected: Mapping[str, Array]
) -> Iterator[tuple[str, Array]]:
    """Yield the content of a cache with another's past, with another's new positions, or shifted by one position."""
    if past is None or past not in inputs:
        return
    inputs, expected = ({name: _by_heads(array) for name, array in each.items()} for each in (inputs, expected))
    right = expected[own]
    before = inputs[past]
    new = _new_places(right, before)
    for name, other in inputs.items():
        if name != past and other.shape == before.shape and other.ndim == right.ndim:
            hypothesis = right.copy()
            old = ~new[: other.shape[0], :, : other.shape[2]]
            hypothesis[:, :, : other.shape[2]] = np.where(old, other, hypothesis[:, :, : other.shape[2]])
            yield f"it goes on from {name} in place of {past}", hypothesis
    for name, other in expected.items():
        if name != own and other.shape == right.shape:
            yield f"it gets the new positions of {name}", np.where(new, other, right)
    for by in (1, -1):
        edge = new[:, :, -1 if by > 0 else 0]  # positions that a shift would move past the edge
        if before.shape == right.shape and not edge.any():
            hypothesis = np.where(np.roll(new, by, axis=2), np.roll(right, by, axis=2), before)
            yield f"a new position is written one {'after' if by > 0 else 'before'} its own", hypothesis


def _by_heads(array: Array) -> Array:
    """Return a cache whose heads are side by side (R, M, G x H) as one with one head: (R, 1, M, G x H)."""
    return array[:, None] if array.ndim == 3 else array


def _new_places(right: Array, before: Array) -> Array:
    """Return True at the positions that a call fills: after the past, or different from it."""
    new = np.ones(right.shape, dtype=bool)
    size = before.shape[2]
    new[:, :, :size] = (right[:, :, :size] != before).any(axis=(1, 3), keepdims=True)
    return new


def other_cached_turn(evidence: GraphEvidence) -> Iterator[Hypothesis]:
    """Cached keys with a wrong rotation."""
    expected = torch.from_numpy(evidence.expected)
    for call in (each for calls in evidence.record.values() for each in calls if isinstance(each.part, Attention)):
        found = turned_in(call)
        if found is None or replaced(expected, (key := found[1]).result, key.result) is None:
            continue

        def run(turn: Turn, key: PartCall = key) -> Array:
            other = replaced(expected, key.result, turned_again(key, turn))
            return (expected if other is None else other).numpy()

        yield from ((Cause("position", f"keys are {words}"), run(turn)) for words, turn in turns(key, evidence, run))


def other_cached_heads(evidence: GraphEvidence) -> Iterator[Hypothesis]:
    """Cached keys or values with an interleaved layout of heads."""
    expected = torch.from_numpy(evidence.expected)
    state = evidence.finding.tap.state
    assert state is not None
    heads = expected.shape[1]
    attentions = (each for each in evidence.model.modules() if isinstance(each, Attention))
    maps = [each.value if state.role == "value" else each.key for each in attentions]
    calls = (each for calls in evidence.record.values() for each in calls)
    for call in (each for each in calls if any(evidence.model.get_submodule(each.name) is own for own in maps)):
        tokens = call.result if call.result.dim() == 3 else call.result.unsqueeze(1)
        if tokens.shape[2] % heads or len(tokens) != len(expected):
            continue
        own = unflatten(tokens, 2, (heads, -1)).transpose(1, 2)
        if (other := replaced(expected, own, interleaved(own))) is not None:
            yield Cause("heads", INTERLEAVED), other.numpy()


FAULTS_OF_CACHES: FaultModels = (not_finite, swapped_ports, other_cached_turn, other_cached_heads, multiple)
