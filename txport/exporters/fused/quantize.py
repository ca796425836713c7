"""Quantisation of weight matrices in each storage form, and dequantisation.

Forms of a matrix (out, in), all but the last one symmetric (`bundles.forms` records them):

- dynamic int8: one scale per row of `out`; activations are quantised at run time (DynamicQuantizeMatMul). The
  fastest form from a few rows on.
- int8 rows: the same, but stored row by row, so that an embedding and a projection can share one tensor.
- int8 invariant: also stored row by row; each row of activations has a separate scale. Integers are summed without
  rounding, therefore the result of a row does not depend on the other rows or on their number.
- int8 with columns in fp32: like int8 invariant, with a zero point for each row of activations. The columns of inputs
  that are much larger than the others are 0 in the integers; their weights in fp32 are multiplied in a small product,
  with a last row that removes the zero points.
- blocks: 8 or 4 bits with a scale per block of inputs (MatMulNBits). They read the fewest bytes per weight and are the
  fastest for one or two rows. The cpu target uses accuracy level 4: activations are quantised row by row. In 4 bits,
  its kernels for blocks of 32 sum all rows in the same order, except that some processors have another kernel for a
  single row (`runtimes.ort.sessions`); those for 16 do so on x86 alone, and those for larger blocks process two rows at
  a time and sum a last odd row in a different order. The cuda target has 16-bit scales and does not quantise
  activations.
- qdq: the same numbers as in blocks, each in its place (out, in), which the standard DequantizeLinear turns into fp32
  before a product.
- 4-bit blocks with zero points: the same, and not symmetric: the 16 values lie where a block's weights do, which takes
  half a byte a block and no time. They also take the weights that GPTQ and AWQ have quantised.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np

from txport.bundles.forms import DYNAMIC, INVARIANT, Form
from txport.checkpoints.weights.packed import Packed
from txport.errors import UnsupportedError
from txport.system.arrays import Array
from txport.system.cores import cores

FLOAT32 = np.dtype(np.float32)
MIDDLE = np.uint8(0x80)  # zero point of 8 bits without a sign
PIECE = 1 << 20  # number of weights that are quantised at a time
RANGES = (15.0, 13.0, 14.0, 14.5, 15.5, 16.0, 16.5, 17.0)  # candidates for the steps of 4 bits between a block's ends
ENDS = (-8.0, -8.5, -9.0, -7.5, -7.0, 7.0)  # candidates for the quantised value of the largest weight of a 4-bit block


@dataclass(frozen=True)
class Quantized:
    """A quantised matrix: `values` in the layout of the operator, `scales` in fp32 or fp16, and `columns` in fp32."""

    form: Form
    values: Array
    scales: Array
    columns: Array | None = None  # (columns + 1, out): see `Stored.columns`
    zeros: Array | None = None  # (out, blocks), from 0 to 15

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix: (out, in)."""
        if self.form.has_row_scales:
            out, inputs = self.values.shape[:: -1 if self.form == DYNAMIC else 1]
        else:
            out = len(self.values)
            inputs = self.values.shape[1] * (self.form.block or 1)
        return out, inputs

    def rows(self, rows: slice | Array) -> Quantized:
        """Return the rows of the matrix at an index, a slice or an array of integers."""
        values = self.values[:, rows] if self.form == DYNAMIC else self.values[rows]
        columns = None if self.columns is None else self.columns[:, rows]
        zeros = None if self.zeros is None else self.zeros[rows]
        return Quantized(self.form, values, self.scales[rows], columns, zeros)


def joined(parts: Sequence[Quantized]) -> Quantized:
    """Return matrices whose values are stored row by row as one, row after row."""
    if len(parts) == 1:
        return parts[0]
    values, scales = (np.concatenate([getattr(each, name) for each in parts]) for name in ("values", "scales"))
    zeros = [each.zeros for each in parts if each.zeros is not None]
    return Quantized(parts[0].form, values, scales, zeros=np.concatenate(zeros) if zeros else None)


