"""Audio for tests, by whole numbers alone, so that it is the same on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from txport.audio.spectrogram import drawn_features
from txport.models.audio import Features

RATE = 16000
PIECES = {"short": 0.6, "whole": 1.0, "long": 3.3, "longer": 5.2049}  # name -> seconds
LEVELS = (0.5, 0.03, 0.2, 0.0, 0.9, 0.1)  # of parts of a quarter of a second


def noise(name: str) -> NDArray[np.float32]:
    """The noise of a piece."""
    return drawn_noise(PIECES[name], list(PIECES).index(name))


def drawn_noise(seconds: float, number: int) -> NDArray[np.float32]:
    """Noise that gets louder and quieter, every other part of it smoothed; `number` is the seed."""
    count = round(seconds * RATE)
    whole = Features(size=1, frames=count, longest=count, sampling_rate=RATE, hop_length=1, n_fft=2)
    samples = drawn_features(whole, number)[0]
    parts = np.arange(count) // (RATE // 4)
    smooth = (samples + np.roll(samples, 1) + np.roll(samples, 2) + np.roll(samples, 3)) / np.float32(4)
    levels = np.array(LEVELS, np.float32)[parts % len(LEVELS)]
    found: NDArray[np.float32] = np.where(parts % 2, smooth, samples) * levels
    return found
