"""Faults that occur in all kinds of parts: weights, sums, factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.parts import ACTIVATIONS, SoftCap
from txport.proof.bisect.faults.evidence import EXPLAINED, Cause, Evidence
from txport.system.arrays import Array

GRID, STEPS = 97, 200  # number of grid points and of search steps
NOTHING = 1e-4  # a smaller factor means that the value is missing


def fitted(evidence: Evidence, run: Callable[[float], Array], least: float, most: float) -> float:
    """Return the argument in [least, most] for which `run` is closest to the value that was seen.

    The search is a geometric grid, then a golden-section search. Returns `least` if the sizes differ.
    """

    def error(value: float) -> float:
        found = run(value)
        return float(np.square(found.reshape(evidence.seen.shape) - evidence.seen).sum())

    if run(most).size != evidence.seen.size:
        return least
    grid = np.geomspace(least, most, GRID)
    best = int(np.argmin([error(value) for value in grid]))
    low = grid[max(best - 1, 0)]
    high = grid[min(best + 1, len(grid) - 1)]
    for _ in range(STEPS):
        if high - low < 1e-9 * high:
            break
        left = low + 0.382 * (high - low)
        right = low + 0.618 * (high - low)
        low, high = (low, right) if error(left) < error(right) else (left, high)
    return float((low + high) / 2)


def wrong_weight(evidence: Evidence) -> Cause | None:
    """A weight of the part that differs from the checkpoint's."""
    parts = (evidence.model.get_submodule(module) for module in evidence.modules)
    return _wrong_among(evidence, (each for part in parts for each in part.parameters(recurse=False)))


def inner_weight(evidence: Evidence) -> Cause | None:
    """A weight or table of attention, linear layers excluded, that differs from the checkpoint's."""
    assert evidence.block is not None
    part = evidence.model.get_submodule(evidence.block.name)
    inner = [each for each in part.modules() if not isinstance(each, nn.Linear)]
    tensors = (tensor for each in inner for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False)))
    return _wrong_among(evidence, tensors)


def _wrong_among(evidence: Evidence, tensors: Iterable[Tensor]) -> Cause | None:
    """Return the cause for the first of these tensors that has other values in the graph; None if there is none."""
    names: dict[int, str] = {}
    for name, tensor in (*evidence.model.named_parameters(), *evidence.model.named_buffers()):
        names.setdefault(id(tensor), name)
    found = (names[id(tensor)] for tensor in tensors)
    return next((evidence.wrong[name].cause for name in found if name in evidence.wrong), None)


def weight_cause(name: str, held: Array, expected: Array) -> Cause:
    """Describe the difference of a graph's weight from the checkpoint's: shape, NaN, factor or values."""
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
    """Values that are NaN or infinite."""
    broken = ~np.isfinite(evidence.seen)
    if not broken.any():
        return None
    index = tuple(int(i) for i in np.argwhere(broken)[0])
    first = f"the first at {list(index)} is {evidence.seen[index]}, PyTorch has {evidence.expected[index]:.6g}"
    return Cause("NaN", f"{int(broken.sum())} of {broken.size} values are no finite numbers; {first}")


def multiple(evidence: Evidence) -> Cause | None:
    """A result that is PyTorch's times one factor."""
    factor = _factor(evidence.seen, evidence.expected)
    return None if factor is None else Cause("scale", f"all of it is {factor:.6g} times what it should be")


def _factor(seen: Array, expected: Array) -> float | None:
    """Return the factor between two arrays; None if one is not a multiple of the other."""
    norm = float(np.sum(np.square(expected, dtype=np.float64)))
    factor = float(np.sum(seen.astype(np.float64) * expected)) / norm if norm else 1.0
    error = np.abs(seen - expected).max(initial=0.0)
    left = np.abs(seen - factor * expected).max(initial=0.0)
    return factor if left <= EXPLAINED * error else None


def summands(evidence: Evidence) -> Cause | None:
    """A sum of its inputs in which one summand is missing or scaled."""
    return wrong_sum(evidence, evidence.summands)


def wrong_sum(evidence: Evidence, parts: Mapping[str, Array]) -> Cause | None:
    """Return the cause if one summand is missing or scaled; factors are fitted by least squares."""
    known = {words: value for words, value in parts.items() if value.size == evidence.seen.size}
    if not known:
        return None
    matrix = np.stack([value.astype(np.float64).ravel() for value in known.values()], axis=1)
    seen, right = (np.linalg.lstsq(matrix, each.ravel(), rcond=None)[0] for each in (evidence.seen, evidence.expected))
    is_sum = np.abs(matrix @ right - evidence.expected.ravel()).max(initial=0.0) <= evidence.allowed
    if not is_sum or not evidence.explains(matrix @ seen):
        return None
    ratios = np.divide(seen, right, out=np.ones_like(seen), where=np.abs(right) > NOTHING)
    ratio = max(ratios, key=lambda each: abs(each - 1))
    wrong = [words for words, each in zip(known, ratios, strict=True) if abs(each - ratio) < NOTHING]
    words = f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'}"
    if abs(ratio) < NOTHING:
        return Cause("sum", f"{words} not added")
    return Cause("scale", f"{words} scaled by {ratio:.6g} of what it should be")


def no_bias(evidence: Evidence) -> Cause | None:
    """A linear layer without its bias."""
    biases = [evidence.model.get_submodule(module).bias for module in evidence.modules]
    if any(bias is None for bias in biases):
        return None
    bias = np.concatenate([each.detach().numpy() for each in biases if isinstance(each, torch.Tensor)])
    return Cause("weight", "its bias is not added") if evidence.explains(evidence.expected - bias) else None


def other_output(evidence: Evidence) -> Cause | None:
    """The output of a part with another activation or cap than the model's."""
    reads = [value for value in evidence.summands.values() if value.size == evidence.expected.size]
    kinds: dict[str, Callable[[Tensor], Tensor]] = {**ACTIVATIONS, "no activation": nn.Identity()}
    caps = {part.limit: part for part in evidence.model.modules() if isinstance(part, SoftCap)}
    kinds |= {f"a cap of {limit:g}": part for limit, part in caps.items()}
    for value in reads:
        found = {name: activate(torch.from_numpy(value).double()).numpy() for name, activate in kinds.items()}
        near = {name: np.abs(each.ravel() - evidence.expected.ravel()).max(initial=0.0) for name, each in found.items()}
        own = min(near, key=near.__getitem__)
        if near[own] > evidence.allowed:
            continue
        other = evidence.best({name: each for name, each in found.items() if name != own})
        if other is not None:
            return Cause("activation", f"{other} in place of {own}")
    return None
