"""Faults of an attention: what PyTorch's reads, and what that gives with another mask, cache or scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from txport.models.parts import DotProduct
from txport.proof.bisect.evidence import Cause, Evidence
from txport.proof.bisect.probe import Observation

Array = NDArray[Any]

MASKED = -1e30
STEPS = 200  # of the search for a factor


@dataclass(frozen=True)
class Attended:
    """What PyTorch's attention read: (B, N, T, H), (B, N, S, H) twice, and which places may be seen (..., T, S).

    `scale` is the factor of the scores, `bias` (..., T, S) what positions add to them.
    """

    query: Array
    key: Array
    value: Array
    mask: Array
    scale: float
    bias: Array | None = None

    def replace(self, **changes: Any) -> Attended:
        """With other keys, values or masks."""
        return dataclasses.replace(self, **changes)


def attended(place: str, observation: Observation, model: nn.Module) -> Attended:
    """What the attention `decoder.1.cross_attention` reads in one call; keys and values once for each head."""
    name = f"{place}.core"
    core = model.get_submodule(name)
    query, key, value, mask, *rest = observation.record[name]
    key, value = (np.repeat(each, query.shape[1] // each.shape[1], axis=1) for each in (key, value))
    bias = None
    if isinstance(core, DotProduct) and core.bias is not None and len(rest) > 1:
        bias = core.bias(torch.from_numpy(rest[0])).detach().numpy()
    scale = core.scale if isinstance(core, DotProduct) else 1.0
    return Attended(query, key, value, mask == 0, scale, bias)


def attend(given: Attended, scale: float = 1.0) -> Array:
    """Attention in float64, its scores times `scale` -> (B * T, D)."""
    *_, mixed = inner_values(given, scale)
    result: Array = mixed.swapaxes(1, 2).reshape(-1, mixed.shape[1] * mixed.shape[3])
    return result


def inner_values(given: Attended, scale: float = 1.0) -> Iterator[Array]:
    """The steps of attention: products, scores, masked scores, weights, and the values that they mix (B, N, T, H)."""
    query, key = given.query.astype(np.float64), given.key.astype(np.float64)
    yield (products := query @ key.swapaxes(2, 3))  # (B, N, T, S)
    yield (scores := products * (scale * given.scale))
    if given.bias is not None:
        yield (scores := scores + given.bias)
    yield (masked := np.where(given.mask, scores, MASKED))
    powers = np.exp(masked - masked.max(axis=-1, keepdims=True))
    yield (weights := powers / powers.sum(axis=-1, keepdims=True))
    yield weights @ given.value


def read_by(evidence: Evidence) -> Attended:
    """What PyTorch's attention reads where this one errs."""
    place = evidence.module.removesuffix(".output")
    return attended(place, evidence.finding.observation, evidence.model)


def other_mask(evidence: Evidence) -> Cause | None:
    """An attention that sees places that it must not, or not all that it may."""
    given, cross = read_by(evidence), "cross" in evidence.module or evidence.finding.probe.role == "encoder"
    whose = "padding of the source" if cross else "tokens to come" if given.mask.ndim == 2 else "unused cache"
    kinds = {f"the mask is dropped: {whose} is seen": np.ones_like(given.mask)}
    if whose == "tokens to come":
        kinds["the mask is dropped: tokens to come are seen"] = kinds.pop("the mask is dropped: tokens to come is seen")
    for by, words in ((1, "one place too many is seen"), (-1, "one place too few is seen")):
        kinds[f"the mask is off by one: {words}"] = _shifted(given.mask, by)
    for what, mask in kinds.items():
        if evidence.explains(attend(given.replace(mask=mask))):
            return Cause("mask", what)
    return None


def _shifted(mask: Array, by: int) -> Array:
    counts = mask.sum(axis=-1, keepdims=True) + by
    shifted: Array = np.arange(mask.shape[-1]) < counts
    return shifted


def other_cache(evidence: Evidence) -> Cause | None:
    """An attention over keys or values of others."""
    given, observation = read_by(evidence), evidence.finding.observation
    if evidence.explains(attend(given.replace(key=given.value, value=given.key))):
        return Cause("cache", "keys and values are swapped")
    arrays = {**observation.call.inputs, **observation.call.expected}
    for name, array in arrays.items():
        if array.shape == given.key.shape:
            for part in ("key", "value"):
                if evidence.explains(attend(given.replace(**{part: array}))):
                    return Cause("cache", f"{name} is read as its {part}s")
    return None


def other_scale(evidence: Evidence) -> Cause | None:
    """Scores that are not divided by the square root of the head's size: the factor that fits best."""
    given = read_by(evidence)

    def error(factor: float) -> float:
        return float(np.square(attend(given, factor).reshape(evidence.seen.shape) - evidence.seen).sum())

    grid = np.geomspace(1 / 64, 64, 97)
    best = int(np.argmin([error(factor) for factor in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    for _ in range(STEPS):
        if high - low < 1e-9 * high:
            break
        left, right = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, right) if error(left) < error(right) else (left, high)
    factor = (low + high) / 2
    if not evidence.explains(attend(given, factor)):
        return None
    return Cause("scale", f"scores are scaled by {factor:.4g} of what they should be")
