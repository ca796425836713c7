"""Whisper's log-mel spectrograms in NumPy: samples in -1 to 1, features of about -1 to 1.5.

Slaney's mel scale (Auditory Toolbox, 1998) is linear up to 1000 Hz and logarithmic beyond; filters are triangles of
equal area. Shape comments: T samples, F frames, W samples of a frame, K frequencies, M mel bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from txport.models.audio import Features
from txport.system.arrays import Array

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

HIGHEST = 8000.0  # Hz, end of the last filter for any sampling rate
LINEAR = 1000.0  # Hz
LINEAR_STEP = 200 / 3  # Hz per mel, up to `LINEAR`
LOG_STEP = math.log(6.4) / 27  # natural logarithm of the ratio between mels beyond `LINEAR`
LEAST = 1e-10  # minimum power
RANGE = 8.0  # powers are clipped at 10 ** -RANGE of the largest
TOGETHER = 4096  # frames per Fourier transform call
BLOCK = 1 << 18  # samples


def log_mel(blocks: Iterable[Array], features: Features) -> Floats:
    """Convert samples, in blocks (T,), to log-mel features (M, F), with F = (sum of all T) // hop_length.

    Audio shorter than a window is padded with zeros first. Only the features are in memory as a whole.
    """
    found: Floats = np.empty((0, features.size), np.float32)
    sizes: list[int] = []
    count = 0
    for powers in _powers(_filled(blocks, features.samples, sizes), features):
        last = count + powers.shape[1]
        if last > len(found):
            found.resize((last + last // 8, features.size), refcheck=False)  # mostly in place
        found[count:last] = np.log10(np.maximum(powers, LEAST)).T
        count = last
    found.resize((sum(sizes) // features.hop_length, features.size), refcheck=False)
    np.maximum(found, found.max() - np.float32(RANGE), out=found)
    found += 4
    found /= 4
    return found.T


def in_blocks(samples: Array) -> Iterator[Array]:
    """Yield samples (T,) in blocks."""
    return (samples[first : first + BLOCK] for first in range(0, len(samples), BLOCK))


def _powers(blocks: Iterable[Floats], features: Features) -> Iterator[Doubles]:
    """Yield the power in each mel bin, (M, F) for up to `TOGETHER` frames at a time."""
    size = features.n_fft
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)  # Hann's, periodic, in float64
    filters = mel_filters(features)
    for frames in _frames(_mirrored(blocks, size // 2), size, features.hop_length):
        spectrum = np.fft.rfft(frames * window, axis=1)  # (F, K)
        yield filters @ (spectrum.real**2 + spectrum.imag**2).T


def _filled(blocks: Iterable[Array], least: int, sizes: list[int]) -> Iterator[Floats]:
    """Yield the blocks as float32, and zeros if they have fewer than `least` samples; `sizes` gets their lengths."""
    for block in blocks:
        sizes.append(len(block))
        yield block.astype(np.float32, copy=False)
    sizes.append(max(0, least - sum(sizes)))
    yield np.zeros(sizes[-1], np.float32)


def _mirrored(blocks: Iterable[Floats], half: int) -> Iterator[Floats]:
    """Yield the blocks, with `half` samples mirrored at both ends; there are more than `half` of them."""
    first = last = np.empty(0, np.float32)
    for block in blocks:
        last = np.concatenate([last, block[-half - 1 :]])[-half - 1 :]
        if len(first) > half:
            yield block
            continue
        first = np.concatenate([first, block])
        if len(first) > half:
            yield first[half:0:-1]
            yield first
    yield last[-2::-1]


def _frames(blocks: Iterable[Floats], size: int, hop: int) -> Iterator[Floats]:
    """Yield frames (F, W) of `size` samples, `TOGETHER` at a time; each begins `hop` samples after the one before."""
    held = np.empty(0, np.float32)
    for block in blocks:
        held = np.concatenate([held, block])
        while len(held) >= (TOGETHER - 1) * hop + size:
            yield sliding_window_view(held, size)[::hop][:TOGETHER]
            held = held[TOGETHER * hop :]
    if len(held) >= size:
        yield sliding_window_view(held, size)[::hop]


@cache
def mel_filters(features: Features) -> Doubles:
    """Return the weight of each frequency in each mel bin: (M, K)."""
    frequencies = np.linspace(0, features.sampling_rate // 2, 1 + features.n_fft // 2)  # (K,)
    corners = _hertz(np.linspace(0, _mel(HIGHEST), features.size + 2))  # (M + 2,)
    widths = np.diff(corners)
    slopes = corners[:, None] - frequencies  # (M + 2, K)
    rising = -slopes[:-2] / widths[:-1, None]
    falling = slopes[2:] / widths[1:, None]
    triangles = np.maximum(0, np.minimum(rising, falling))
    found: Doubles = triangles * (2 / (corners[2:] - corners[:-2]))[:, None]
    return found


def _mel(hertz: float) -> float:
    """Return the mel value of a frequency of at least 1000 Hz."""
    return LINEAR / LINEAR_STEP + math.log(hertz / LINEAR) / LOG_STEP


def _hertz(mels: Doubles) -> Doubles:
    edge = LINEAR / LINEAR_STEP
    beyond = LINEAR * np.exp(LOG_STEP * (np.maximum(mels, edge) - edge))
    found: Doubles = np.where(mels < edge, mels * LINEAR_STEP, beyond)
    return found


def drawn_features(reads: Features, number: int) -> NDArray[np.float32]:
    """Return pseudorandom features (M, F) in [-1, 1); `number` is the seed.

    They are computed with integers only, so they are the same on all machines.
    The mixing function is SplitMix64's (Steele et al. 2014, "Fast splittable pseudorandom number generators").
    """
    count = np.uint64(reads.size * reads.frames)
    mixed = (np.arange(count, dtype=np.uint64) + np.uint64(number) * count + np.uint64(1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    centred = (mixed >> np.uint64(40)).astype(np.float32) - np.float32(1 << 23)  # 24 bits, which are exact in fp32
    found: NDArray[np.float32] = (centred / np.float32(1 << 23)).reshape(reads.size, reads.frames)
    return found
