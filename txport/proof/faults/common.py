"""Faults that occur in all kinds of parts: weights, sums, factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from txport.models.parts import ACTIVATIONS, NORM_TYPES, SoftCap
from txport.proof.faults.calls import altered
from txport.proof.faults.evidence import EXPLAINED, Cause, Evidence, Hypothesis
from txport.system.arrays import Array

EPSILON = "epsilon"
NOTHING = 1e-4  # a smaller factor means that the value is missing
OF_THEIR_OWN = (nn.Linear, nn.Conv1d, nn.Embedding, *NORM_TYPES)  # parts whose results are compared by themselves


def wrong_weight(evidence: Evidence) -> Iterator[Hypothesis]:
    """A weight or an epsilon of the part that differs from the checkpoint's."""
    parts = (evidence.model.get_submodule(module) for module in evidence.modules)
    yield from _wrong_among(evidence, (each for part in parts for each in part.parameters(recurse=False)))
    names = (f"{module}.{EPSILON}" for module in evidence.modules)
    yield from ((evidence.wrong[name].cause, None) for name in names if name in evidence.wrong)


def wrong_table(evidence: Evidence) -> Iterator[Hypothesis]:
    """A weight or table within an attention or an embedding, linear layers and norms excluded, that differs."""
    parts = evidence.model.get_submodule(evidence.part_call.name).modules()
    inner = [each for each in parts if not isinstance(each, OF_THEIR_OWN)]
    tensors = (tensor for each in inner for tensor in (*each.parameters(recurse=False), *each.buffers(recurse=False)))
    yield from _wrong_among(evidence, tensors)


def _wrong_among(evidence: Evidence, tensors: Iterable[Tensor]) -> Iterator[Hypothesis]:
    """Yield the cause for each of these tensors that has other values in the graph."""
    names: dict[int, str] = {}
    for name, tensor in (*evidence.model.named_parameters(), *evidence.model.named_buffers()):
        names.setdefault(id(tensor), name)
    found = (names[id(tensor)] for tensor in tensors)
    yield from ((evidence.wrong[name].cause, None) for name in found if name in evidence.wrong)


def weight_cause(name: str, held: Array, expected: Array) -> Cause:
    """Describe the difference of a graph's weight from the checkpoint's: shape, NaN, factor or values."""
    if held.shape != expected.shape:
        return Cause("weight", f"{name} has the shape {held.shape}, the checkpoint's {expected.shape}")
    index = np.unravel_index(int(np.nan_to_num(np.abs(held - expected), nan=np.inf).argmax()), held.shape)
    at = f"{name}{[int(i) for i in index]} is {held[index]:.6g}, the checkpoint has {expected[index]:.6g}"
    if not np.isfinite(held).all():
        return Cause("NaN", at)
    factor = _factor(held, expected)
    if np.abs(held - factor * expected).max(initial=0.0) <= EXPLAINED * np.abs(held - expected).max(initial=0.0):
        return Cause("weight", f"{name} is {factor:.6g} times the checkpoint's")
    count = int((held != expected).sum())
    return Cause("weight", f"{at}; {count} of its {held.size} values differ")


def not_finite(evidence: Evidence) -> Iterator[Hypothesis]:
    """Values that are NaN or infinite."""
    broken = ~np.isfinite(evidence.seen)
    if not broken.any():
        return
    index = tuple(int(i) for i in np.argwhere(broken)[0])
    first = f"the first at {list(index)} is {evidence.seen[index]}, PyTorch has {evidence.expected[index]:.6g}"
    yield Cause("NaN", f"{int(broken.sum())} of {broken.size} values are no finite numbers; {first}"), None


def multiple(evidence: Evidence) -> Iterator[Hypothesis]:
    """A result that is PyTorch's times one factor."""
    factor = _factor(evidence.seen, evidence.expected)
    yield Cause("scale", f"all of it is {factor:.6g} times what it should be"), factor * evidence.expected


def _factor(seen: Array, expected: Array) -> float:
    """Return the factor between two arrays, by least squares."""
    norm = float(np.sum(np.square(expected, dtype=np.float64)))
    return float(np.sum(seen.astype(np.float64) * expected)) / norm if norm else 1.0


def summands(evidence: Evidence) -> Iterator[Hypothesis]:
    """A sum of its inputs in which one summand is missing or scaled."""
    yield from wrong_sum(evidence, evidence.summands)


def wrong_sum(evidence: Evidence, parts: Mapping[str, Array]) -> Iterator[Hypothesis]:
    """Yield the sum in which one of the parts is missing or scaled; factors are fitted by least squares."""
    known = {words: value for words, value in parts.items() if value.size == evidence.seen.size}
    if not known or not np.isfinite(evidence.seen).all():
        return
    matrix = np.stack([value.astype(np.float64).ravel() for value in known.values()], axis=1)
    seen, right = (np.linalg.lstsq(matrix, each.ravel(), rcond=None)[0] for each in (evidence.seen, evidence.expected))
    if np.abs(matrix @ right - evidence.expected.ravel()).max(initial=0.0) > evidence.allowed:
        return  # it is no sum of these
    ratios = np.divide(seen, right, out=np.ones_like(seen), where=np.abs(right) > NOTHING)
    ratio = max(ratios, key=lambda each: abs(each - 1))
    wrong = [words for words, each in zip(known, ratios, strict=True) if abs(each - ratio) < NOTHING]
    words = f"{' and '.join(wrong)} {'is' if len(wrong) == 1 else 'are'}"
    if abs(ratio) < NOTHING:
        yield Cause("sum", f"{words} not added"), matrix @ seen
    else:
        yield Cause("scale", f"{words} scaled by {ratio:.6g} of what it should be"), matrix @ seen


def no_bias(evidence: Evidence) -> Iterator[Hypothesis]:
    """A linear layer or a convolution without its bias."""
    parts = [evidence.model.get_submodule(module) for module in evidence.modules]
    biases = [each.bias.detach().numpy() for each in parts if isinstance(each.bias, Tensor)]
    if len(biases) == len(parts):
        bias = np.concatenate(biases)
        bias = bias[:, None] if isinstance(parts[0], nn.Conv1d) else bias  # (C, 1) before frames
        yield Cause("weight", "its bias is not added"), evidence.expected - bias


def other_output(evidence: Evidence) -> Iterator[Hypothesis]:
    """The output of a part with another activation or cap than the model's."""
    reads = [value for value in evidence.summands.values() if value.size == evidence.expected.size]
    kinds: dict[str, Callable[[Tensor], Tensor]] = {**ACTIVATIONS, "no activation": nn.Identity()}
    caps = {part.limit: part for part in evidence.model.modules() if isinstance(part, SoftCap)}
    kinds |= {f"a cap of {limit:g}": part for limit, part in caps.items()}
    for value in reads:
        found = {name: activate(torch.from_numpy(value).double()).numpy() for name, activate in kinds.items()}
        near = {name: np.abs(each.ravel() - evidence.expected.ravel()).max(initial=0.0) for name, each in found.items()}
        own = min(near, key=near.__getitem__)
        if near[own] <= evidence.allowed:
            others = {f"{name} in place of {own}": each for name, each in found.items() if name != own}
            yield from evidence.nearest("activation", others)


@torch.inference_mode()
def with_other(part: nn.Module, x: Tensor, **changes: object) -> Tensor:
    """Return the result of a part for its first input with some attributes, parts or weights changed."""
    found: Tensor = altered(part, **changes)(x)
    return found
