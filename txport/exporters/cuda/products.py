"""Products of activations. None repeats matrices: a kernel would be told by the host where each of them lies.

What one side has once for many matrices of the other is multiplied once: those become rows of one matrix.
"""

from __future__ import annotations

import operator
from itertools import zip_longest
from typing import Any

import numpy as np
import onnx_ir as ir
from torch import Tensor

from txport.exporters.forms import FORMS
from txport.exporters.forms.common import require
from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.symbols import Pair, Symbol, Tracer

MATRIX = 2  # dims
COPY = 0  # in a shape: the length that is there
REST = -1  # in a shape: what is left over
ONCE = (1, 1)  # the length of a dim that is repeated, in both examples


def matmul(tracer: Tracer, x: Any, y: Any) -> Symbol:
    """`x @ y`; of many matrices with one, a kernel makes one product by itself."""
    if isinstance(x, Symbol) and isinstance(y, Symbol) and not _is_one(x, y):
        require(min(x.dim(), y.dim()) >= MATRIX, "a product of a vector with matrices")
        batches = _dims(x)[:-MATRIX], _dims(y)[:-MATRIX]
        over_x, over_y = (_repeated(*pair) for pair in (batches, batches[::-1]))
        if x.dim() == MATRIX and not over_x:
            over_x = list(range(y.dim() - MATRIX))  # of one matrix, which a kernel takes for many
        require(not (over_x and over_y), "a product that repeats matrices of both sides")
        if over_x or over_y:
            value = _once(tracer, x, y, over_x, True) if over_x else _once(tracer, y, x, over_y, False)
            return tracer.symbol(value, operator.matmul, x, y)
    if isinstance(y, Tensor) and y.dim() > MATRIX and y.shape[-1] == 1:
        return _with_vectors(tracer, x, y)
    product: Symbol = FORMS["matmul"](tracer, x, y)
    return product


def _is_one(x: Symbol, y: Symbol) -> bool:
    """Whether a product with `y` is one call without more ado: it is one matrix, or two vectors meet."""
    if x.dim() == 1:
        return y.dim() <= MATRIX
    return x.dim() >= y.dim() >= MATRIX and all(pair == ONCE for pair in _dims(y)[:-MATRIX])


def _dims(x: Symbol) -> list[Pair]:
    """The length of each dim in both examples."""
    one, other = x.examples
    return list(zip(one.shape, other.shape, strict=True))


def _repeated(one: list[Pair], many: list[Pair]) -> list[int]:
    """The dims of `many` along which `one` is repeated, those of length 1 on both sides too; none if it never is."""
    pairs = list(zip_longest(reversed(one), reversed(many), fillvalue=ONCE))[::-1]
    if all(here != ONCE or there == ONCE for here, there in pairs):
        return []
    missing = len(pairs) - len(many)
    return [at - missing for at, (here, _) in enumerate(pairs) if here == ONCE and at >= missing]


def _once(tracer: Tracer, one: Symbol, many: Symbol, over: list[int], is_left: bool) -> ir.Value:
    """The product of `one` with `many`, along whose dims `over` it is repeated; `one` is the left side, or the right.

    Either way `one` is multiplied from the left, by its transpose if it is the right side. Dims that only `one` has are
    of one matrix each, and are left out until the end.
    """
    dims = _dims(many)
    last = many.dim() - 1
    inner, own = (last - 1, last) if is_left else (last, last - 1)  # what is summed over, and the other dim
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
    places = [*kept, last - 1 if is_left else last, *over, own]  # which dim of the product each of them is
    result = tracer.op("matmul", "Transpose", [apart], perm=tuple(map(places.index, range(last + 1))))
    return tracer.op("matmul/dims", "Unsqueeze", [result, tracer.constant(np.array(more))]) if more else result


def _with_vectors(tracer: Tracer, x: Symbol, y: Tensor) -> Symbol:
    """A product with a vector of each head is a sum."""
    row = tracer.op("matmul/row", "Transpose", [tracer.tensor(y)], perm=(*range(y.dim() - 2), y.dim() - 1, y.dim() - 2))
    each = tracer.op("matmul/each", "Mul", [x.value, row])
    value = tracer.op("matmul", "ReduceSum", [each, tracer.constant(np.array([-1]))], keepdims=1)
    return tracer.symbol(value, operator.matmul, x, y)
