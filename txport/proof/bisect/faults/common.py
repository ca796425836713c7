"""Faults of parts that are the same everywhere: weights, norms, activations, sums, factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from txport.models.parts import ACTIVATIONS
from txport.proof.bisect.evidence import EXPLAINED, Cause, Evidence, WrongWeight
from txport.proof.bisect.parts import describe
from txport.proof.bisect.taps import IN, Tap

Array = NDArray[Any]

NOTHING = 1e-4  # times what it should be: not there at all


def wrong_weight(evidence: Evidence) -> Cause | None:
    """The weight that it reads is not the checkpoint's."""
    named = {id(each): name for name, each in evidence.model.named_parameters()}
    for module in evidence.finding.tap.modules:
        for parameter in evidence.model.get_submodule(module).parameters(recurse=False):
            if named[id(parameter)] in evidence.wrong:
                return describe_weight(evidence.wrong[named[id(parameter)]])
    return None


def describe_weight(wrong: WrongWeight) -> Cause:
    """How a weight differs from the checkpoint's."""
    name, held, expected = wrong.name, wrong.held, wrong.expected
    if held.shape != expected.shape:
        return Cause("weight", f"{name} has the shape {held.shape}, the checkpoint's {expected.shape}")
    index = np.unravel_index(int(np.nan_to_num(np.abs(held - expected), nan=np.inf).argmax()), held.shape)
    at = f"{name}{[int(i) for i in index]} is {held[index]:.6g}, the checkpoint has {expected[index]:.6g}"
    if not np.isfinite(held).all():
        return Cause("NaN", at)
    factor = _factor(held, expected)
    if factor is not None:
        return Cause("weight", f"{name} is {factor:.6g} times the checkpoint's")
    count = int((held != expected).sum())
    return Cause("weight", f"{at}; {count} of its {held.size} values differ")


def not_finite(evidence: Evidence) -> Cause | None:
    """Numbers go in, something else comes out."""
    broken = ~np.isfinite(evidence.seen)
    if not broken.any():
        return None
    index = tuple(int(i) for i in np.argwhere(broken)[0])
    first = f"the first at {list(index)} is {evidence.seen[index]}, PyTorch has {evidence.expected[index]:.6g}"
    return Cause("NaN", f"{int(broken.sum())} of {broken.size} values are no finite numbers; {first}")


def multiple(evidence: Evidence) -> Cause | None:
    """All of it is too large or too small by one factor."""
    factor = _factor(evidence.seen, evidence.expected)
    return None if factor is None else Cause("scale", f"all of it is {factor:.6g} times what it should be")


def _factor(seen: Array, expected: Array) -> float | None:
    """By which one is the other, if it is."""
    norm = float(np.sum(np.square(expected, dtype=np.float64)))
    factor = float(np.sum(seen.astype(np.float64) * expected)) / norm if norm else 1.0
    error, left = np.abs(seen - expected).max(initial=0.0), np.abs(seen - factor * expected).max(initial=0.0)
    return factor if left <= EXPLAINED * error else None


def summands(evidence: Evidence) -> Cause | None:
    """A sum of what it reads, one part of it missing or scaled."""
    return wrong_sum(evidence, {_words(tap): value for tap, value in evidence.reads.items()})


def _words(tap: Tap) -> str:
    where = describe(tap.modules)
    return f"what goes into {where}" if tap.side == IN else f"what {where} gives"


def wrong_sum(evidence: Evidence, parts: Mapping[str, Array]) -> Cause | None:
    """Which part of a sum is not added as it should be; the factors are those that fit best."""
    known = {words: value for words, value in parts.items() if value.size == evidence.seen.size}
    if len(known) < 2:
        return None
    matrix = np.stack([value.astype(np.float64).ravel() for value in known.values()], axis=1)
    seen, right = (np.linalg.lstsq(matrix, each.ravel(), rcond=None)[0] for each in (evidence.seen, evidence.expected))
    if not evidence.explains(matrix @ seen):
        return None
    words, ratio = max(zip(known, seen / right, strict=True), key=lambda each: abs(each[1] - 1))
    if abs(ratio) < NOTHING:
        return Cause("sum", f"{words} is not added")
    return Cause("scale", f"{words} is scaled by {ratio:.6g} of what it should be")


def epsilon(evidence: Evidence) -> Cause | None:
    """A norm with another epsilon."""
    norm = evidence.model.get_submodule(evidence.module)
    assert isinstance(norm, nn.LayerNorm)
    x = evidence.finding.observation.record[evidence.module][0].astype(np.float64)
    x = (x - x.mean(axis=-1, keepdims=True)).reshape(-1, x.shape[-1])
    weight, bias = (each.detach().numpy().astype(np.float64) for each in (norm.weight, norm.bias))
    seen = evidence.seen.reshape(x.shape) - bias
    variance = np.square(x).mean(axis=-1)
    shrink = (seen * x * weight).sum(axis=-1) / np.square(x * weight).sum(axis=-1)  # 1 / sqrt(variance + epsilon)
    found = float(np.median(1 / np.square(shrink) - variance))
    if not evidence.explains(x / np.sqrt(np.abs(variance + found))[:, None] * weight + bias):
        return None
    return Cause("epsilon", f"epsilon is {found:.2g}, the model's is {norm.eps:.3g}")


def no_bias(evidence: Evidence) -> Cause | None:
    """A linear map whose bias was lost."""
    biases = [evidence.model.get_submodule(module).bias for module in evidence.finding.tap.modules]
    if any(bias is None for bias in biases):
        return None
    bias = np.concatenate([each.detach().numpy() for each in biases if isinstance(each, torch.Tensor)])
    return Cause("weight", "its bias is not added") if evidence.explains(evidence.expected - bias) else None


def other_activation(evidence: Evidence) -> Cause | None:
    """An activation that is not the model's."""
    x = torch.from_numpy(evidence.before_activation)
    own = evidence.model.get_submodule(evidence.module.rpartition(".")[0]).activation
    kinds: dict[str, Callable[[Tensor], Tensor]] = {**ACTIVATIONS, "no activation": nn.Identity()}
    for name, function in kinds.items():
        if evidence.explains(function(x).numpy()):
            return Cause("activation", f"{name} in place of {own}")
    return None
