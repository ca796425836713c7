"""Vectors of texts in fewer bits, as sentence-transformers defines them: `quantize_embeddings`."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from txport.errors import UnsupportedError, quoted
from txport.models.facts import VectorPrecision

STEPS = 255  # between the lowest and the highest of 256 numbers
MIDDLE = 128  # what int8 is less than uint8


def require_precision(precision: object, ranges: object) -> None:
    """Raise `UnsupportedError` for an unknown precision, and for ranges that it has no use for."""
    if precision not in get_args(VectorPrecision):
        raise UnsupportedError(
            f"precision must be one of {', '.join(get_args(VectorPrecision))}, got {quoted(precision)}"
        )
    if ranges is not None and precision not in ("int8", "uint8"):
        raise UnsupportedError(f"ranges are for the precisions int8 and uint8, got {precision}")


def quantize(vectors: NDArray[np.float32], precision: VectorPrecision, ranges: Any = None) -> NDArray[Any]:
    """Quantise vectors (B, D): to (B, D) numbers of 8 bits, or to the signs of D numbers in (B, D / 8) bytes.

    "int8" and "uint8" divide the range of each dimension into 256 steps. `ranges` (2, D) are the lowest and the highest
    numbers; by default those of the vectors themselves, and then their quantised values depend on all of them. "binary"
    and "ubinary" are bits of the numbers above 0, eight in a byte, which is an int8 (less 128) or a uint8. Raises
    `UnsupportedError` for wrong ranges, and for one vector without ranges.
    """
    require_precision(precision, ranges)
    if precision == "float32":
        return vectors
    if precision.endswith("binary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits - MIDDLE).astype(np.int8)
    if not len(vectors):
        return vectors.astype(precision)
    lowest, highest = _ranges(vectors, precision, ranges)
    steps = (highest - lowest) / STEPS
    steps = np.where(steps == 0, 1, steps)
    found = np.clip(np.floor((vectors - lowest) / steps), 0, STEPS)
    result: NDArray[Any] = found.astype(np.uint8) if precision == "uint8" else (found - MIDDLE).astype(np.int8)
    return result


def _ranges(vectors: NDArray[np.float32], precision: str, ranges: object) -> NDArray[np.float32]:
    """Return the lowest and the highest number of each dimension: (2, D)."""
    if ranges is None:
        if len(vectors) == 1:
            fix = "give ranges, the lowest and the highest numbers of representative vectors"
            raise UnsupportedError(f"one vector has no range for {precision}; {fix}")
        return np.stack([vectors.min(axis=0), vectors.max(axis=0)])
    wanted = (2, vectors.shape[1])
    try:
        found = np.asarray(ranges, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"ranges must be numbers of the shape {wanted}, got {quoted(ranges)}") from error
    if found.shape != wanted or not np.isfinite(found).all() or (found[0] > found[1]).any():
        what = "the lowest numbers, then the highest, all finite"
        raise UnsupportedError(f"ranges must have the shape {wanted}: {what}; got the shape {found.shape}")
    return found
