"""Forms of layers: linear layers, norms, lookups, activations, softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from txport.exporters.tracing.forms.arithmetic import to
from txport.exporters.tracing.forms.common import cast, form, require, value_of_argument
from txport.exporters.tracing.symbols import Symbol, Tracer

Weight = Tensor | Symbol  # of the module, or computed of its tensors
RMS_OPSET = 23  # first opset with RMSNormalization


@form("linear")
def linear(tracer: Tracer, x: Symbol, weight: Weight, bias: Weight | None = None) -> Symbol:
    """Return a Gemm for 2 dims; for more dims a MatMul with the transposed weight, and an Add of the bias."""
    matrix = tracer.as_symbol(weight).value
    more = [] if bias is None else [tracer.as_symbol(bias).value]
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
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Symbol:
    """(B, C, T), weight (D, C / groups, kernel) -> (B, D, T'), with equal padding on both sides."""
    require(not isinstance(padding, str), f"a convolution with the padding {padding!r}")
    inputs = [tracer.as_symbol(each).value for each in (x, weight, bias) if each is not None]
    strides, pads, dilations = ([each] if isinstance(each, int) else [*each] for each in (stride, padding, dilation))
    how: dict[str, Any] = {"kernel_shape": [weight.shape[2]], "strides": strides, "pads": pads * 2}
    how |= {"dilations": dilations, "group": groups}
    value = tracer.op("conv1d", "Conv", inputs, **how)
    return tracer.symbol(value, F.conv1d, x, weight, bias, stride, padding, dilation, groups)


@form("layer_norm")
def layer_norm(
    tracer: Tracer,
    x: Symbol,
    normalized_shape: Sequence[int],
    weight: Weight | None = None,
    bias: Weight | None = None,
    eps: float = 1e-5,
) -> Symbol:
    """Normalise over the last dim."""
    require(len(normalized_shape) == 1, "a norm over several dims")
    weight = torch.ones(*normalized_shape, dtype=x.dtype) if weight is None else weight
    inputs = [x.value, *(tracer.as_symbol(each).value for each in (weight, bias) if each is not None)]
    value = tracer.op("layer_norm", "LayerNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
    return tracer.given(value, x.examples)


@form("rms_norm")
def rms_norm(
    tracer: Tracer,
    x: Symbol,
    normalized_shape: Sequence[int],
    weight: Weight | None = None,
    eps: float | None = None,
) -> Symbol:
    """Normalise over the last dim: RMSNormalization since opset 23, before it fp32 nodes that runtimes fuse."""
    require(len(normalized_shape) == 1, "a norm over several dims")
    weight = tracer.as_symbol(torch.ones(*normalized_shape, dtype=x.dtype) if weight is None else weight)
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    if tracer.opset >= RMS_OPSET:
        inputs = [x.value, weight.value]
        value = tracer.op("rms_norm", "RMSNormalization", inputs, axis=-1, epsilon=eps, stash_type=1)
        return tracer.given(value, x.examples)
    wide = cast(tracer, "rms_norm/wide", x, torch.float32)  # fp16 squares overflow
    two, small = (value_of_argument(tracer, number, torch.float32) for number in (2.0, eps))
    squared = tracer.op("rms_norm/square", "Pow", [wide, two])
    mean = tracer.op("rms_norm/mean", "ReduceMean", [squared, tracer.constant(np.array([-1]))], keepdims=1)
    root = tracer.op("rms_norm/root", "Sqrt", [tracer.op("rms_norm/add", "Add", [mean, small])])
    near = tracer.given(tracer.op("rms_norm/div", "Div", [wide, root]), (x.examples[0].float(), x.examples[1].float()))
    narrow = cast(tracer, "rms_norm/narrow", near, x.dtype)
    return tracer.given(tracer.op("rms_norm", "Mul", [narrow, weight.value]), x.examples)


@form("embedding")
def embedding(
    tracer: Tracer,
    tokens: Symbol,
    weight: Weight,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Symbol:
    """Look up rows of a table; arguments for training only, such as `padding_idx`, have no effect."""
    require(max_norm is None, "an embedding with max_norm")
    require(not scale_grad_by_freq and not sparse, "an embedding with scale_grad_by_freq or sparse")
    table = tracer.as_symbol(weight)
    value = tracer.op("embedding", "Gather", [table.value, tokens.value], axis=0)
    rows = [torch.zeros(*example.shape, table.shape[1], dtype=table.dtype) for example in tokens.examples]
    return tracer.given(value, (rows[0], rows[1]))


@form("take")
def take(tracer: Tracer, table: Weight, index: Weight) -> Symbol:
    """Look up elements of a table with one dim."""
    require(table.dim() == 1, "take of a table with several dims")
    places = tracer.as_symbol(index)
    value = tracer.op("take", "Gather", [tracer.as_symbol(table).value, places.value], axis=0)
    found = [torch.zeros(example.shape, dtype=table.dtype) for example in places.examples]
    return tracer.given(value, (found[0], found[1]))


@form("dropout")
def dropout(tracer: Tracer, x: Symbol, p: float = 0.5, training: bool = True, inplace: bool = False) -> Symbol:
    """Return the input: dropout has no effect outside training."""
    require(not training, "dropout in training")
    return x


@form("softmax")
def softmax(tracer: Tracer, x: Symbol, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Symbol:
    """Return the softmax over one dim."""
    x = x if dtype is None else to(tracer, x, dtype)
    return tracer.given(tracer.op("softmax", "Softmax", [x.value], axis=dim), x.examples)


@form("log_softmax")
def log_softmax(tracer: Tracer, x: Symbol, dim: int, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Symbol:
    """Return the log-softmax over one dim."""
    x = x if dtype is None else to(tracer, x, dtype)
    return tracer.given(tracer.op("log_softmax", "LogSoftmax", [x.value], axis=dim), x.examples)


@form("glu")
def glu(tracer: Tracer, x: Symbol, dim: int = -1) -> Symbol:
    """Return the first half of a dim times the sigmoid of the second."""
    first, second = x.chunk(2, dim)
    found: Symbol = first * second.sigmoid()
    return found


@form("scaled_dot_product_attention")
def scaled_dot_product_attention(
    tracer: Tracer,
    query: Any,
    key: Any,
    value: Symbol,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Symbol:
    """Return softmax(query key.T scale + mask) value, as plain nodes; a mask of bool is True where keys are seen."""
    require(not is_causal and not dropout_p, "scaled_dot_product_attention with is_causal or dropout_p")
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is None or attn_mask.dtype != torch.bool:
        weights = (scores if attn_mask is None else scores + attn_mask).softmax(-1)
    else:  # without any key, the result is 0
        scores = scores.masked_fill(~attn_mask, torch.finfo(query.dtype).min)
        weights = scores.softmax(-1).masked_fill(~attn_mask, 0.0)
    found: Symbol = weights @ value
    return found


@form("einsum")
def einsum(tracer: Tracer, equation: str, *operands: Symbol | Tensor) -> Symbol:
    """Return sums of products in the notation of Einstein."""
    symbols = [tracer.as_symbol(each) for each in operands]
    value = tracer.op("einsum", "Einsum", [each.value for each in symbols], equation=equation)
    return tracer.symbol(value, torch.einsum, equation, *symbols)
