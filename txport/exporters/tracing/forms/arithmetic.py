"""Forms of arithmetic, comparisons, reductions and dtype conversions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from txport.exporters.tracing.forms.common import FORMS, cast, dtype_of, form, require, value_of_argument
from txport.exporters.tracing.symbols import Form, Symbol, Tracer


def _binary(name: str, onnx: str, function: Callable[[Any, Any], object]) -> Form:
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


FORMS |= {
    "add": _binary("add", "Add", operator.add),
    "sub": _binary("sub", "Sub", operator.sub),
    "mul": _binary("mul", "Mul", operator.mul),
    "div": _binary("div", "Div", operator.truediv),
    "pow": _binary("pow", "Pow", operator.pow),
    "lt": _binary("lt", "Less", operator.lt),
    "le": _binary("le", "LessOrEqual", operator.le),
    "gt": _binary("gt", "Greater", operator.gt),
    "ge": _binary("ge", "GreaterOrEqual", operator.ge),
    "eq": _binary("eq", "Equal", operator.eq),
    "matmul": _binary("matmul", "MatMul", operator.matmul),
    "maximum": _binary("maximum", "Max", lambda x, y: torch.maximum(*_tensors(x, y))),
    "minimum": _binary("minimum", "Min", lambda x, y: torch.minimum(*_tensors(x, y))),
}
FORMS |= {"truediv": FORMS["div"], "bmm": FORMS["matmul"], "mm": FORMS["matmul"], "mv": FORMS["matmul"]}
FORMS |= {"radd": FORMS["add"], "rmul": FORMS["mul"]}
FORMS |= {f"r{name}": _reflected(FORMS[name]) for name in ("sub", "truediv", "pow", "matmul")}


def _tensors(*operands: object) -> tuple[Tensor, ...]:
    return tuple(each if isinstance(each, Tensor) else torch.tensor(each) for each in operands)


_whole_remainder = _binary("mod", "Mod", operator.mod)
_whole_quotient = _binary("floordiv", "Div", operator.floordiv)


@form("mod", "remainder")
def remainder(tracer: Tracer, x: object, y: object) -> Symbol:
    """Return x - floor(x / y) y, which has the sign of y."""
    if _are_whole(x, y):
        return _whole_remainder(tracer, x, y)  # type: ignore[no-any-return]
    return FORMS["sub"](tracer, x, FORMS["mul"](tracer, floor_divide(tracer, x, y), y))  # type: ignore[no-any-return]


@form("floordiv", "floor_divide")
def floor_divide(tracer: Tracer, x: object, y: object) -> Symbol:
    """Return floor(x / y)."""
    if _are_whole(x, y):
        return _whole_quotient(tracer, FORMS["sub"](tracer, x, remainder(tracer, x, y)), y)  # type: ignore[no-any-return]
    return FORMS["floor"](tracer, FORMS["div"](tracer, x, y))  # type: ignore[no-any-return]


FORMS |= {"rmod": _reflected(remainder), "rfloordiv": _reflected(floor_divide)}


def _are_whole(*operands: object) -> bool:
    """True if no operand is a number or tensor of floating point."""
    kinds = [dtype_of(each) for each in operands]
    require(torch.bool not in kinds, "a quotient of masks")
    return not any(isinstance(each, float) for each in operands) and not any(
        each is not None and each.is_floating_point for each in kinds
    )


def _of_masks(name: str, onnx: str, function: Callable[[object, object], object]) -> Form:
    def make(tracer: Tracer, x: Symbol, y: Symbol | Tensor) -> Symbol:
        masks = all(isinstance(each, Symbol | Tensor) and each.dtype == torch.bool for each in (x, y))
        require(masks, f"{name!r} of anything but masks")
        operands = [value_of_argument(tracer, each, torch.bool) for each in (x, y)]
        return tracer.symbol(tracer.op(name, onnx, operands), function, x, y)

    return make


FORMS |= {
    "and": _of_masks("and", "And", operator.and_),
    "or": _of_masks("or", "Or", operator.or_),
}
FORMS |= {f"r{name}": FORMS[name] for name in ("and", "or")}
FORMS |= {f"logical_{name}": FORMS[name] for name in ("and", "or")}


@form("neg")
def negative(tracer: Tracer, x: Symbol) -> Symbol:
    """Negate numbers."""
    require(x.dtype != torch.bool, "- of a mask")
    return tracer.given(tracer.op("neg", "Neg", [x.value]), x.examples)


@form("clamp", "clip")
def clamp(
    tracer: Tracer,
    x: Symbol,
    min: object = None,  # noqa: A002 - PyTorch's names
    max: object = None,  # noqa: A002
) -> Symbol:
    """Limit numbers to [min, max]; None: no limit."""
    for bound, name in ((min, "maximum"), (max, "minimum")):
        x = x if bound is None else FORMS[name](tracer, x, bound)
    return x


@form("invert", "logical_not", "bitwise_not")
def invert(tracer: Tracer, x: Symbol) -> Symbol:
    """Negate a mask."""
    require(x.dtype == torch.bool, "~ of numbers")
    return tracer.symbol(tracer.op("not", "Not", [x.value]), torch.bitwise_not, x)


FORMS["ne"] = lambda tracer, x, y: invert(tracer, FORMS["eq"](tracer, x, y))


@form("to")
def to(tracer: Tracer, x: Symbol, dtype: Any) -> Symbol:
    """Convert to another dtype, or to the dtype of another tensor."""
    dtype = dtype.dtype if isinstance(dtype, Symbol | Tensor) else dtype
    require(isinstance(dtype, torch.dtype), f"a tensor on {dtype!r}")
    if x.dtype == dtype:
        return x
    return tracer.symbol(cast(tracer, "to", x, dtype), Tensor.to, x, dtype)


DTYPES = {"bool": torch.bool, "int": torch.int32, "long": torch.int64, "float": torch.float32, "double": torch.float64}
FORMS |= {name: lambda tracer, x, dtype=dtype: to(tracer, x, dtype) for name, dtype in DTYPES.items()}
FORMS["type_as"] = lambda tracer, x, other: to(tracer, x, other.dtype)
