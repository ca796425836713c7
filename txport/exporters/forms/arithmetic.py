"""Forms of arithmetic, comparisons, reductions and dtype conversions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txport.exporters.forms.common import FORMS, cast, form, require, value_of_argument
from txport.exporters.symbols import Form, Symbol, Tracer


def _binary(name: str, onnx: str, function: Callable[[Any, Any], Any]) -> Form:
    """Return the form of a binary operator on tensors or numbers, computed in the dtype that PyTorch uses."""

    def make(tracer: Tracer, x: Any, y: Any) -> Symbol:
        require(all(isinstance(each, Symbol | Tensor | int | float) for each in (x, y)), f"{name} of {x!r} and {y!r}")
        dtype = torch.result_type(*(each.examples[0] if isinstance(each, Symbol) else each for each in (x, y)))
        if function is operator.truediv and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        operands = [cast(tracer, f"{name}/cast", each, dtype) for each in (x, y)]
        return tracer.symbol(tracer.op(name, onnx, operands), function, x, y)

    return make


def _reflected(made: Form) -> Form:
    """Return the form of a reflected operator (`__radd__`): the operands are swapped."""
    return lambda tracer, x, y: made(tracer, y, x)


equal = _binary("eq", "Equal", operator.eq)
FORMS |= {
    "add": _binary("add", "Add", operator.add),
    "sub": _binary("sub", "Sub", operator.sub),
    "mul": _binary("mul", "Mul", operator.mul),
    "truediv": _binary("div", "Div", operator.truediv),
    "pow": _binary("pow", "Pow", operator.pow),
    "lt": _binary("lt", "Less", operator.lt),
    "le": _binary("le", "LessOrEqual", operator.le),
    "gt": _binary("gt", "Greater", operator.gt),
    "ge": _binary("ge", "GreaterOrEqual", operator.ge),
    "eq": equal,
    "matmul": _binary("matmul", "MatMul", operator.matmul),
}
FORMS |= {
    "radd": FORMS["add"],
    "rmul": FORMS["mul"],
    "ne": lambda tracer, x, y: invert(tracer, FORMS["eq"](tracer, x, y)),
}
FORMS |= {f"r{name}": _reflected(FORMS[name]) for name in ("sub", "truediv", "pow", "matmul")}


@form("ne")
def unequal(tracer: Tracer, x: Any, y: Any) -> Symbol:
    """Return the negation of `equal`."""
    found: Symbol = invert(tracer, equal(tracer, x, y))
    return found


def _of_masks(name: str, onnx: str, function: Callable[[Any, Any], Any]) -> Form:
    def make(tracer: Tracer, x: Symbol, y: Symbol | Tensor) -> Symbol:
        masks = all(isinstance(each, Symbol | Tensor) and each.dtype == torch.bool for each in (x, y))
        require(masks, f"{name!r} of anything but masks")
        operands = [value_of_argument(tracer, each, torch.bool) for each in (x, y)]
        return tracer.symbol(tracer.op(name, onnx, operands), function, x, y)

    return make


FORMS |= {"and": _of_masks("and", "And", operator.and_), "or": _of_masks("or", "Or", operator.or_)}
FORMS |= {"rand": FORMS["and"], "ror": FORMS["or"]}


@form("neg")
def negative(tracer: Tracer, x: Symbol) -> Symbol:
    """Negate numbers."""
    require(x.dtype != torch.bool, "- of a mask")
    return tracer.given(tracer.op("neg", "Neg", [x.value]), x.examples)


@form("clamp")
def clamp(tracer: Tracer, x: Symbol, min: float, max: float) -> Symbol:  # noqa: A002 - PyTorch's names
    """Limit numbers to [min, max]."""
    bounds = [value_of_argument(tracer, each, x.dtype) for each in (min, max)]
    return tracer.given(tracer.op("clamp", "Clip", [x.value, *bounds]), x.examples)


@form("sqrt")
def sqrt(tracer: Tracer, x: Symbol) -> Symbol:
    """Return the square root of each element."""
    return tracer.given(tracer.op("sqrt", "Sqrt", [x.value]), x.examples)


@form("invert")
def invert(tracer: Tracer, x: Symbol) -> Symbol:
    """Negate a mask."""
    require(x.dtype == torch.bool, "~ of numbers")
    return tracer.symbol(tracer.op("not", "Not", [x.value]), torch.bitwise_not, x)


@form("to")
def to(tracer: Tracer, x: Symbol, dtype: torch.dtype) -> Symbol:
    """Convert to another dtype."""
    if x.dtype == dtype:
        return x
    return tracer.symbol(cast(tracer, "to", x, dtype), Tensor.to, x, dtype)


FORMS["bool"] = lambda tracer, x: to(tracer, x, torch.bool)
FORMS["long"] = lambda tracer, x: to(tracer, x, torch.int64)


@form("mean")
def mean(tracer: Tracer, x: Symbol, dim: int, keepdim: bool = False) -> Symbol:
    """Return the mean over one dim."""
    axes = tracer.constant(np.array([dim]))
    value = tracer.op("mean", "ReduceMean", [x.value, axes], keepdims=int(keepdim))
    return tracer.symbol(value, torch.mean, x, dim, keepdim)


@form("sum")
def total(tracer: Tracer, x: Symbol, dim: int, keepdim: bool = False) -> Symbol:
    """Return the sum over one dim."""
    axes = tracer.constant(np.array([dim]))
    value = tracer.op("sum", "ReduceSum", [x.value, axes], keepdims=int(keepdim))
    return tracer.symbol(value, torch.sum, x, dim, keepdim)
