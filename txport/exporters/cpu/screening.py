"""Screening: exact top-k tokens (up to rounding of logits) from a small set of candidates.

An 8-bit copy of the projection, a quarter of the bytes, computes each logit with a bounded error.
For a row x of the decoder's output, the weights w of a token, and their quantised versions x' and w':

    |w x - w' x'|  <=  |w' (x - x')| + |(w - w') x|  <=  |w'| |x - x'| + |w - w'| |x|      (Cauchy-Schwarz)

with the largest |w'| and |w - w'| of any token. A token whose coarse logit is more than twice the bound below those of
n others can't be among the top n. The logits of the other tokens, the candidates, are computed in fp32. Coarse logits
are compared in blocks: first the maximum of each block, which excludes most blocks.

Shape comments: R rows, V tokens, G blocks, S block size, n requested tokens, D model width, C candidates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from txport.bundles.forms import ROWS
from txport.exporters.fused.packs import MICROSOFT
from txport.exporters.fused.quantize import Quantized, dequantize, quantize, sums_of_squares
from txport.exporters.fused.rewrite import add_initializer
from txport.system.arrays import Array

ROWS_AT_ONCE = 1024
BLOCK = 64  # tokens; small enough for more blocks than requested tokens
SHARE = 16  # above V x R / SHARE candidates, all logits are computed
MOST = 1 << 16  # and above this number of candidates
INITIALIZERS = ("screening.weight", "screening.scale", "screening.zeros")


@dataclass(frozen=True)
class Screening:
    """A projection (V, D) in 8 bits: values and scales, padded to whole blocks, and twice the error bounds."""

    values: NDArray[np.int8]
    scales: NDArray[np.float32]
    largest: float
    deviation: float


def initializers_of(screening: Screening) -> dict[str, Array]:
    """Return the initializers of a screening by name: values, scales and zero points."""
    zeros = np.zeros(len(screening.values), np.int8)
    return dict(zip(INITIALIZERS, (screening.values, screening.scales, zeros), strict=True))


def shorten(matrix: NDArray[np.float32]) -> Screening:
    """Quantise a projection (V, D); the last block is padded with copies of the last token."""
    quantized = quantize(matrix, ROWS)
    longest = [0.0, 0.0, 0.0]  # largest row norms: matrix, quantised matrix, difference
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        coarse = dequantize(Quantized(ROWS, quantized.values[part], quantized.scales[part])).astype(np.float64)
        each = (_longest(matrix[part]), _longest(coarse), _longest(matrix[part] - coarse))
        longest = list(map(max, longest, each))
    rounding = matrix.shape[1] * np.finfo(np.float32).eps * longest[0]  # of fp32 sums, in any order
    filled = -len(matrix) % BLOCK
    return Screening(
        values=np.pad(quantized.values, ((0, filled), (0, 0)), mode="edge"),
        scales=np.pad(quantized.scales, (0, filled), mode="edge"),
        largest=2 * longest[1],
        deviation=2 * (longest[2] + rounding),
    )


def _longest(matrix: NDArray[np.floating]) -> float:
    return float(np.sqrt(sums_of_squares(matrix).max()))


def add_candidates(
    model: ir.Model, tape: ir.tape.Tape, x: ir.Value, weight: ir.Value, wanted: ir.Value
) -> tuple[ir.Value, ...]:
    """Return the row and the token of each candidate, (C,) each, and whether they are few enough (bool).

    `wanted` (1,) is n. Candidates are ordered by row, then by token.
    """
    assert weight.const_value is not None
    matrix = weight.const_value.numpy()
    screening = shorten(matrix)
    op = tape.op
    values, scales, zeros = (add_initializer(model, *each) for each in initializers_of(screening).items())

    ready = tape.op_multi_out("DynamicQuantizeLinear", [x], num_outputs=3)
    lost = op("Sub", [x, op("DequantizeLinear", ready)])
    last = constant(tape, [1])
    inner = constant(tape, [2])
    bounds = [
        op("Mul", [op("ReduceL2", [vectors, last]), constant(tape, np.float32(factor))])
        for vectors, factor in ((lost, screening.largest), (x, screening.deviation))
    ]
    coarse = op("QGemm", [*ready, values, scales, zeros], {"transB": 1}, domain=MICROSOFT)
    blocks = op("Reshape", [coarse, constant(tape, [0, len(screening.values) // BLOCK, BLOCK])])
    highest = op("ReduceMax", [blocks, inner], {"keepdims": 0})  # (R, G)
    best, _ = tape.op_multi_out("TopK", [highest, wanted], num_outputs=2)  # (R, n)
    worst = op("Gather", [best, op("Sub", [wanted, constant(tape, [1])])], {"axis": 1})  # (R, 1)
    least = op("Sub", [worst, op("Add", bounds)])  # (R, 1)

    kept = op("NonZero", [op("GreaterOrEqual", [highest, least])])  # row and block of each kept block: (2, blocks)
    rows, places = (op("Gather", [kept, constant(tape, part)]) for part in (0, 1))
    starts = op("Mul", [places, constant(tape, BLOCK)])
    tokens = op("Add", [op("Unsqueeze", [starts, last]), constant(tape, np.arange(BLOCK))])  # (blocks, S)
    near = op("GatherND", [blocks, op("Transpose", [kept])])  # (blocks, S)
    real = op("Less", [tokens, constant(tape, len(matrix))])
    may_win = op("And", [op("GreaterOrEqual", [near, op("Gather", [least, rows])]), real])
    found = op("NonZero", [may_win])  # (2, C)
    row = op("Gather", [rows, op("Gather", [found, constant(tape, 0)])])
    token = op("GatherND", [tokens, op("Transpose", [found])])
    most = op("Min", [op("Div", [op("Size", [coarse]), constant(tape, SHARE)]), constant(tape, MOST)])
    broken = op("IsNaN", [op("ReduceSum", [least], {"keepdims": 0})])  # a row with NaN has no candidates
    few = op("And", [op("LessOrEqual", [op("Size", [token]), most]), op("Not", [broken])])
    return row, token, few


def choose(
    tape: ir.tape.Tape, x: ir.Value, weight: ir.Value, row: ir.Value, token: ir.Value, wanted: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """Candidates -> logits and tokens (R, n) of the most probable ones."""
    op = tape.op
    last = constant(tape, [1])
    products = op("Mul", [op("Gather", [x, row]), op("Gather", [weight, token])])
    logits = op("ReduceSum", [products, last], {"keepdims": 0})
    size = op("Squeeze", [op("Shape", [x], {"end": 1})])
    each = op("Range", [constant(tape, 0), size, constant(tape, 1)])
    own = op("Equal", [op("Unsqueeze", [each, last]), row])  # (R, C)
    table = op("Where", [own, logits, constant(tape, np.float32(-np.inf))])
    scores, places = tape.op_multi_out("TopK", [table, wanted], num_outputs=2)
    return scores, op("Gather", [token, places])


def constant(tape: ir.tape.Tape, value: object) -> ir.Value:
    """Add a Constant node."""
    array = np.asarray(value)
    return tape.op("Constant", [], {"value": ir.tensor(array)})
