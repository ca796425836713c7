"""Forms of lengths, slices and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from txport.exporters.forms.common import FORMS, form, require
from txport.exporters.symbols import Form, Size, Symbol, Tracer

REST = np.iinfo(np.int64).max  # a slice to the end


@form("arange")
def arange(tracer: Tracer, start: int, end: int | None = None, *, device: object = None) -> Symbol:
    """Return int64 numbers from `start` (default 0) to `end`, exclusive."""
    start, end = (0, start) if end is None else (start, end)
    value = tracer.op("arange", "Range", [tracer.scalar(each) for each in (start, end, 1)])
    return tracer.symbol(value, torch.arange, start, end)


@form("cat")
def cat(tracer: Tracer, tensors: Sequence[Symbol], dim: int = 0) -> Symbol:
    """Concatenate along one dim."""
    value = tracer.op("cat", "Concat", [each.value for each in tensors], axis=dim)
    return tracer.symbol(value, torch.cat, list(tensors), dim)


@form("transpose")
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
def split(tracer: Tracer, x: Symbol, sizes: Sequence[int], dim: int) -> tuple[Symbol, ...]:
    """Split into parts of the given sizes along one dim."""
    lengths = tracer.constant(np.array(sizes))
    values = tracer.ops("split", "Split", [x.value, lengths], len(sizes), axis=dim)
    return _parts(tracer, values, [torch.split(example, list(sizes), dim) for example in x.examples])


@form("chunk")
def chunk(tracer: Tracer, x: Symbol, count: int, dim: int) -> tuple[Symbol, ...]:
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


def _reshaped(function: Callable[..., Any]) -> Form:
    """Return the form of a function that only changes the dims."""

    def make(tracer: Tracer, x: Symbol, *args: Any) -> Symbol:
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
    one = tracer.constant(np.array([-1]))
    parts = [
        tracer.op("dims", "Reshape", [dim.value, one]) if isinstance(dim, Size) else tracer.constant(np.array([dim]))
        for dim in known
    ]
    return tracer.op("dims", "Concat", parts, axis=0)


FORMS |= {"view": _reshaped(Tensor.reshape), "flatten": _reshaped(torch.flatten)}
FORMS |= {"unflatten": _reshaped(torch.unflatten)}


@form("getitem")
def getitem(tracer: Tracer, x: Symbol, index: Any) -> Symbol:
    """Index with slices that go to the end, new dims (None) and single positions."""
    parts = index if isinstance(index, tuple) else (index,)
    result = x.value
    axis = 0  # of the remaining value
    dims = 0  # of the result
    new = []
    for part in parts:
        dims += not isinstance(part, int)
        if part is None:
            new.append(dims - 1)
        elif isinstance(part, int):
            require(not isinstance(part, Size), "a place that depends on lengths")
            result = tracer.op("pick", "Gather", [result, tracer.constant(np.array(part))], axis=axis)
        else:
            require(
                isinstance(part, slice) and part.stop is None and part.step is None,
                f"the index {part!r}: slices go to the end",
            )
            result = result if part.start is None else _from(tracer, result, part.start, axis)
            axis += 1
    if new:
        result = tracer.op("unsqueeze", "Unsqueeze", [result, tracer.constant(np.array(new))])
    examples = [_taken(example, parts, at) for at, example in enumerate(x.examples)]
    return tracer.given(result, (examples[0], examples[1]))


def _from(tracer: Tracer, x: ir.Value, start: int, axis: int) -> ir.Value:
    """Slice an axis from a start position to the end."""
    one, rest = (tracer.constant(np.array([number])) for number in (axis, REST))
    begin = tracer.op("slice/start", "Reshape", [tracer.scalar(start), tracer.constant(np.array([-1]))])
    return tracer.op("slice", "Slice", [x, begin, rest, one])


def _taken(example: Tensor, parts: Sequence[Any], at: int) -> Tensor:
    """Apply an index to example `at` (0 or 1)."""

    def of_example(part: Any) -> Any:
        if not isinstance(part, slice):
            return part
        return slice(part.start.pair[at] if isinstance(part.start, Size) else part.start, None)

    taken: Tensor = example[tuple(map(of_example, parts))]
    return taken
