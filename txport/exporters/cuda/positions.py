"""Position and row numbers, computed on the device instead of from shapes on the host.

In PyTorch they come from the shape; in a trace from a few operators over as many elements as there are positions.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from txport.exporters.tracing.symbols import Form, Symbol, Tracer

HALVES = (torch.float16, torch.bfloat16)


def positions_of(x: Tensor) -> Tensor:
    """Return the positions 0 ... L - 1 of ids (B, L) or of a tensor (B, L, D): (L,) int64."""
    if has_torch_function((x,)):
        found: Tensor = handle_torch_function(positions_of, (x,), x)
        return found
    return torch.arange(x.shape[1])


def row_numbers(ids: Tensor) -> Tensor:
    """Return the row numbers 0 ... B x K - 1 of ids (B, K): (B, K) int64."""
    if has_torch_function((ids,)):
        found: Tensor = handle_torch_function(row_numbers, (ids,), ids)
        return found
    return torch.arange(ids.numel()).view(ids.shape)


def by_source(x: Tensor, numbers: Tensor) -> Tensor:
    """Group rows by source: x (R, ...), row numbers (B, K) -> (B, K, ...)."""
    if has_torch_function((x,)):
        found: Tensor = handle_torch_function(by_source, (x,), x, numbers)
        return found
    return x[numbers]


def wide(x: Tensor) -> Tensor:
    """Convert fp16 and bf16 to fp32."""
    return x.to(torch.float32) if x.dtype in HALVES else x


def mean_of_heads(weights: Tensor) -> Tensor:
    """Return the mean over heads of attention weights (B, N, K, S), in fp32 or more: (R, S)."""
    if has_torch_function((weights,)):
        found: Tensor = handle_torch_function(mean_of_heads, (weights,), weights)
        return found
    return weights.mean(1).flatten(0, 1)


def _ones(tracer: Tracer, x: ir.Value, dtype: torch.dtype) -> ir.Value:
    """Return ones (int64) with the shape of a value, computed without reading its shape."""
    whole = x if dtype == torch.int64 else tracer.op("places/whole", "Cast", [x], to=ir.DataType.INT64.value)
    zeros = tracer.op("places/zeros", "Mul", [whole, tracer.constant(np.array(0))])
    return tracer.op("places/ones", "Add", [zeros, tracer.constant(np.array(1))])


def _running_sum(
    tracer: Tracer, name: str, x: ir.Value, axis: int, *, exclusive: int = 0, reverse: int = 0
) -> ir.Value:
    return tracer.op(name, "CumSum", [x, tracer.constant(np.array(axis))], exclusive=exclusive, reverse=reverse)


def _positions_of(tracer: Tracer, x: Symbol) -> Symbol:
    first = tracer.constant(np.array(0))
    line = tracer.op("places/row", "Gather", [x.value, first], axis=0)
    if x.dim() == 3:
        line = tracer.op("places/line", "Gather", [line, first], axis=1)
    value = _running_sum(tracer, "places", _ones(tracer, line, x.dtype), 0, exclusive=1)
    one, other = (torch.arange(each.shape[1]) for each in x.examples)
    return tracer.given(value, (one, other))


def _row_numbers(tracer: Tracer, ids: Symbol) -> Symbol:
    """Return row numbers: the preceding rows of the same source plus all rows of preceding sources."""
    ones = _ones(tracer, ids.value, ids.dtype)
    own = _running_sum(tracer, "places", ones, 1, exclusive=1)
    beams = tracer.op("places/beams", "Add", [own, _running_sum(tracer, "places", ones, 1, reverse=1)])  # K, everywhere
    value = tracer.op("places/rows", "Add", [own, _running_sum(tracer, "places", beams, 0, exclusive=1)])
    one, other = (torch.zeros(each.shape, dtype=torch.int64) for each in ids.examples)
    return tracer.given(value, (one, other))


def _by_source(tracer: Tracer, x: Symbol, numbers: Symbol) -> Symbol:
    value = tracer.op("by_source", "Gather", [x.value, numbers.value], axis=0)
    pairs = zip(x.examples, numbers.examples, strict=True)
    one, other = (each.new_zeros(*number.shape, *each.shape[1:]) for each, number in pairs)
    return tracer.given(value, (one, other))


def _mean_of_heads(tracer: Tracer, weights: Symbol) -> Symbol:
    """Return the mean over heads as the last running sum divided by their number; these kernels need no cuDNN.

    ReduceMean would need cuDNN if sums must be deterministic.
    """
    heads = int(weights.examples[0].shape[1])
    last = tracer.constant(np.array(heads - 1))
    share = tracer.constant(np.array(1 / heads, np.float32))
    sums = _running_sum(tracer, "heads/sums", weights.value, 1)
    total = tracer.op("heads/total", "Gather", [sums, last], axis=1)  # (B, K, S)
    mean = tracer.op("heads/mean", "Mul", [total, share])
    one, other = (mean_of_heads(each) for each in weights.examples)
    return tracer.given(tracer.op("heads/rows", "Flatten", [mean], axis=2), (one, other))


PLACE_FORMS: dict[str, Form] = {
    "positions_of": _positions_of,
    "row_numbers": _row_numbers,
    "by_source": _by_source,
    "mean_of_heads": _mean_of_heads,
}
