"""What the functions of PyTorch that models call are in ONNX: one form each, by the function's name.

A form gets the tracer and the function's own arguments. What PyTorch makes of the examples says how its result looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.nn import functional as F

from txport.errors import UnsupportedError
from txport.exporters.symbols import Form, Size, Symbol, Tracer

FORMS: dict[str, Form] = {}
REST = np.iinfo(np.int64).max  # a slice to the end
GELU_OPSET = 20


def form(*names: str) -> Callable[[Form], Form]:
    """Register a form under the names of its functions, without the underscores around them."""

    def register(made: Form) -> Form:
        FORMS.update(dict.fromkeys(names, made))
        return made

    return register


def require(condition: bool, what: str) -> None:
    """Raise `UnsupportedError` for a use of a function that its form does not cover."""
    if not condition:
        raise UnsupportedError(f"the exporter has no ONNX form of {what}: see exporters/operators.py")


def _value(tracer: Tracer, x: Any, dtype: torch.dtype) -> ir.Value:
    """An argument in the graph: a tensor as it is, a number in the type of what it meets."""
    if isinstance(x, Symbol):
        return x.value
    if isinstance(x, Tensor):
        return tracer.tensor(x)
    return tracer.constant(np.array(x, str(dtype).removeprefix("torch.")))


def _cast(tracer: Tracer, name: str, x: Any, dtype: torch.dtype) -> ir.Value:
    """An argument in another type."""
    given = x.dtype if isinstance(x, Symbol | Tensor) else dtype
    value = _value(tracer, x, dtype)
    wanted = ir.DataType.from_numpy(np.dtype(str(dtype).removeprefix("torch.")))
    return value if given == dtype else tracer.op(name, "Cast", [value], to=wanted.value)


def _binary(name: str, operator: str, function: Callable[..., Any]) -> Form:
    """Two tensors, or one and a number, in the type that PyTorch computes them in."""

    def make(tracer: Tracer, x: Any, y: Any) -> Symbol:
        dtype = torch.result_type(*(each.examples[0] if isinstance(each, Symbol) else each for each in (x, y)))
        operands = [_cast(tracer, f"{name}/cast", each, dtype) for each in (x, y)]
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


@form("invert")
def invert(tracer: Tracer, x: Symbol) -> Symbol:
    """Of a mask."""
    require(x.dtype == torch.bool, "~ of numbers")
    return tracer.symbol(tracer.op("not", "Not", [x.value]), torch.bitwise_not, x)


@form("linear")
def linear(tracer: Tracer, x: Symbol, weight: Tensor, bias: Tensor | None = None) -> Symbol:
    """One Gemm over rows; over more dims, a product with the weight as it stands in the checkpoint, transposed."""
    matrix, more = tracer.tensor(weight), [] if bias is None else [tracer.tensor(bias)]
    if x.dim() == 2:
        return tracer.symbol(tracer.op("linear", "Gemm", [x.value, matrix, *more], transB=1), F.linear, x, weight)
    turned = tracer.op("linear/weight", "Transpose", [matrix], perm=(1, 0))
    value = tracer.op("linear/product" if more else "linear", "MatMul", [x.value, turned])
    if more:
        value = tracer.op("linear", "Add", [value, *more])
    return tracer.symbol(value, F.linear, x, weight)


@form("layer_norm")
def layer_norm(
    tracer: Tracer,
    x: Symbol,
    normalized_shape: Sequence[int],
    weight: Tensor,
    bias: Tensor,
    eps: float = 1e-5,
) -> Symbol:
    """Over the last dim."""
    require(len(normalized_shape) == 1, "a norm over several dims")
    inputs = [x.value, tracer.tensor(weight), tracer.tensor(bias)]
    value = tracer.op("layer_norm", "LayerNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
    return tracer.given(value, x.examples)


@form("embedding")
def embedding(tracer: Tracer, tokens: Symbol, weight: Tensor, *_: Any, **__: Any) -> Symbol:
    """Rows of a table."""
    value = tracer.op("embedding", "Gather", [tracer.tensor(weight), tokens.value], axis=0)
    rows = [weight.new_zeros(*example.shape, weight.shape[1]) for example in tokens.examples]
    return tracer.given(value, (rows[0], rows[1]))


@form("dropout")
def dropout(tracer: Tracer, x: Symbol, p: float = 0.5, training: bool = True, inplace: bool = False) -> Symbol:
    """Nothing, outside of training."""
    require(not training, "dropout in training")
    return x


@form("softmax")
def softmax(tracer: Tracer, x: Symbol, dim: int) -> Symbol:
    """Over one dim."""
    return tracer.given(tracer.op("softmax", "Softmax", [x.value], axis=dim), x.examples)


@form("relu")
def relu(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
    """One operator."""
    return tracer.given(tracer.op("relu", "Relu", [x.value]), x.examples)


@form("gelu")
def gelu(tracer: Tracer, x: Symbol, approximate: str = "none") -> Symbol:
    """With the error function; one operator since opset 20, and before it the nodes that engines fuse."""
    require(approximate == "none", f"gelu with approximate={approximate!r}")
    if tracer.opset >= GELU_OPSET:
        return tracer.given(tracer.op("gelu", "Gelu", [x.value]), x.examples)
    root, one, half = (_value(tracer, number, x.dtype) for number in (math.sqrt(2), 1.0, 0.5))
    error = tracer.op("gelu/erf", "Erf", [tracer.op("gelu/div", "Div", [x.value, root])])
    value = tracer.op("gelu/mul", "Mul", [x.value, tracer.op("gelu/add", "Add", [error, one])])
    return tracer.given(tracer.op("gelu", "Mul", [value, half]), x.examples)


@form("silu")
def silu(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
    """X sigmoid(x)."""
    sigmoid = tracer.op("silu/sigmoid", "Sigmoid", [x.value])
    return tracer.given(tracer.op("silu", "Mul", [x.value, sigmoid]), x.examples)


@form("arange")
def arange(tracer: Tracer, start: int, end: int | None = None, *, device: object = None) -> Symbol:
    """Whole numbers, int64."""
    start, end = (0, start) if end is None else (start, end)
    value = tracer.op("arange", "Range", [tracer.scalar(each) for each in (start, end, 1)])
    return tracer.symbol(value, torch.arange, start, end)


@form("cat")
def cat(tracer: Tracer, tensors: Sequence[Symbol], dim: int = 0) -> Symbol:
    """Along one dim."""
    value = tracer.op("cat", "Concat", [each.value for each in tensors], axis=dim)
    return tracer.symbol(value, torch.cat, list(tensors), dim)


@form("to")
def to(tracer: Tracer, x: Symbol, dtype: torch.dtype) -> Symbol:
    """In another type."""
    if x.dtype == dtype:
        return x
    return tracer.symbol(_cast(tracer, "to", x, dtype), Tensor.to, x, dtype)


FORMS["bool"] = lambda tracer, x: to(tracer, x, torch.bool)
FORMS["long"] = lambda tracer, x: to(tracer, x, torch.int64)


@form("transpose")
def transpose(tracer: Tracer, x: Symbol, first: int, second: int) -> Symbol:
    """Two dims exchanged."""
    order = list(range(x.dim()))
    order[first], order[second] = order[second], order[first]
    return tracer.symbol(tracer.op("transpose", "Transpose", [x.value], perm=order), torch.transpose, x, first, second)


@form("unsqueeze")
def unsqueeze(tracer: Tracer, x: Symbol, dim: int) -> Symbol:
    """A dim of 1 more."""
    axes = tracer.constant(np.array([dim]))
    return tracer.symbol(tracer.op("unsqueeze", "Unsqueeze", [x.value, axes]), torch.unsqueeze, x, dim)


@form("mean")
def mean(tracer: Tracer, x: Symbol, dim: int) -> Symbol:
    """Over one dim."""
    axes = tracer.constant(np.array([dim]))
    return tracer.symbol(tracer.op("mean", "ReduceMean", [x.value, axes], keepdims=0), torch.mean, x, dim)


def _reshaped(function: Callable[..., Any]) -> Form:
    """The same numbers in other dims."""

    def make(tracer: Tracer, x: Symbol, *args: Any) -> Symbol:
        shape = tracer.symbol(ir.Value(), function, x, *args)
        value = tracer.op("view", "Reshape", [x.value, _dims(tracer, x, shape)])
        return tracer.given(value, shape.examples)

    return make


def _dims(tracer: Tracer, x: Symbol, result: Symbol) -> ir.Value:
    """The dims of a result: -1 for the only dynamic one, 0 for those that stay in their place, else their lengths.

    -1 would have no meaning where another dim is 0, which past lengths can be, so those are written by 0.
    """
    wanted, given = (list(zip(*(each.shape for each in one.examples), strict=True)) for one in (result, x))
    dims = [one if one == other else 0 if at < len(given) and given[at] == (one, other) else None
            for at, (one, other) in enumerate(wanted)]  # fmt: skip
    if dims.count(None) <= 1:
        return tracer.constant(np.array([-1 if dim is None else dim for dim in dims]))
    known = [tracer.length(result, at) if dim is None else dim for at, dim in enumerate(dims)]
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
    """Slices from somewhere to the end, and new dims of 1."""
    parts = index if isinstance(index, tuple) else (index,)
    result, axis, new = x.value, 0, []
    for place, part in enumerate(parts):
        if part is None:
            new.append(place)
            continue
        plain = isinstance(part, slice) and part.stop is None and part.step is None
        require(plain, f"the index {part!r}: slices go to the end")
        if part.start is not None:
            one, rest = (tracer.constant(np.array([number])) for number in (axis, REST))
            start = tracer.op("slice/start", "Reshape", [tracer.scalar(part.start), tracer.constant(np.array([-1]))])
            result = tracer.op("slice", "Slice", [result, start, rest, one])
        axis += 1
    if new:
        result = tracer.op("unsqueeze", "Unsqueeze", [result, tracer.constant(np.array(new))])
    examples = [_taken(example, parts, at) for at, example in enumerate(x.examples)]
    return tracer.given(result, (examples[0], examples[1]))


def _taken(example: Tensor, parts: Sequence[Any], at: int) -> Tensor:
    starts = [part.start if isinstance(part, slice) else None for part in parts]
    lengths = [start.pair[at] if isinstance(start, Size) else start for start in starts]
    taken: Tensor = example[tuple(part if part is None else slice(n, None) for part, n in zip(parts, lengths))]  # noqa: B905
    return taken
