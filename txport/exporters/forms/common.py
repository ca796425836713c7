"""The table of forms, and what they have in common.

A form gets the tracer and the function's own arguments. What PyTorch makes of the examples says how its result looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from txport.errors import UnsupportedError
from txport.exporters.symbols import Form, Size, Symbol, Tracer

FORMS: dict[str, Form] = {}


def form(*names: str) -> Callable[[Form], Form]:
    """Register a form under the names of its functions, without the underscores around them."""

    def register(made: Form) -> Form:
        FORMS.update(dict.fromkeys(names, made))
        return made

    return register


def require(condition: bool, what: str) -> None:
    """Raise `UnsupportedError` for a use of a function that its form does not cover."""
    if not condition:
        raise UnsupportedError(f"the exporter has no ONNX form of {what}: see exporters/forms")


def value_of_argument(tracer: Tracer, x: Any, dtype: torch.dtype) -> ir.Value:
    """An argument in the graph: a tensor as it is, a number or a length in the type of what it meets."""
    if isinstance(x, Symbol):
        return x.value
    if isinstance(x, Size):
        return x.value if dtype == torch.int64 else tracer.op("size/cast", "Cast", [x.value], to=code_of(dtype))
    if isinstance(x, Tensor):
        return tracer.tensor(x)
    return tracer.constant(np.array(x, str(dtype).removeprefix("torch.")))


def cast(tracer: Tracer, name: str, x: Any, dtype: torch.dtype) -> ir.Value:
    """An argument in another type."""
    given = x.dtype if isinstance(x, Symbol | Tensor) else dtype
    value = value_of_argument(tracer, x, dtype)
    return value if given == dtype else tracer.op(name, "Cast", [value], to=code_of(dtype))


def code_of(dtype: torch.dtype) -> int:
    """ONNX's number for a type."""
    return int(ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch."))))
