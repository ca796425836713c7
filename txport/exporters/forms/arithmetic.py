"""Arithmetic on tensors and numbers, comparisons, sums, and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txport.exporters.forms.common import FORMS, cast, form, require, value_of_argument
from txport.exporters.symbols import Form, Symbol, Tracer


def _binary(name: str, operator: str, function: Callable[..., Any]) -> Form:
    """Two tensors, or one and a number, in the type that PyTorch computes them in."""

    def make(tracer: Tracer, x: Any, y: Any) -> Symbol:
        dtype = torch.result_type(*(each.examples[0] if isinstance(each, Symbol) else each for each in (x, y)))
        operands = [cast(tracer, f"{name}/cast", each, dtype) for each in (x, y)]
        return tracer.symbol(tracer.op(name, operator, operands), function, x, y)

    return make


FORMS |= {
    "add": _binary("add", "Add", torch.add),
    "sub": _binary("sub", "Sub", torch.sub),
    "mul": _binary("mul", "Mul", torch.mul),
    "truediv": _binary("div", "Div", torch.div),
    "lt": _binary("lt", "Less", torch.lt),
    "le": _binary("le", "LessOrEqual", torch.le),
    "matmul": _binary("matmul", "MatMul", torch.matmul),
}
FORMS |= {"radd": FORMS["add"], "rmul": FORMS["mul"]}


@form("and")
def both(tracer: Tracer, x: Symbol, y: Symbol) -> Symbol:
    """Two masks."""
    require(x.dtype == y.dtype == torch.bool, "& of numbers")
    return tracer.symbol(tracer.op("and", "And", [x.value, y.value]), torch.bitwise_and, x, y)


@form("clamp")
def clamp(tracer: Tracer, x: Symbol, min: float, max: float) -> Symbol:  # noqa: A002 - PyTorch's names
    """Between two numbers."""
    bounds = [value_of_argument(tracer, each, x.dtype) for each in (min, max)]
    return tracer.given(tracer.op("clamp", "Clip", [x.value, *bounds]), x.examples)


@form("sqrt")
def sqrt(tracer: Tracer, x: Symbol) -> Symbol:
    """The square root of each number."""
    return tracer.given(tracer.op("sqrt", "Sqrt", [x.value]), x.examples)


@form("invert")
def invert(tracer: Tracer, x: Symbol) -> Symbol:
    """Of a mask."""
    require(x.dtype == torch.bool, "~ of numbers")
    return tracer.symbol(tracer.op("not", "Not", [x.value]), torch.bitwise_not, x)


@form("to")
def to(tracer: Tracer, x: Symbol, dtype: torch.dtype) -> Symbol:
    """In another type."""
    if x.dtype == dtype:
        return x
    return tracer.symbol(cast(tracer, "to", x, dtype), Tensor.to, x, dtype)


FORMS["bool"] = lambda tracer, x: to(tracer, x, torch.bool)
FORMS["long"] = lambda tracer, x: to(tracer, x, torch.int64)


@form("mean")
def mean(tracer: Tracer, x: Symbol, dim: int, keepdim: bool = False) -> Symbol:
    """Over one dim."""
    axes = tracer.constant(np.array([dim]))
    value = tracer.op("mean", "ReduceMean", [x.value, axes], keepdims=int(keepdim))
    return tracer.symbol(value, torch.mean, x, dim, keepdim)


@form("sum")
def total(tracer: Tracer, x: Symbol, dim: int, keepdim: bool = False) -> Symbol:
    """Over one dim."""
    axes = tracer.constant(np.array([dim]))
    value = tracer.op("sum", "ReduceSum", [x.value, axes], keepdims=int(keepdim))
    return tracer.symbol(value, torch.sum, x, dim, keepdim)
