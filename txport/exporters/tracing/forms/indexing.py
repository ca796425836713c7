"""Forms that pick elements: by an index, by a mask, or by a tensor of indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from txport.exporters.tracing.forms.common import FORMS, cast, filled, form, require, value_of_argument
from txport.exporters.tracing.symbols import Size, Symbol, Tracer

REST = np.iinfo(np.int64).max  # a slice to the end


@form("getitem")
def getitem(tracer: Tracer, x: Symbol | Tensor, index: object) -> Symbol:
    """Index with slices, single positions, new dims (None), the rest of the dims (...), or one tensor of indices."""
    x = tracer.as_symbol(x)
    parts = _without_ellipsis(index if isinstance(index, tuple) else (index,), x.dim())
    examples = [example[tuple(_of_example(part, at) for part in parts)] for at, example in enumerate(x.examples)]
    value = x.value
    read = 0  # dims of `x` so far
    axis = 0  # of the value
    new = list[int]()  # places of new dims in the result
    for part in parts:
        if part is None:
            new.append(axis + len(new))
            continue
        if isinstance(part, slice):
            value = _sliced(tracer, value, part, axis, x.shape[read])
            axis += 1
        else:
            _require_index(part, parts)
            value = tracer.op("pick", "Gather", [value, value_of_argument(tracer, part, torch.int64)], axis=axis)
            axis += 0 if isinstance(part, int) else part.dim()
        read += 1
    if new:
        value = tracer.op("unsqueeze", "Unsqueeze", [value, tracer.constant(np.array(new))])
    return tracer.given(value, (examples[0], examples[1]))


def _without_ellipsis(parts: tuple[object, ...], dims: int) -> tuple[Any, ...]:
    """Replace `...` by slices, so that the index has a part for each of its dims."""
    at = next((at for at, part in enumerate(parts) if part is Ellipsis), None)
    if at is None:
        return parts
    rest = dims - sum(part is not None and part is not Ellipsis for part in parts)
    return (*parts[:at], *[slice(None)] * rest, *parts[at + 1 :])


def _require_index(part: Any, parts: tuple[object, ...]) -> None:
    """Raise `UnsupportedError` for a part of an index that is not a number, nor the only tensor beside slices."""
    require(not isinstance(part, Size), "a place that depends on lengths")
    if not isinstance(part, int):
        require(isinstance(part, Symbol | Tensor), f"the index {part!r}")
        require(part.dtype != torch.bool, "an index by a mask, whose result has any length; use torch.where")
        alone = all(each is part or each is None or isinstance(each, slice) for each in parts)
        require(alone, "an index by a tensor beside other positions")


def _sliced(tracer: Tracer, value: ir.Value, part: slice, axis: int, length: int) -> ir.Value:
    """Return a slice of one axis, which has this length."""
    if part.start is None and part.stop is None and part.step is None:
        return value
    is_fixed = isinstance(part.stop, int) and not isinstance(part.stop, Size) and part.stop >= 0
    open_end = "of a length that a run decides: slices go to the end, or stop before it"
    require(not (is_fixed and isinstance(length, Size)), f"the index {part!r} {open_end}")
    bounds = (0 if part.start is None else part.start, REST if part.stop is None else part.stop)
    first, last = (
        tracer.op("slice/bound", "Reshape", [tracer.scalar(each), tracer.constant(np.array([-1]))]) for each in bounds
    )
    rest = [tracer.constant(np.array([each])) for each in (axis, part.step or 1)]
    return tracer.op("slice", "Slice", [value, first, last, *(rest if part.step else rest[:1])])


def _of_example(part: object, at: int) -> Any:
    """Return a part of an index with lengths and tensors replaced by example `at` (0 or 1)."""
    if isinstance(part, slice):
        return slice(*(_of_example(each, at) for each in (part.start, part.stop, part.step)))
    if isinstance(part, Symbol):
        return part.examples[at]
    return part.pair[at] if isinstance(part, Size) else part


@form("where")
def where(tracer: Tracer, mask: Symbol | Tensor, x: Any, y: Any) -> Symbol:
    """Return elements of `x` where the mask is True, of `y` elsewhere, in the dtype that PyTorch uses."""
    dtype = torch.result_type(*(each.examples[0] if isinstance(each, Symbol) else each for each in (x, y)))
    operands = [cast(tracer, "where/cast", each, dtype) for each in (x, y)]
    chosen = value_of_argument(tracer, mask, torch.bool)
    select = _select_masks if dtype == torch.bool else _select
    return tracer.symbol(select(tracer, chosen, *operands), torch.where, mask, x, y)


def _select(tracer: Tracer, mask: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    return tracer.op("where", "Where", [mask, x, y])


def _select_masks(tracer: Tracer, mask: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return a Where of masks, which ONNX Runtime does not have."""
    first = tracer.op("where/first", "And", [mask, x])
    second = tracer.op("where/second", "And", [tracer.op("where/not", "Not", [mask]), y])
    return tracer.op("where", "Or", [first, second])


@form("masked_fill")
def masked_fill(tracer: Tracer, x: Symbol, mask: Symbol | Tensor, value: float) -> Symbol:
    """Return a number where the mask is True, the elements elsewhere."""
    return where(tracer, mask, filled(tracer, value, x.dtype), x)


@form("gather", "take_along_dim")
def gather(tracer: Tracer, x: Symbol, dim: object, index: Any) -> Symbol:
    """Return the elements of a dim at a tensor of indices, of the same dims."""
    dim, index = (index, dim) if isinstance(dim, Symbol | Tensor) else (dim, index)
    value = tracer.op("gather", "GatherElements", [x.value, tracer.as_symbol(index).value], axis=dim)
    return tracer.symbol(value, torch.gather, x, dim, index)


@form("index_select")
def index_select(tracer: Tracer, x: Symbol, dim: int, index: Symbol | Tensor) -> Symbol:
    """Return the slices of a dim at a vector of indices."""
    value = tracer.op("index_select", "Gather", [tracer.as_symbol(x).value, tracer.as_symbol(index).value], axis=dim)
    return tracer.symbol(value, torch.index_select, x, dim, index)


@form("one_hot")
def one_hot(tracer: Tracer, x: Symbol, num_classes: int = -1) -> Symbol:
    """Return 1 at the index of each vector of `num_classes` elements, 0 elsewhere."""
    require(num_classes > 0, "one_hot without num_classes")
    found: Symbol = (x.unsqueeze(-1) == torch.arange(num_classes)).long()
    return found


def _triangle(tracer: Tracer, x: Symbol, diagonal: int, *, upper: bool) -> Symbol:
    value = tracer.op("triangle", "Trilu", [x.value, tracer.scalar(diagonal)], upper=int(upper))
    return tracer.symbol(value, torch.triu if upper else torch.tril, x, diagonal)


FORMS["triu"] = lambda tracer, x, diagonal=0: _triangle(tracer, x, diagonal, upper=True)
FORMS["tril"] = lambda tracer, x, diagonal=0: _triangle(tracer, x, diagonal, upper=False)
