"""Faults of an attention: what PyTorch's reads, and what that gives with another mask, cache or scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.bundles.ports import (
    ATTENTION_MASK,
    DECODER,
    ENCODER,
    ENCODER_ATTENTION_MASK,
    INPUT_IDS,
    PAST_LENGTHS,
    SOURCE_LENGTHS,
    STEP,
    past,
)
from txport.models.config import TransformerConfig
from txport.proof.bisect.evidence import Cause, Evidence
from txport.proof.bisect.probe import Observation

Array = NDArray[Any]

MASKED = -1e30
STEPS = 200  # of the search for a factor


@dataclass(frozen=True)
class Attended:
    """What PyTorch's attention read: (B, N, T, H), (B, N, S, H) twice, and which places may be seen (..., T, S)."""

    query: Array
    key: Array
    value: Array
    mask: Array

    def replace(self, **changes: Array) -> Attended:
        """With other keys, values or masks."""
        return dataclasses.replace(self, **changes)


def attended(place: str, role: str, observation: Observation, config: TransformerConfig) -> Attended:
    """What the attention `decoder.1.cross_attention` reads in one call."""
    query = _split(f"{place}.query", observation, config)
    key, value = (
        _split(f"{place}.{part}", observation, config) if name is None else _cached(name, observation)
        for part, name in zip(("key", "value"), _caches(place, role), strict=True)
    )
    return Attended(query, key, value, _mask(place, role, observation, config))


def attend(given: Attended, scale: float = 1.0) -> Array:
    """Attention in float64, its scores times `scale` -> (B * T, D)."""
    *_, mixed = inner_values(given, scale)
    result: Array = mixed.swapaxes(1, 2).reshape(-1, mixed.shape[1] * mixed.shape[3])
    return result


def inner_values(given: Attended, scale: float = 1.0) -> Iterator[Array]:
    """The steps of attention: products, scores, masked scores, weights, and the values that they mix (B, N, T, H)."""
    query, key = given.query.astype(np.float64), given.key.astype(np.float64)
    yield (products := query @ key.swapaxes(2, 3))  # (B, N, T, S)
    yield (scores := products * (scale / np.sqrt(query.shape[-1])))
    yield (masked := np.where(given.mask, scores, MASKED))
    powers = np.exp(masked - masked.max(axis=-1, keepdims=True))
    yield (weights := powers / powers.sum(axis=-1, keepdims=True))
    yield weights @ given.value


def _split(name: str, observation: Observation, config: TransformerConfig) -> Array:
    """What a linear map gave, as heads: (B, N, T, H)."""
    batch, length = observation.call.inputs[INPUT_IDS].shape
    if observation.call.role == STEP and ".attention." in name:
        batch, length = batch * length, 1  # beams are rows to themselves
    output: Array = observation.record[name][1].reshape(batch, length, config.heads, -1)
    return output.swapaxes(1, 2)


def _caches(place: str, role: str) -> tuple[str | None, str | None]:
    """The ports that hold what an attention looks at; None where its own maps do."""
    layer, block = place.split(".")[1:]
    if role == ENCODER:
        return None, None
    if role == DECODER:
        side = "encoder" if block == "cross_attention" else "decoder"
        return f"present.{layer}.{side}.key", f"present.{layer}.{side}.value"
    side = f"cross.{layer}" if block == "cross_attention" else f"present.{layer}"
    return f"{side}.key", f"{side}.value"


def _cached(name: str, observation: Observation) -> Array:
    return observation.call.expected[name] if name in observation.call.expected else observation.call.inputs[name]


def _mask(place: str, role: str, observation: Observation, config: TransformerConfig) -> Array:
    inputs, own = observation.call.inputs, place.endswith(".attention")
    if role == DECODER and own:
        length, before = inputs[INPUT_IDS].shape[1], inputs[past(config)[0]].shape[2]
        return np.arange(before + length) <= np.arange(before, before + length)[:, None]  # (T, P + T)
    if role == STEP and own:
        room = inputs["past.0.key"].shape[2]
        return (np.arange(room) <= inputs[PAST_LENGTHS][:, None])[:, None, None, :]
    if SOURCE_LENGTHS in inputs:
        size = inputs[INPUT_IDS].shape[1] if role == ENCODER else inputs["cross.0.key"].shape[2]
        return (np.arange(size) < inputs[SOURCE_LENGTHS][:, None])[:, None, None, :]
    mask = inputs[ATTENTION_MASK if role == ENCODER else ENCODER_ATTENTION_MASK]
    return mask.astype(bool)[:, None, None, :]


def read_by(evidence: Evidence) -> Attended:
    """What PyTorch's attention reads where this one errs."""
    place = evidence.module.removesuffix(".output")
    finding = evidence.finding
    return attended(place, finding.probe.role, finding.observation, evidence.model.config)


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
