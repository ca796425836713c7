"""Forms of functions of each element: operators of ONNX, and functions that are written with other functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from txport.exporters.tracing.forms.common import FORMS, cast, form, require, value_of_argument
from txport.exporters.tracing.symbols import Form, Symbol, Tracer

GELU_OPSET = 20  # first opset with a Gelu operator


def _operator(name: str, onnx: str, function: Callable[[Tensor], Tensor]) -> Form:
    """Return the form of a function that is one operator, computed in the dtype that PyTorch uses."""

    def make(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
        dtype = function(x.examples[0]).dtype
        read = x.value if dtype == torch.bool else cast(tracer, f"{name}/cast", x, dtype)
        return tracer.symbol(tracer.op(name, onnx, [read]), function, x)

    return make


OPERATORS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "abs": ("Abs", torch.abs),
    "ceil": ("Ceil", torch.ceil),
    "cos": ("Cos", torch.cos),
    "erf": ("Erf", torch.erf),
    "exp": ("Exp", torch.exp),
    "floor": ("Floor", torch.floor),
    "isinf": ("IsInf", torch.isinf),
    "isnan": ("IsNaN", torch.isnan),
    "log": ("Log", torch.log),
    "reciprocal": ("Reciprocal", torch.reciprocal),
    "relu": ("Relu", torch.relu),
    "round": ("Round", torch.round),
    "sigmoid": ("Sigmoid", torch.sigmoid),
    "sign": ("Sign", torch.sign),
    "sin": ("Sin", torch.sin),
    "sqrt": ("Sqrt", torch.sqrt),
    "tanh": ("Tanh", torch.tanh),
}
FORMS |= {name: _operator(name, onnx, function) for name, (onnx, function) in OPERATORS.items()}


@form("softplus")
def softplus(tracer: Tracer, x: Symbol, beta: float = 1.0, threshold: float = 20.0) -> Symbol:
    """Return log(1 + exp(x))."""
    require(beta == 1 and threshold == 20, f"softplus with beta {beta} and threshold {threshold}")
    return tracer.symbol(tracer.op("softplus", "Softplus", [x.value]), F.softplus, x)


def _composed(function: Callable[..., Symbol]) -> Form:
    """Return the form of a function that is written with other functions."""
    return lambda tracer, x, *args, inplace=False, **options: function(x, *args, **options)


def _softplus(x: Any) -> Any:
    return softplus(x.tracer, x)


COMPOSED: dict[str, Callable[..., Symbol]] = {
    "elu": lambda x, alpha=1.0: x.clamp(min=0.0) + (x.clamp(max=0.0).exp() - 1) * alpha,
    "leaky_relu": lambda x, negative_slope=0.01: x.clamp(min=0.0) + x.clamp(max=0.0) * negative_slope,
    "log1p": lambda x: (x + 1).log(),
    "log2": lambda x: x.log() / math.log(2),
    "log_sigmoid": lambda x: -_softplus(-x),
    "mish": lambda x: x * _softplus(x).tanh(),
    "relu6": lambda x: x.clamp(0.0, 6.0),
    "rsqrt": lambda x: x.sqrt().reciprocal(),
    "square": lambda x: x * x,
}
FORMS |= {name: _composed(function) for name, function in COMPOSED.items()}


@form("gelu")
def gelu(tracer: Tracer, x: Symbol, approximate: str = "none") -> Symbol:
    """Return GELU with erf or tanh: one operator since opset 20, before it the nodes that runtimes fuse."""
    if tracer.opset >= GELU_OPSET:
        return tracer.given(tracer.op("gelu", "Gelu", [x.value], approximate=approximate), x.examples)
    if approximate == "tanh":
        return _gelu_tanh(tracer, x)
    root, one, half = (value_of_argument(tracer, number, x.dtype) for number in (math.sqrt(2), 1.0, 0.5))
    error = tracer.op("gelu/erf", "Erf", [tracer.op("gelu/div", "Div", [x.value, root])])
    value = tracer.op("gelu/mul", "Mul", [x.value, tracer.op("gelu/add", "Add", [error, one])])
    return tracer.given(tracer.op("gelu", "Mul", [value, half]), x.examples)


def _gelu_tanh(tracer: Tracer, x: Symbol) -> Symbol:
    """Return 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    three, small, root, one, half = (
        value_of_argument(tracer, number, x.dtype) for number in (3.0, 0.044715, math.sqrt(2 / math.pi), 1.0, 0.5)
    )
    cubed = tracer.op("gelu/cube", "Pow", [x.value, three])
    inner = tracer.op("gelu/inner", "Add", [x.value, tracer.op("gelu/scaled", "Mul", [cubed, small])])
    bent = tracer.op("gelu/tanh", "Tanh", [tracer.op("gelu/root", "Mul", [inner, root])])
    share = tracer.op("gelu/half", "Mul", [tracer.op("gelu/add", "Add", [bent, one]), half])
    return tracer.given(tracer.op("gelu", "Mul", [x.value, share]), x.examples)


@form("silu")
def silu(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
    """Return x * sigmoid(x)."""
    sigmoid = tracer.op("silu/sigmoid", "Sigmoid", [x.value])
    return tracer.given(tracer.op("silu", "Mul", [x.value, sigmoid]), x.examples)
