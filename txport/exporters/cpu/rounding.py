"""Rounding of a matrix to 4 bits by the inputs that it is multiplied with.

A matrix W (out, in) that is rounded to Q changes products with inputs x by x (Q - W).T. The mean square of this change
is the trace of (Q - W) M (Q - W).T, where M (in, in) is the mean of x.T x: the moments. Columns are rounded one after
the other, and the later columns take over what an error changes, as far as M says that they can (GPTQ: Frantar et al.,
2022, arXiv:2210.17323).

Each weight is rounded to one of its two neighbours, and M gets a large diagonal. So a few texts suffice: less is fitted
to what only these texts have, and weights stay as near to the checkpoint's as the proof requires.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from txport.bundles.forms import Form
from txport.exporters.fused.quantize import PIECE, Quantized, best_grids, joined, pack
from txport.system.arrays import Array
from txport.system.cores import cores

DAMPING = 0.3  # what is added to the diagonal of M, of its mean
TINY = 1e-30


def round_by_inputs(matrix: Array, form: Form, moments: Array) -> Quantized:
    """Return a matrix (out, in) in 4-bit blocks with zero points, rounded for inputs with these moments (in, in)."""
    damped = moments + max(DAMPING * float(np.diag(moments).mean()), TINY) * np.eye(len(moments))
    passed_on = np.linalg.cholesky(np.linalg.inv(damped)).T  # (in, in), upper triangular
    rows = max(1, PIECE // matrix.shape[1])
    pieces = [matrix[start : start + rows] for start in range(0, len(matrix), rows)]

    def quantize(piece: Array) -> Quantized:
        blocks = piece.reshape(len(piece), -1, form.block or 1)
        scales, zeros = best_grids(blocks, np.diag(damped).reshape(blocks.shape[1:]))
        codes = _codes(piece.astype(np.float64), scales.astype(np.float64), zeros.astype(np.float64), passed_on)
        return Quantized(
            form, pack(codes.astype(np.uint8).reshape(blocks.shape)), scales * blocks.any(axis=-1), zeros=zeros
        )

    with ThreadPoolExecutor(cores()) as pool:
        return joined(list(pool.map(quantize, pieces)))


def _codes(matrix: Array, scales: Array, zeros: Array, passed_on: Array) -> Array:
    """Return the codes (out, in) of a matrix with scales and zero points (out, blocks), column after column."""
    left = matrix.copy()  # what the columns have to be, with what the columns before have passed on
    codes = np.empty_like(matrix)
    block = matrix.shape[1] // scales.shape[1]
    for start in range(0, matrix.shape[1], block):
        end = start + block
        scale, zero = scales[:, start // block], zeros[:, start // block]
        errors = np.empty((len(matrix), block))
        for column in range(start, end):
            exact = matrix[:, column] / scale
            code = np.clip(np.rint(left[:, column] / scale), np.floor(exact), np.ceil(exact))
            codes[:, column] = np.clip(code + zero, 0, 15)
            error = (left[:, column] - (codes[:, column] - zero) * scale) / passed_on[column, column]
            left[:, column + 1 : end] -= error[:, None] * passed_on[column, column + 1 : end]
            errors[:, column - start] = error
        left[:, end:] -= errors @ passed_on[start:end, end:]
    return codes


def change_of_products(matrix: Array, rounded: Array, moments: Array) -> float:
    """Return the RMS of the change of products by rounding a matrix, relative to that of the products."""
    change, size = (
        np.einsum("oi,oi->", each @ moments, each) for each in (rounded - matrix, matrix.astype(np.float64))
    )
    return float(np.sqrt(max(change, 0) / max(size, TINY)))
