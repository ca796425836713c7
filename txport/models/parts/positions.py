"""Position encodings: added to embeddings, rotary, or relative."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from txport.system.arrays import Array

unflatten = cast(Callable[[Tensor, int, tuple[int, ...]], Tensor], torch.unflatten)  # PyTorch's has no annotations
Pairing = Literal["halves", "interleaved"]
Layout = Literal["interleaved", "halves", "fairseq"]  # order of sines and cosines
WAVES = (math.sin, math.cos)


@cache
def sinusoids(length: int, size: int, layout: Layout = "interleaved") -> Tensor:
    """Return sinusoidal positions (length, size), section 3.5 of Vaswani et al. 2017.

    Sines and cosines alternate ("interleaved") or are in two halves ("halves"). "fairseq" has halves too, with
    wavelengths from 2 pi to 10000 x 2 pi.

    PyTorch's kernels are not used, because their last bit depends on the instruction set.
    """
    if layout == "fairseq":
        return torch.from_numpy(_of_fairseq(length, size))
    table = np.empty((length, size), np.float32)
    for place, row in enumerate(table):
        row[:] = [wave(place * 10000.0 ** (-even / size)) for even in range(0, size, 2) for wave in WAVES]
    if layout == "halves":
        table = np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)
    return torch.from_numpy(table)


def _of_fairseq(length: int, size: int) -> NDArray[np.float32]:
    """Return the sinusoids of fairseq, with frequencies and angles rounded to fp32 as in training."""
    half = size // 2
    float32 = np.float32
    fall = float32(-math.log(10000.0) / (half - 1))
    frequencies = [float32(math.exp(float32(pair) * fall)) for pair in range(half)]
    rows = ([float32(place) * each for each in frequencies] for place in range(length))
    table = [[wave(angle) for wave in WAVES for angle in angles] for angles in rows]
    return np.array(table, float32).reshape(length, size)


def constant_table(shape: tuple[int, ...], make: Callable[[], Tensor]) -> Tensor:
    """Return the table of `make`; on the meta device, where only shapes matter, return an empty one of this shape."""
    return torch.empty(shape) if torch.zeros(()).is_meta else make().clone()


class Rotary(nn.Module):
    """Rotary position embedding (Su et al. 2021): pairs of a head's elements are rotated by position x frequency.

    `frequencies` (H / 2,) are in radians per position. `pairing`: pairs are the elements (i, i + H / 2) ("halves") or
    (2i, 2i + 1) ("interleaved"). The result is multiplied by `scale`, as in YaRN. With fewer frequencies, only the
    first `size` elements of a head are rotated, in pairs among themselves.
    """

    def __init__(
        self, frequencies: NDArray[np.float64], longest: int, pairing: Pairing = "halves", scale: float = 1.0
    ) -> None:
        super().__init__()
        self.pairing = pairing
        self.scale = scale
        self.size = 2 * len(frequencies)
        shape = (longest, len(frequencies))
        for name, wave in (("cos", np.cos), ("sin", np.sin)):
            table = constant_table(shape, lambda wave=wave: waves(frequencies, longest, wave, scale))  # type: ignore[misc]
            self.register_buffer(name, table, persistent=False)

    cos: Tensor
    sin: Tensor

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        """Rotate heads (B, N, T, H) at positions (T,) or (B, T) -> (B, N, T, H)."""
        if x.shape[-1] > self.size:
            return torch.cat([self._rotated(x[..., : self.size], places), x[..., self.size :]], -1)
        return self._rotated(x, places)

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        rows = places if places.dim() == 2 else places[None]
        # (B or 1, 1, T, H / 2): OpenVINO fuses rotations by 4 dims only
        cos, sin = (F.embedding(rows, table)[:, None] for table in (self.cos, self.sin))
        if self.pairing == "halves":
            first, second = x.chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
        pairs = unflatten(x, -1, (-1, 2))  # (B, N, T, H / 2, 2)
        first, second = (each.flatten(-2) for each in pairs.chunk(2, -1))
        turned = [first * cos - second * sin, second * cos + first * sin]
        return torch.cat([each.unsqueeze(-1) for each in turned], -1).flatten(-2)


def speeds(base: float, size: int) -> NDArray[np.float64]:
    """Return the inverse frequencies base^(-2i / size), in radians per position: (size / 2,). Su et al.: base 10000."""
    turns: NDArray[np.float64] = base ** (-np.arange(0, size, 2) / size)
    return turns


def kept_by_yarn(
    pairs: int, base: float, original: int, fast: float, slow: float, *, truncate: bool = True
) -> NDArray[np.float64]:
    """YaRN (Peng et al. 2023): return the fraction of each frequency that is not interpolated: (pairs,).

    It is a linear ramp over the pairs: 1 up to the pair with `fast` rotations within `original` positions, 0 from the
    pair with `slow` rotations on. With `truncate`, it begins and ends at whole pairs.
    """
    first, last = (pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base) for turns in (fast, slow))
    low = max(math.floor(first) if truncate else first, 0)
    high = min(math.ceil(last) if truncate else last, 2 * pairs - 1)
    kept: NDArray[np.float64] = 1 - np.clip((np.arange(pairs) - low) / ((high - low) or 0.001), 0, 1)
    return kept


def waves(frequencies: NDArray[np.float64], longest: int, wave: Callable[[Array], Array], scale: float) -> Tensor:
    """Return scale x sine or cosine of each angle: (longest, H / 2). Angles are rounded to fp32, as in training."""
    angles = np.arange(longest, dtype=np.float32)[:, None] * frequencies.astype(np.float32)
    return torch.from_numpy((wave(angles.astype(np.float64)) * scale).astype(np.float32))


class RelativeBias(nn.Module):
    """Relative position bias (Raffel et al. 2020, T5): a learned bias per head and bucket, added to scores."""

    def __init__(self, heads: int, buckets: int, farthest: int, longest: int, *, both_ways: bool) -> None:
        super().__init__()
        self.longest = longest
        self.buckets = buckets
        self.farthest = farthest
        self.both_ways = both_ways
        self.weight = nn.Parameter(torch.empty(buckets, heads))
        shape = (2 * longest + 1,)
        table = constant_table(shape, lambda: bucket_table(buckets, farthest, longest, both_ways=both_ways))
        self.register_buffer("bucket", table.long(), persistent=False)

    bucket: Tensor

    def forward(self, distances: Tensor) -> Tensor:
        """Relative positions key - query (..., T, S) -> biases (..., N, T, S)."""
        found = F.embedding(torch.take(self.bucket, distances + self.longest), self.weight)
        return found.movedim(-1, -3)


def bucket_table(buckets: int, farthest: int, longest: int, *, both_ways: bool) -> Tensor:
    """Return the bucket of each relative position from -longest to longest: (2 x longest + 1,).

    Small distances have a bucket each, larger ones share logarithmic buckets up to `farthest`, and all beyond have the
    last one. If `both_ways` is True, each direction has half of the buckets; otherwise all later keys have bucket 0.
    Each step is rounded to fp32, as in training: at the edge of a bucket, the last bit decides.
    """
    distances = np.arange(-longest, longest + 1)
    base = np.zeros_like(distances)
    if both_ways:
        buckets //= 2
        base = np.where(distances > 0, buckets, 0)
        far = np.abs(distances)
    else:
        far = np.maximum(-distances, 0)
    own = buckets // 2
    float32 = np.float32
    logarithms = np.log((np.maximum(far, 1) / own).astype(float32).astype(np.float64)).astype(float32)
    ratio = logarithms / float32(math.log(farthest / own)) * float32(buckets - own)
    shared = np.minimum(own + ratio.astype(np.int64), buckets - 1)
    return torch.from_numpy(base + np.where(far < own, far, shared))


def alibi_slopes(heads: int, steepest: float) -> NDArray[np.float32]:
    """Return the slope of each head (N,), positive: 2^(-steepest i / N) for i = 1 to N.

    If N is no power of 2, they are those of the next one, every second first.
    """
    count = 1 << (heads - 1).bit_length()
    slopes = 2.0 ** (-steepest * np.arange(1, count + 1) / count)
    return np.concatenate([slopes[1::2], slopes[::2]] if count != heads else [slopes])[:heads].astype(np.float32)


class Alibi(nn.Module):
    """ALiBi (Press et al. 2022): scores fall with the distance, by a slope per head."""

    reads_keys = False

    def __init__(self, heads: int, steepest: float) -> None:
        super().__init__()
        table = constant_table((heads, 1, 1), lambda: torch.from_numpy(alibi_slopes(heads, steepest)[:, None, None]))
        self.register_buffer("slopes", table, persistent=False)

    slopes: Tensor

    def forward(self, distances: Tensor) -> Tensor:
        """Relative positions key - query (..., T, S) -> biases (..., N, T, S)."""
        return -distances.abs()[..., None, :, :] * self.slopes


class RoundedAlibi(nn.Module):
    """ALiBi of Falcon: slope x position of the key, rounded to bf16 as in its training, times `factor`.

    The softmax does not depend on the position of the query, but for the rounding.
    """

    reads_keys = True

    def __init__(self, heads: int, steepest: float, longest: int, factor: float) -> None:
        super().__init__()

        def made() -> Tensor:
            slopes = torch.from_numpy(alibi_slopes(heads, steepest)).bfloat16()
            return (slopes * torch.arange(longest)[:, None]).float() * factor

        self.register_buffer("table", constant_table((longest, heads), made), persistent=False)

    table: Tensor

    def forward(self, places: Tensor) -> Tensor:
        """Positions of keys (..., T, S), of which those of padding may be negative -> biases (..., N, T, S)."""
        return F.embedding(places.clamp(0, len(self.table) - 1), self.table).movedim(-1, -3)


class RelativeVectors(nn.Module):
    """Relative position vectors (Shaw et al. 2018): a learned vector per distance, clipped to [-farthest, farthest]."""

    def __init__(self, size: int, farthest: int) -> None:
        super().__init__()
        self.farthest = farthest
        self.weight = nn.Parameter(torch.empty(2 * farthest + 1, size))

    def forward(self, distances: Tensor) -> Tensor:
        """Relative positions key - query (..., T, S) -> vectors (..., T, S, H)."""
        return F.embedding(distances.clamp(-self.farthest, self.farthest) + self.farthest, self.weight)


class PositionVectors(nn.Module):
    """Vectors of relative positions (He et al. 2021, DeBERTa), which the layers of a model share.

    A distance of `reach` or more has the vector of the last one. With `buckets`, each direction has so many vectors:
    half of them are for one distance each, and logarithmic buckets up to `reach` share the others.
    """

    def __init__(self, width: int, reach: int, buckets: int, longest: int, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.longest = longest
        self.norm = norm
        self.weight = nn.Parameter(torch.empty(2 * (buckets or reach), width))
        table = constant_table((2 * longest + 1,), lambda: vector_table(reach, buckets, longest))
        self.register_buffer("bucket", table.long(), persistent=False)
        self.register_buffer("every", torch.arange(2 * (buckets or reach)), persistent=False)

    bucket: Tensor
    every: Tensor

    def forward(self, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Relative positions key - query (T, S) -> all vectors (P, D), and the index of each position's (T, S)."""
        vectors = F.embedding(self.every, self.weight)  # a value of the graph, not a weight, for parts that read it
        return vectors if self.norm is None else self.norm(vectors), torch.take(self.bucket, distances + self.longest)


def vector_table(reach: int, buckets: int, longest: int) -> Tensor:
    """Return the index of the vector of each relative position from -longest to longest: (2 x longest + 1,).

    As in training, an index grows with the position of the query, and each step is rounded to fp32.
    """
    found = -np.arange(-longest, longest + 1)  # query - key
    if buckets:
        own = buckets // 2
        float32 = np.float32
        far = np.maximum(np.abs(found), own)
        logarithms, whole = (
            np.log(each.astype(float32).astype(np.float64)).astype(float32)
            for each in (far / own, np.array((reach - 1) / own))
        )
        shared = np.ceil(logarithms / whole * float32(own - 1)) + own
        found = np.where(np.abs(found) <= own, found, np.sign(found) * shared).astype(np.int64)
    half = buckets or reach
    return torch.from_numpy(np.clip(found + half, 0, 2 * half - 1))
