"""The table of forms (ONNX conversions of PyTorch functions) and their helpers.

A form is called with the tracer and the arguments of the function. PyTorch's results on the examples determine the
shape and dtype of the form's result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from txport.errors import UnsupportedError
from txport.exporters.tracing.symbols import FORMS_PAGE, Form, Size, Symbol, Tracer

FORMS: dict[str, Form] = {}
Made = TypeVar("Made", bound=Form)


def form(*names: str) -> Callable[[Made], Made]:
    """Register a form under the names of its functions, without the underscores around the names of operators."""

    def register(made: Made) -> Made:
        FORMS.update(dict.fromkeys(names, made))
        return made

    return register


def require(condition: bool, what: str) -> None:
    """Raise `UnsupportedError` if `condition` is false: the form does not support `what`."""
    if not condition:
        raise UnsupportedError(f"the exporter has no ONNX form of {what}: {FORMS_PAGE}")


def value_of_argument(tracer: Tracer, x: object, dtype: torch.dtype) -> ir.Value:
    """Return an argument as a value of the graph; numbers and lengths are converted to `dtype`, tensors are not."""
    if isinstance(x, Symbol):
        return x.value
    if isinstance(x, Size):
        return x.value if dtype == torch.int64 else tracer.op("length", "Cast", [x.value], to=code_of(dtype))
    if isinstance(x, Tensor):
        return tracer.tensor(x)
    return tracer.constant(np.array(x, str(dtype).removeprefix("torch.")))


def filled(tracer: Tracer, number: float, dtype: torch.dtype) -> Symbol:
    """Return a number or a length as a tensor without dims."""
    if isinstance(number, Size):
        return tracer.symbol(value_of_argument(tracer, number, dtype), torch.full, (), number, dtype=dtype)
    return tracer.as_symbol(torch.full((), number, dtype=dtype))


def cast(tracer: Tracer, name: str, x: object, dtype: torch.dtype) -> ir.Value:
    """Return an argument as a value of the graph, cast to `dtype`."""
    value = value_of_argument(tracer, x, dtype)
    return value if dtype_of(x) in (None, dtype) else tracer.op(name, "Cast", [value], to=code_of(dtype))


def dtype_of(x: object) -> torch.dtype | None:
    """Return the dtype of a tensor or of a symbol; None for numbers and lengths."""
    return x.dtype if isinstance(x, Symbol | Tensor) else None


def code_of(dtype: torch.dtype) -> int:
    """Return ONNX's number of a dtype."""
    return int(ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch."))))
