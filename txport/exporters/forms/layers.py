"""Forms of layers: linear layers, norms, lookups, activations, softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from txport.exporters.forms.common import cast, form, require, value_of_argument
from txport.exporters.symbols import Symbol, Tracer

GELU_OPSET = 20  # first opset with a Gelu operator
RMS_OPSET = 23  # first opset with RMSNormalization


@form("linear")
def linear(tracer: Tracer, x: Symbol, weight: Tensor, bias: Tensor | None = None) -> Symbol:
    """Return a Gemm for 2 dims; for more dims a MatMul with the transposed weight, and an Add of the bias."""
    matrix = tracer.tensor(weight)
    more = [] if bias is None else [tracer.tensor(bias)]
    if x.dim() == 2:
        return tracer.symbol(tracer.op("linear", "Gemm", [x.value, matrix, *more], transB=1), F.linear, x, weight)
    turned = tracer.op("linear/weight", "Transpose", [matrix], perm=(1, 0))
    value = tracer.op("linear/product" if more else "linear", "MatMul", [x.value, turned])
    if more:
        value = tracer.op("linear", "Add", [value, *more])
    return tracer.symbol(value, F.linear, x, weight)


@form("conv1d")
def conv1d(
    tracer: Tracer,
    x: Symbol,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Symbol:
    """(B, C, T), weight (D, C / groups, kernel) -> (B, D, T'), with equal padding on both sides."""
    require(not isinstance(padding, str), f"a convolution with the padding {padding!r}")
    inputs = [x.value, tracer.tensor(weight), *([] if bias is None else [tracer.tensor(bias)])]
    how: dict[str, Any] = {
        "kernel_shape": [weight.shape[2]],
        "strides": list(stride),
        "pads": [*padding, *padding],
        "dilations": list(dilation),
        "group": groups,
    }
    value = tracer.op("conv1d", "Conv", inputs, **how)
    return tracer.symbol(value, F.conv1d, x, weight, bias, stride, padding, dilation, groups)


@form("layer_norm")
def layer_norm(
    tracer: Tracer,
    x: Symbol,
    normalized_shape: Sequence[int],
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Symbol:
    """Normalise over the last dim."""
    require(len(normalized_shape) == 1, "a norm over several dims")
    inputs = [x.value, tracer.tensor(weight), *([] if bias is None else [tracer.tensor(bias)])]
    value = tracer.op("layer_norm", "LayerNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
    return tracer.given(value, x.examples)


@form("rms_norm")
def rms_norm(tracer: Tracer, x: Symbol, normalized_shape: Sequence[int], weight: Tensor, eps: float) -> Symbol:
    """Normalise over the last dim: RMSNormalization since opset 23, before it fp32 nodes that runtimes fuse."""
    require(len(normalized_shape) == 1, "a norm over several dims")
    if tracer.opset >= RMS_OPSET:
        inputs = [x.value, tracer.tensor(weight)]
        value = tracer.op("rms_norm", "RMSNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
        return tracer.given(value, x.examples)
    wide = cast(tracer, "rms_norm/wide", x, torch.float32)  # fp16 squares overflow
    two, small = (value_of_argument(tracer, number, torch.float32) for number in (2.0, eps))
    squared = tracer.op("rms_norm/square", "Pow", [wide, two])
    mean = tracer.op("rms_norm/mean", "ReduceMean", [squared, tracer.constant(np.array([-1]))], keepdims=1)
    root = tracer.op("rms_norm/root", "Sqrt", [tracer.op("rms_norm/add", "Add", [mean, small])])
    near = tracer.given(tracer.op("rms_norm/div", "Div", [wide, root]), (x.examples[0].float(), x.examples[1].float()))
    narrow = cast(tracer, "rms_norm/narrow", near, x.dtype)
    return tracer.given(tracer.op("rms_norm", "Mul", [narrow, tracer.tensor(weight)]), x.examples)


@form("embedding")
def embedding(
    tracer: Tracer,
    tokens: Symbol,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Symbol:
    """Look up rows of a table; arguments for training only, such as `padding_idx`, have no effect."""
    require(max_norm is None, "an embedding with max_norm")
    require(not scale_grad_by_freq and not sparse, "an embedding with scale_grad_by_freq or sparse")
    value = tracer.op("embedding", "Gather", [tracer.tensor(weight), tokens.value], axis=0)
    rows = [weight.new_zeros(*example.shape, weight.shape[1]) for example in tokens.examples]
    return tracer.given(value, (rows[0], rows[1]))


@form("take")
def take(tracer: Tracer, table: Tensor, index: Symbol) -> Symbol:
    """Look up elements of a table with one dim."""
    require(table.dim() == 1, "take of a table with several dims")
    value = tracer.op("take", "Gather", [tracer.tensor(table), index.value], axis=0)
    found = [table.new_zeros(example.shape) for example in index.examples]
    return tracer.given(value, (found[0], found[1]))


@form("dropout")
def dropout(tracer: Tracer, x: Symbol, p: float = 0.5, training: bool = True, inplace: bool = False) -> Symbol:
    """Return the input: dropout has no effect outside training."""
    require(not training, "dropout in training")
    return x


@form("softmax")
def softmax(tracer: Tracer, x: Symbol, dim: int, _stacklevel: int = 3, dtype: None = None) -> Symbol:
    """Return the softmax over one dim, in the dtype of the input."""
    require(dtype is None, "softmax in another type")
    return tracer.given(tracer.op("softmax", "Softmax", [x.value], axis=dim), x.examples)


@form("relu")
def relu(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
    """Return a Relu."""
    return tracer.given(tracer.op("relu", "Relu", [x.value]), x.examples)


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


@form("tanh")
def tanh(tracer: Tracer, x: Symbol) -> Symbol:
    """Return a Tanh."""
    return tracer.given(tracer.op("tanh", "Tanh", [x.value]), x.examples)


@form("log_softmax")
def log_softmax(tracer: Tracer, x: Symbol, dim: int, _stacklevel: int = 3, dtype: None = None) -> Symbol:
    """Return the log-softmax over one dim, in the dtype of the input."""
    require(dtype is None, "log_softmax in another type")
    return tracer.given(tracer.op("log_softmax", "LogSoftmax", [x.value], axis=dim), x.examples)


@form("silu")
def silu(tracer: Tracer, x: Symbol, inplace: bool = False) -> Symbol:
    """Return x * sigmoid(x)."""
    sigmoid = tracer.op("silu/sigmoid", "Sigmoid", [x.value])
    return tracer.given(tracer.op("silu", "Mul", [x.value, sigmoid]), x.examples)
