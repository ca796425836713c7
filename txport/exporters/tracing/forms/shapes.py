"""Forms of lengths, views, and tensors that are joined, repeated and filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F

from txport.exporters.tracing.forms.common import FORMS, filled, form, require, value_of_argument
from txport.exporters.tracing.symbols import Form, Size, Symbol, Tracer


@form("arange")
def arange(tracer: Tracer, start: int, end: int | None = None, step: int = 1, *, device: object = None) -> Symbol:
    """Return int64 numbers from `start` (default 0) to `end`, exclusive."""
    start, end = (0, start) if end is None else (start, end)
    value = tracer.op("arange", "Range", [tracer.scalar(each) for each in (start, end, step)])
    return tracer.symbol(value, torch.arange, start, end, step)


@form("cat", "concat")
def cat(tracer: Tracer, tensors: Sequence[Symbol], dim: int = 0) -> Symbol:
    """Concatenate along one dim."""
    symbols = [tracer.as_symbol(each) for each in tensors]
    value = tracer.op("cat", "Concat", [each.value for each in symbols], axis=dim)
    return tracer.symbol(value, torch.cat, symbols, dim)


@form("transpose", "swapaxes")
def transpose(tracer: Tracer, x: Symbol, first: int, second: int) -> Symbol:
    """Swap two dims."""
    order = list(range(x.dim()))
    order[first], order[second] = order[second], order[first]
    return tracer.symbol(tracer.op("transpose", "Transpose", [x.value], perm=order), torch.transpose, x, first, second)


@form("movedim")
def movedim(tracer: Tracer, x: Symbol, source: int, destination: int) -> Symbol:
    """Move one dim; the others keep their order."""
    order = list(range(x.dim()))
    order.insert(destination % x.dim(), order.pop(source % x.dim()))
    value = tracer.op("movedim", "Transpose", [x.value], perm=order)
    return tracer.symbol(value, torch.movedim, x, source, destination)


@form("split")
def split(tracer: Tracer, x: Symbol, sizes: int | Sequence[int], dim: int = 0) -> tuple[Symbol, ...]:
    """Split into parts of the given sizes, or of one size, along one dim."""
    if isinstance(sizes, int):
        size = x.shape[dim]
        require(not isinstance(size, Size), "a split of a dim that a run decides")
        sizes = [*[sizes] * (size // sizes), *([size % sizes] if size % sizes else [])]
    values = tracer.ops("split", "Split", [x.value, tracer.constant(np.array(sizes))], len(sizes), axis=dim)
    return _parts(tracer, values, [torch.split(example, list(sizes), dim) for example in x.examples])


@form("by_expert")
def by_expert(tracer: Tracer, rows: Symbol, counts: Symbol) -> tuple[Symbol, ...]:
    """Return a Split whose sizes are known only when the graph runs; the examples have all rows.

    A dim with such examples has no name, since it may have fewer rows.
    """
    one, other = (len(each) for each in rows.examples)
    tracer.dims[one, other] = None
    values = tracer.ops("by_expert", "Split", [rows.value, counts.value], int(counts.shape[0]), axis=0)
    return tuple(tracer.given(each, rows.examples) for each in values)


@form("chunk")
def chunk(tracer: Tracer, x: Symbol, count: int, dim: int = 0) -> tuple[Symbol, ...]:
    """Split into `count` equal parts along one static dim."""
    size = x.shape[dim]
    require(not isinstance(size, Size) and size % count == 0, "chunks of a dim that a run decides, or unequal ones")
    return tuple(split(tracer, x, [size // count] * count, dim))


def _parts(tracer: Tracer, values: Sequence[ir.Value], examples: Sequence[Sequence[Tensor]]) -> tuple[Symbol, ...]:
    one, other = examples
    return tuple(tracer.given(value, pair) for value, *pair in zip(values, one, other, strict=True))  # type: ignore[arg-type]


@form("unsqueeze")
def unsqueeze(tracer: Tracer, x: Symbol, dim: int) -> Symbol:
    """Insert a dim of size 1."""
    axes = tracer.constant(np.array([dim]))
    return tracer.symbol(tracer.op("unsqueeze", "Unsqueeze", [x.value, axes]), torch.unsqueeze, x, dim)


def _reshaped(function: Callable[..., object]) -> Form:
    """Return the form of a function that only changes the dims."""

    def make(tracer: Tracer, x: Symbol, *args: object) -> Symbol:
        shape = tracer.symbol(ir.Value(), function, x, *args)
        value = tracer.op("view", "Reshape", [x.value, _dims(tracer, x, shape)])
        return tracer.given(value, shape.examples)

    return make


def _dims(tracer: Tracer, x: Symbol, result: Symbol) -> ir.Value:
    """Return the shape input of a Reshape: 0 copies a dim, -1 stands for a single unknown dim, others are lengths.

    With -1, no other dim may have length 0, as past lengths can. Therefore dims that keep their position are 0 (copy).
    """
    wanted, given = (list(zip(*(each.shape for each in one.examples), strict=True)) for one in (result, x))
    dims = [one if one == other else 0 if at < len(given) and given[at] == (one, other) else None
            for at, (one, other) in enumerate(wanted)]  # fmt: skip
    if dims.count(None) <= 1:
        return tracer.constant(np.array([-1 if dim is None else dim for dim in dims]))
    known = [tracer.known_length(x, result, at) if dim is None else dim for at, dim in enumerate(dims)]
    require(
        sum(not isinstance(dim, Size) and dim == -1 for dim in known) <= 1,
        "a view with several lengths that nothing else has",
    )
    return lengths(tracer, known)


FORMS |= {
    "view": _reshaped(Tensor.reshape),
    "reshape": _reshaped(torch.Tensor.reshape),
    "flatten": _reshaped(torch.flatten),
    "unflatten": _reshaped(torch.unflatten),
}
FORMS |= dict.fromkeys(("contiguous", "clone", "detach"), lambda tracer, x: x)


@form("size")
def size(tracer: Tracer, x: Symbol, dim: int | None = None) -> int | tuple[int, ...]:
    """Return the shape, or one length of it."""
    return x.shape if dim is None else x.shape[dim]


@form("numel")
def numel(tracer: Tracer, x: Symbol) -> int:
    """Return the number of elements, if no run decides it."""
    require(not any(isinstance(each, Size) for each in x.shape), "the number of elements, which a run decides")
    return math.prod(x.shape)


@form("permute")
def permute(tracer: Tracer, x: Symbol, *dims: object) -> Symbol:
    """Put the dims in another order."""
    order = [dim % x.dim() for dim in _listed(dims)]
    return tracer.symbol(tracer.op("permute", "Transpose", [x.value], perm=order), torch.permute, x, order)


@form("t", "T", "mT")
def t(tracer: Tracer, x: Symbol) -> Symbol:
    """Transpose matrices."""
    return transpose(tracer, x, -2, -1)


@form("squeeze")
def squeeze(tracer: Tracer, x: Symbol, dim: int) -> Symbol:
    """Remove a dim of size 1."""
    require(not isinstance(x.shape[dim], Size) and x.shape[dim] == 1, f"a squeeze of dim {dim} of {x.shape}")
    value = tracer.op("squeeze", "Squeeze", [x.value, tracer.constant(np.array([dim]))])
    return tracer.symbol(value, torch.squeeze, x, dim)


@form("stack")
def stack(tracer: Tracer, tensors: Sequence[Symbol], dim: int = 0) -> Symbol:
    """Concatenate along a new dim."""
    dim = dim if dim >= 0 else dim + _most_dims(tensors) + 1
    return cat(tracer, [unsqueeze(tracer, tracer.as_symbol(each), dim) for each in tensors], dim)


def _most_dims(tensors: Sequence[Symbol]) -> int:
    return max(each.dim() for each in tensors)


@form("expand")
def expand(tracer: Tracer, x: Symbol, *sizes: object) -> Symbol:
    """Repeat dims of size 1 without a copy in PyTorch; -1 keeps a dim."""
    wanted = _listed(sizes)
    dims = [1 if not isinstance(each, Size) and each == -1 else each for each in wanted]
    return tracer.symbol(tracer.op("expand", "Expand", [x.value, lengths(tracer, dims)]), Tensor.expand, x, *wanted)


@form("expand_as")
def expand_as(tracer: Tracer, x: Symbol, other: Symbol) -> Symbol:
    """Repeat dims of size 1 up to the shape of another tensor."""
    return expand(tracer, x, *other.shape)


@form("repeat")
def repeat(tracer: Tracer, x: Symbol, *counts: object) -> Symbol:
    """Repeat a whole tensor along each dim; new dims come first."""
    times = _listed(counts)
    for _ in range(len(times) - x.dim()):
        x = unsqueeze(tracer, x, 0)
    return tracer.symbol(tracer.op("repeat", "Tile", [x.value, lengths(tracer, times)]), Tensor.repeat, x, *times)


@form("repeat_interleave")
def repeat_interleave(tracer: Tracer, x: Symbol, repeats: int, dim: int) -> Symbol:
    """Repeat each element of a dim."""
    require(isinstance(repeats, int), "repeats that are a tensor")
    dim %= x.dim()
    wide = unsqueeze(tracer, x, dim + 1)
    found: Symbol = FORMS["flatten"](tracer, cat(tracer, [wide] * repeats, dim + 1), dim, dim + 1)
    return found


@form("pad")
def pad(tracer: Tracer, x: Symbol, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Symbol:
    """Add constant elements before and after the last dims."""
    require(mode == "constant", f"a padding {mode!r}")
    pairs = [(pad[at], pad[at + 1]) for at in range(0, len(pad), 2)]
    every = [*[(0, 0)] * (x.dim() - len(pairs)), *reversed(pairs)]
    pads = tracer.constant(np.array([*(first for first, _ in every), *(last for _, last in every)]))
    filled = value_of_argument(tracer, value or 0, x.dtype)
    return tracer.symbol(tracer.op("pad", "Pad", [x.value, pads, filled]), F.pad, x, list(pad), mode, value)


@form("zeros", "new_zeros")
def zeros(tracer: Tracer, *sizes: object, dtype: torch.dtype | None = None, device: object = None) -> Symbol:
    """Return zeros of a shape; of `new_zeros`, the dtype is that of the tensor."""
    return full(tracer, *_like(sizes), 0.0, dtype=dtype)


@form("ones", "new_ones")
def ones(tracer: Tracer, *sizes: object, dtype: torch.dtype | None = None, device: object = None) -> Symbol:
    """Return ones of a shape; of `new_ones`, the dtype is that of the tensor."""
    return full(tracer, *_like(sizes), 1.0, dtype=dtype)


@form("full", "new_full")
def full(tracer: Tracer, *given: Any, dtype: torch.dtype | None = None, device: object = None) -> Symbol:
    """Return one number in a shape; of `new_full`, the dtype is that of the tensor."""
    *like, sizes, number = given
    wanted = dtype or (like[0].dtype if like else torch.full((), number).dtype)
    return expand(tracer, filled(tracer, number, wanted), *sizes)


def _like(sizes: tuple[object, ...]) -> tuple[object, ...]:
    """Return (tensor, dims) of the arguments of `new_zeros`, (dims,) of those of `zeros`."""
    like = sizes[:1] if sizes and isinstance(sizes[0], Symbol | Tensor) else ()
    return (*like, _listed(sizes[len(like) :]))


FORMS["zeros_like"] = lambda tracer, x, dtype=None: full(tracer, x, x.shape, 0, dtype=dtype)
FORMS["ones_like"] = lambda tracer, x, dtype=None: full(tracer, x, x.shape, 1, dtype=dtype)
FORMS["full_like"] = lambda tracer, x, number, dtype=None: full(tracer, x, x.shape, number, dtype=dtype)


def _listed(dims: tuple[Any, ...]) -> list[int]:
    """Return dims that were given one by one or as one sequence."""
    return list(dims[0]) if len(dims) == 1 and isinstance(dims[0], list | tuple) else list(dims)


def lengths(tracer: Tracer, dims: Sequence[int]) -> ir.Value:
    """Return numbers and lengths as one int64 vector in the graph."""
    if not any(isinstance(each, Size) for each in dims):
        return tracer.constant(np.array(dims, np.int64))
    one = tracer.constant(np.array([-1]))
    parts = [
        tracer.op("dims", "Reshape", [dim.value, one]) if isinstance(dim, Size) else tracer.constant(np.array([dim]))
        for dim in dims
    ]
    return tracer.op("dims", "Concat", parts, axis=0)
