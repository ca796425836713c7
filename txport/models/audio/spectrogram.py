"""Whisper's log-mel spectrograms in NumPy: samples in -1 to 1, features of about -1 to 1.5.

Slaney's mel scale (Auditory Toolbox, 1998) is linear up to 1000 Hz and logarithmic beyond; filters are triangles of
equal area. Shape comments: T samples, F frames, W samples of a frame, K frequencies, M mel bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.models.audio.facts import Features

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

HIGHEST = 8000.0  # Hz, end of the last filter for any sampling rate
LINEAR = 1000.0  # Hz
LINEAR_STEP = 200 / 3  # Hz per mel, up to `LINEAR`
LOG_STEP = math.log(6.4) / 27  # natural logarithm of the ratio between mels beyond `LINEAR`
LEAST = 1e-10  # minimum power
RANGE = 8.0  # powers are clipped at 10 ** -RANGE of the largest
TOGETHER = 4096  # frames per Fourier transform call


def log_mel(samples: NDArray[Any], features: Features) -> Floats:
    """Convert samples (T,) to log-mel features (M, F), with F = T // hop_length.

    Audio shorter than a window is padded with zeros first.
    """
    filled = np.zeros(max(len(samples), features.samples), np.float32)
    filled[: len(samples)] = samples
    found: Floats = np.empty((features.size, len(filled) // features.hop_length), np.float32)
    first = 0
    for powers in _powers(filled, features):
        behind = first + powers.shape[1]
        found[:, first:behind] = np.log10(np.maximum(powers, LEAST))
        first = behind
    np.maximum(found, found.max() - np.float32(RANGE), out=found)  # in place, as hours of audio are large
    found += 4
    found /= 4
    return found


def _powers(samples: Floats, features: Features) -> Iterator[Doubles]:
    """Yield the power in each mel bin, (M, F) for up to `TOGETHER` frames at a time."""
    size = features.n_fft
    hop = features.hop_length
    padded = np.pad(samples, size // 2, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)  # Hann's, periodic, in float64
    filters = mel_filters(features)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][: len(samples) // hop]  # (F, W)
    for first in range(0, len(frames), TOGETHER):
        spectrum = np.fft.rfft(frames[first : first + TOGETHER] * window, axis=1)  # (F, K)
        yield filters @ (spectrum.real**2 + spectrum.imag**2).T


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