def quantize(matrix: Array, form: Form, scales_in: np.dtype[np.floating] = FLOAT32) -> Quantized:
    """Quantise a matrix (out, in), in parallel if it is large; scales have the dtype `scales_in`."""
    if form.columns:
        rest = quantize(rest_of(matrix, form), INVARIANT, scales_in)
        columns = np.vstack([matrix[:, list(form.columns)].T, -sums_of_rows(rest)])
        return Quantized(form, rest.values, rest.scales, columns.astype(np.float32))
    rows = max(1, PIECE // matrix.shape[1])
    pieces = [matrix[start : start + rows] for start in range(0, len(matrix), rows)]
    if len(pieces) == 1:
        made = [_quantize(matrix, form, scales_in)]
    else:
        with ThreadPoolExecutor(cores()) as pool:
            made = list(pool.map(_quantize, pieces, repeat(form), repeat(scales_in)))
    whole = joined([Quantized(form, values, scales, zeros=zeros) for values, scales, zeros in made])
    return replace(whole, values=np.ascontiguousarray(whole.values.T)) if form == DYNAMIC else whole


def rest_of(matrix: Array, form: Form) -> Array:
    """Return a matrix (out, in) whose columns in fp32 are 0."""
    if not form.columns:
        return matrix
    rest: Array = matrix.copy()
    rest[:, list(form.columns)] = 0
    return rest


def spread_of(form: Form, inputs: int) -> Array:
    """Return the matrix (columns + 1, in) of 0 and 1 that moves columns to their places; its last row is 0."""
    spread = np.zeros((len(form.columns) + 1, inputs), np.float32)
    spread[np.arange(len(form.columns)), list(form.columns)] = 1
    return spread


def sums_of_rows(quantized: Quantized) -> Array:
    """Return the sum of each row of `out` in float64, without the columns in fp32."""
    sums: Array = quantized.values.sum(axis=1, dtype=np.int64) * quantized.scales.astype(np.float64)
    return sums


def shapes(out: int, inputs: int, form: Form) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the values and of the scales of a matrix (out, in)."""
    if form.has_row_scales:
        return (inputs, out) if form == DYNAMIC else (out, inputs), (out,)
    assert form.block is not None
    blocks = inputs // form.block
    return (out, inputs) if form.kind == "qdq" else (out, blocks, form.block * form.bits // 8), (out, blocks)


def _quantize(matrix: Array, form: Form, scales_in: np.dtype[np.floating]) -> tuple[Array, Array, Array | None]:
    """Quantise some rows of a matrix; return values, row by row, scales, and zero points if the form has them.

    The scale of zeros alone is 0: with another one, the rounding errors of a kernel's sums would take its size.
    """
    if form.has_row_scales:
        assert scales_in == FLOAT32, scales_in
        scales = _safe(np.abs(matrix).max(axis=1) / 127)
        return np.clip(np.rint(matrix / scales[:, None]), -127, 127).astype(np.int8), scales * matrix.any(axis=1), None
    bits = form.bits
    block = form.block
    assert block is not None
    blocks = matrix.reshape(len(matrix), -1, block)  # (out, in / block, block)
    if form.zeros:
        assert scales_in == FLOAT32, scales_in
        scales, zeros = best_grids(blocks)
        return pack(_codes(blocks, scales, zeros).astype(np.uint8)), scales * blocks.any(axis=-1), zeros
    scales = _outwards(best_scales(blocks, bits), scales_in)
    half = 2 ** (bits - 1)
    values = np.rint(blocks / scales[..., None].astype(np.float32))
    values = (np.clip(values, -half, half - 1) + half).astype(np.uint8)
    return pack(values) if bits == 4 else values, scales * blocks.any(axis=-1), None


def _codes(blocks: Array, scales: Array, zeros: Array) -> Array:
    """Return the numbers of 4 bits, as floats, to which blocks (..., block) are rounded."""
    codes: Array = np.clip(np.rint(blocks / scales[..., None]) + zeros[..., None], 0, 15)
    return codes


def pack(values: Array) -> Array:
    """Return numbers of 4 bits in bytes, two of the last axis in each; the first is in the lower 4 bits."""
    if values.shape[-1] % 2:
        values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
    packed: Array = values[..., 0::2] | (values[..., 1::2] << 4)
    return packed


def unpack(values: Array) -> Array:
    """Return the numbers of 4 bits in bytes; the inverse of `pack`."""
    unpacked: Array = np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:-1], -1)
    return unpacked


def unfolded(values: Array, form: Form) -> Array:
    """Return the values of blocks, which are (out, blocks, bytes), as DequantizeLinear reads them: (out, in).

    Numbers of 8 bits become signed; those of 4 bits have a byte each.
    """
    numbers = unpack(values) if form.bits == 4 else (values ^ MIDDLE).view(np.int8)
    return numbers.reshape(len(values), -1)


def folded(values: Array, form: Form) -> Array:
    """Return the values of blocks (out, blocks, bytes) from those of DequantizeLinear; the inverse of `unfolded`."""
    blocks = values.view(np.uint8).reshape(len(values), -1, form.block or 1)
    return pack(blocks) if form.bits == 4 else blocks ^ MIDDLE


def quantized_of(packed: Packed, form: Form, scales_in: np.dtype[np.floating] = FLOAT32) -> Quantized:
    """Return a matrix that another tool has quantised, in blocks with zero points that are its groups or parts of them.

    Raises `UnsupportedError` if its scales are no numbers of the dtype `scales_in`.
    """
    assert form.block is not None
    out, inputs = packed.codes.shape
    times = inputs // form.block // packed.scales.shape[1]
    scales, zeros = (np.repeat(each, times, axis=1) for each in (packed.scales, packed.zeros))
    if not np.array_equal(scales.astype(scales_in), scales):
        raise UnsupportedError(f"its scales are no numbers of {scales_in}")
    values = pack(packed.codes.reshape(out, -1, form.block))
    return Quantized(form, values, scales.astype(scales_in), zeros=zeros)


def _outwards(scales: Array, kind: np.dtype[np.floating]) -> Array:
    """Convert scales to another dtype, rounding away from zero, so that the largest value stays in range."""
    largest = float(np.abs(scales).max(initial=0))
    most = float(np.finfo(kind).max)
    if not largest <= most:
        raise UnsupportedError(f"a block needs the scale {largest:.6g}, and {kind} ends at {most:.6g}")
    rounded = scales.astype(kind)
    short = np.abs(rounded.astype(np.float32)) < np.abs(scales)
    outwards: Array = np.where(short, np.nextafter(rounded, np.copysign(np.array(np.inf, kind), rounded)), rounded)
    return outwards


def dequantize(quantized: Quantized) -> Array:
    """Return the matrix (out, in) that the kernels use, in float32."""
    if quantized.form.has_row_scales:
        values = quantized.values.T if quantized.form == DYNAMIC else quantized.values
        by_row: Array = values.astype(np.float32)
        by_row *= quantized.scales[:, None]
        if quantized.columns is not None:
            by_row[:, list(quantized.form.columns)] = quantized.columns[:-1].T
        return by_row
    bits = quantized.form.bits
    values = quantized.values
    if bits == 4:
        values = unpack(values)
    matrix: Array = values.astype(np.float32)
    matrix -= 2 ** (bits - 1) if quantized.zeros is None else quantized.zeros[..., None]
    matrix *= quantized.scales[..., None].astype(np.float32)
    return matrix.reshape(len(values), -1)


def steps(quantized: Quantized) -> Array:
    """Return the quantisation step of each weight (out, in): the absolute value of its scale, 0 if it is in fp32."""
    scales = np.abs(quantized.scales.astype(np.float32))
    if quantized.form.has_row_scales:
        size = quantized.values.shape[0 if quantized.form == DYNAMIC else 1]
        return rest_of(np.repeat(scales[:, None], size, axis=1), quantized.form)
    return np.repeat(scales, quantized.form.block or 1, axis=1)


def best_scales(blocks: Array, bits: int, importance: Array | None = None) -> Array:
    """Blocks (..., block) -> scales (...): the largest value is mapped to an end of the range, in 4 bits near it.

    In 4 bits, the end in `ENDS` with the smallest squared error is chosen: clipping an outlier can make the other
    values more precise. A negative scale maps the largest value to the longer, negative side. `importance` multiplies
    the squared errors of the values.
    """
    half = 2 ** (bits - 1)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    if bits == 8:
        return _safe(np.abs(largest) / (half - 1))
    best = np.ones(largest.shape, np.float32)
    least = np.full(largest.shape, np.inf)
    for end in ENDS:
        scales = _safe(largest / end)
        error = blocks - scales[..., None] * np.clip(np.rint(blocks / scales[..., None]), -half, half - 1)
        squared = sums_of_squares(error if importance is None else error * np.sqrt(importance))
        best = np.where(squared < least, scales, best)
        least = np.minimum(squared, least)
    return best


def best_grids(blocks: Array, importance: Array | None = None) -> tuple[Array, Array]:
    """Blocks (..., block) -> scales and zero points (...) of 4 bits, so that a value moves by a step at most.

    The number of steps between the ends of a block, one of `RANGES`, is that with the smallest squared error, as in
    `best_scales`. 0 is one of the 16 values.
    """
    low, high = np.minimum(blocks.min(axis=-1), 0), np.maximum(blocks.max(axis=-1), 0)
    best, best_zeros = np.ones(low.shape, np.float32), np.zeros(low.shape, np.float32)
    least = np.full(low.shape, np.inf)
    for steps_between in RANGES:
        scales = _safe((high - low) / np.float32(steps_between))
        zeros = np.clip(np.rint(-low / scales + np.float32((15 - steps_between) / 2)), 0, 15)
        error = np.abs(blocks - scales[..., None] * (_codes(blocks, scales, zeros) - zeros[..., None]))
        squared = sums_of_squares(error if importance is None else error * np.sqrt(importance))
        squared[(error > scales[..., None]).any(axis=-1) & np.isfinite(least)] = np.inf
        is_better = squared < least
        best, best_zeros = np.where(is_better, scales, best), np.where(is_better, zeros, best_zeros)
        least = np.minimum(squared, least)
    return best, best_zeros.astype(np.uint8)


def sums_of_squares(values: Array) -> Array:
    """Sum squares over the last axis sequentially in float64, so that the result is the same on every processor.

    The order of additions in `sum` is unspecified; in float32, two nearly equal sums could then compare either way.
    """
    sums: Array = np.square(values, dtype=np.float64).cumsum(axis=-1)[..., -1]
    return sums


def _safe(scales: Array) -> Array:
    safe: Array = np.where(scales == 0, 1, scales).astype(np.float32)
    return safe
