"""Forms of reductions over dims, of the largest elements, and of sums along a dim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from txport.exporters.tracing.forms.arithmetic import to
from txport.exporters.tracing.forms.common import FORMS, cast, form, require
from txport.exporters.tracing.symbols import Form, Size, Symbol, Tracer

Dims = int | Sequence[int] | None


class Picked(NamedTuple):
    """Elements along a dim, and their indices, as PyTorch's functions return them."""

    values: Symbol
    indices: Symbol


def _reduced(name: str, onnx: str, function: Callable[..., Tensor]) -> Form:
    """Return the form of a reduction over one dim, several or all, in the dtype that PyTorch computes it in."""

    def make(
        tracer: Tracer, x: Symbol, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
    ) -> Symbol:
        x = x if dtype is None else to(tracer, x, dtype)
        dims = tuple(range(x.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
        read = cast(tracer, f"{name}/cast", x, function(x.examples[0], dims, keepdim).dtype)
        value = tracer.op(name, onnx, [read, tracer.constant(np.array(dims))], keepdims=int(keepdim))
        return tracer.symbol(value, function, x, dims, keepdim)

    return make


FORMS |= {
    "sum": _reduced("sum", "ReduceSum", torch.sum),
    "mean": _reduced("mean", "ReduceMean", torch.mean),
    "amax": _reduced("amax", "ReduceMax", torch.amax),
    "amin": _reduced("amin", "ReduceMin", torch.amin),
    "logsumexp": _reduced("logsumexp", "ReduceLogSumExp", torch.logsumexp),
}


@form("var")
def variance(
    tracer: Tracer,
    x: Symbol,
    dim: Dims = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Symbol:
    """Return the variance, unbiased by default, over dims whose lengths are known."""
    dims = tuple(range(x.dim())) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    lengths = [x.shape[each] for each in dims]
    require(not any(isinstance(each, Size) for each in lengths), "a variance over a dim whose length a run decides")
    count = math.prod(lengths) - (int(unbiased) if correction is None else correction)
    require(count > 0, "a variance of so few elements")
    centred = x - x.mean(dims, keepdim=True)
    found: Symbol = FORMS["square"](tracer, centred).sum(dims, keepdim=keepdim) * (1 / count)
    return found


@form("std")
def deviation(tracer: Tracer, x: Symbol, *args: Any, **options: Any) -> Symbol:
    """Return the square root of the variance."""
    found: Symbol = variance(tracer, x, *args, **options).sqrt()
    return found


@form("norm", "vector_norm", "linalg_vector_norm")
def norm(tracer: Tracer, x: Symbol, p: object = 2, dim: Dims = None, keepdim: bool = False) -> Symbol:
    """Return the L1 or L2 norm over dims."""
    require(p in (1, 2, "fro"), f"a norm of order {p!r}")
    found: Symbol = x.abs().sum(dim, keepdim) if p == 1 else x.square().sum(dim, keepdim).sqrt()
    return found


@form("normalize")
def normalize(tracer: Tracer, x: Symbol, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Symbol:
    """Return vectors divided by their norm."""
    found: Symbol = x / norm(tracer, x, p, dim, keepdim=True).clamp(min=eps)
    return found


@form("max")
def largest(tracer: Tracer, x: Symbol, dim: object = None, keepdim: bool = False) -> object:
    """Return the maximum of all elements or of two tensors, or (values, indices) along a dim."""
    return _extreme(tracer, x, dim, keepdim, ("amax", "argmax", "maximum"))


@form("min")
def smallest(tracer: Tracer, x: Symbol, dim: object = None, keepdim: bool = False) -> object:
    """Return the minimum of all elements or of two tensors, or (values, indices) along a dim."""
    return _extreme(tracer, x, dim, keepdim, ("amin", "argmin", "minimum"))


def _extreme(tracer: Tracer, x: Symbol, dim: object, keepdim: bool, names: tuple[str, str, str]) -> object:
    values, indices, of_two = (FORMS[name] for name in names)
    if isinstance(dim, Symbol | Tensor):
        return of_two(tracer, x, dim)
    if dim is None:
        return values(tracer, x)
    return Picked(values(tracer, x, dim, keepdim), indices(tracer, x, dim, keepdim))


def _index_of(name: str, onnx: str, function: Callable[..., Tensor]) -> Form:
    def make(tracer: Tracer, x: Symbol, dim: int, keepdim: bool = False) -> Symbol:
        value = tracer.op(name, onnx, [x.value], axis=dim, keepdims=int(keepdim))
        return tracer.symbol(value, function, x, dim, keepdim)

    return make


FORMS |= {
    "argmax": _index_of("argmax", "ArgMax", torch.argmax),
    "argmin": _index_of("argmin", "ArgMin", torch.argmin),
}


@form("topk")
def topk(tracer: Tracer, x: Symbol, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Picked:  # noqa: A002
    """Return the k largest or smallest elements of a dim and their indices, in order."""
    count = tracer.constant(np.array([k]))
    values, indices = tracer.ops("topk", "TopK", [x.value, count], 2, axis=dim, largest=int(largest), sorted=1)
    one, other = (torch.topk(example, k, dim) for example in x.examples)
    return Picked(tracer.given(values, (one.values, other.values)), tracer.given(indices, (one.indices, other.indices)))


@form("argsort")
def argsort(tracer: Tracer, x: Symbol, dim: int = -1, descending: bool = False, stable: bool = False) -> Symbol:
    """Return the indices that sort a dim; equal elements keep their order."""
    count = tracer.op("argsort/count", "Reshape", [tracer.scalar(x.shape[dim]), tracer.constant(np.array([-1]))])
    _, value = tracer.ops("argsort", "TopK", [x.value, count], 2, axis=dim, largest=int(descending), sorted=1)
    return tracer.symbol(value, torch.argsort, x, dim=dim)


@form("cumsum")
def cumsum(tracer: Tracer, x: Symbol, dim: int) -> Symbol:
    """Return the sum of the elements up to each position of a dim."""
    read = cast(tracer, "cumsum/cast", x, torch.cumsum(x.examples[0], dim).dtype)
    return tracer.symbol(tracer.op("cumsum", "CumSum", [read, tracer.constant(np.array(dim))]), torch.cumsum, x, dim)


@form("any")
def exists(tracer: Tracer, x: Symbol, dim: Dims = None, keepdim: bool = False) -> Symbol:
    """Return True where any element of a dim is not 0."""
    found: Symbol = x.bool().int().amax(dim, keepdim).bool()
    return found


@form("all")
def for_all(tracer: Tracer, x: Symbol, dim: Dims = None, keepdim: bool = False) -> Symbol:
    """Return True where no element of a dim is 0."""
    found: Symbol = x.bool().int().amin(dim, keepdim).bool()
    return found
