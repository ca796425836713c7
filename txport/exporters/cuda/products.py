"""Products of activations without broadcast matrices, whose addresses a kernel would read from the host.

If one matrix is multiplied by many of the other operand, these become rows of one matrix in a single product.
"""

from __future__ import annotations

import operator
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_ir as ir
from torch import Tensor

from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.tracing.forms import FORMS
from txport.exporters.tracing.forms.common import require
from txport.exporters.tracing.symbols import Pair, Symbol, Tracer

MATRIX = 2  # dims
COPY = 0  # in a shape: copy the dim
REST = -1  # in a shape: inferred dim
ONCE = (1, 1)  # the length of a broadcast dim in both examples


def matmul(tracer: Tracer, x: Any, y: Any) -> Symbol:
    """Return `x @ y`; raise `UnsupportedError` if matrices of both sides are broadcast."""
    if isinstance(x, Symbol) and isinstance(y, Symbol) and not _is_one(x, y):
        require(min(x.dim(), y.dim()) >= MATRIX, "a product of a vector with matrices")
        batches = _dims(x)[:-MATRIX], _dims(y)[:-MATRIX]
        over_x, over_y = (_repeated(*pair) for pair in (batches, batches[::-1]))
        if x.dim() == MATRIX and not over_x:
            over_x = list(range(y.dim() - MATRIX))  # a kernel would treat the one matrix as many
        require(not (over_x and over_y), "a product that repeats matrices of both sides")
        if over_x or over_y:
            value = _once(tracer, x, y, over_x, True) if over_x else _once(tracer, y, x, over_y, False)
            return tracer.symbol(value, operator.matmul, x, y)
    if isinstance(y, Tensor) and y.dim() > MATRIX and y.shape[-1] == 1:
        return _with_vectors(tracer, x, y)
    product: Symbol = FORMS["matmul"](tracer, x, y)
    return product


def _is_one(x: Symbol, y: Symbol) -> bool:
    """True if `x @ y` is one kernel call: `y` is one matrix, or `x` is a vector and `y` has at most 2 dims."""
    if x.dim() == 1:
        return y.dim() <= MATRIX
    return x.dim() >= y.dim() >= MATRIX and all(pair == ONCE for pair in _dims(y)[:-MATRIX])


def _dims(x: Symbol) -> list[Pair]:
    """Return the lengths of each dim in both examples."""
    one, other = x.examples
    return list(zip(one.shape, other.shape, strict=True))


def _repeated(one: list[Pair], many: list[Pair]) -> list[int]:
    """Return the dims of `many` along which `one` is broadcast, including those of length 1 in both; [] if none."""
    pairs = list(zip_longest(reversed(one), reversed(many), fillvalue=ONCE))[::-1]
    if all(here != ONCE or there == ONCE for here, there in pairs):
        return []
    missing = len(pairs) - len(many)
    return [at - missing for at, (here, _) in enumerate(pairs) if here == ONCE and at >= missing]


def _once(tracer: Tracer, one: Symbol, many: Symbol, over: list[int], is_left: bool) -> ir.Value:
    """Return the product of `one` and `many`, where `one` is broadcast along the dims `over` of `many`.

    `one` is always multiplied from the left, transposed if it is the right operand (`is_left` False). Dims that only
    `one` has have length 1; they are removed first and added at the end.
    """
    dims = _dims(many)
    last = many.dim() - 1
    inner, own = (last - 1, last) if is_left else (last, last - 1)  # the dim of the sum, and the other dim
    kept = [at for at in range(last - 1) if at not in over]
    turned = tracer.op("matmul/turned", "Transpose", [many.value], perm=(*kept, inner, *over, own))
    flat = tracer.constant(np.array([*[COPY] * len(kept), COPY, REST]))
    rows = tracer.op("matmul/rows", "Reshape", [turned, flat])
    missing = many.dim() - one.dim()
    value = one.value
    more = list(range(-missing))  # the dims that only `one` has
    single = [*more, *(at - missing for at in over if at >= missing)]
    if single:
        value = tracer.op("matmul/once", "Squeeze", [value, tracer.constant(np.array(single))])
    if is_left:
        product = tracer.op("matmul/product", "MatMul", [value, rows])
    else:
        product = tracer.op("matmul/product", "FusedMatMul", [value, rows], MICROSOFT, transA=1)
    parts = [one if one == other else REST for one, other in (dims[at] for at in (*over, own))]
    require(parts.count(REST) <= 1, "a product that repeats matrices along two dims that a run decides")
    shape = tracer.constant(np.array([*[COPY] * len(kept), COPY, *parts]))
    apart = tracer.op("matmul/apart", "Reshape", [product, shape])
    places = [*kept, last - 1 if is_left else last, *over, own]  # index of each dim in the product
    result = tracer.op("matmul", "Transpose", [apart], perm=tuple(map(places.index, range(last + 1))))
    return tracer.op("matmul/dims", "Unsqueeze", [result, tracer.constant(np.array(more))]) if more else result


def _with_vectors(tracer: Tracer, x: Symbol, y: Tensor) -> Symbol:
    """Return a product with one vector per matrix (y has a last dim of 1) as Mul and ReduceSum."""
    row = tracer.op("matmul/row", "Transpose", [tracer.tensor(y)], perm=(*range(y.dim() - 2), y.dim() - 1, y.dim() - 2))
    each = tracer.op("matmul/each", "Mul", [x.value, row])
    value = tracer.op("matmul", "ReduceSum", [each, tracer.constant(np.array([-1]))], keepdims=1)
    return tracer.symbol(value, operator.matmul, x, y)
