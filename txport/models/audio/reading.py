"""Reading audio files (WAV, FLAC and other formats of libsndfile) as mono samples at the model's sampling rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.errors import AudioError, TxportError, brief, quoted
from txport.models.audio.facts import Features
from txport.system.packages import needed
from txport.system.terminal import native_stderr_held

Floats = NDArray[np.float32]

INSTALL = "txport[audio]"
LONGEST = 24 * 3600  # seconds of one file; compressed silence may not fit in memory
MOST_SAMPLES = 1 << 31  # of a file, over all channels
SLOWEST, FASTEST = 1_000, 1_000_000  # samples per second; at a lower rate, a small file would become days of audio
LOUDEST = 100.0  # loud floats may exceed 1 somewhat; integers read as floats exceed it by far
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".w64", ".opus")


def is_audio(name: str) -> bool:
    """Return whether a text is the name of an existing audio file."""
    try:
        return name.lower().endswith(SUFFIXES) and Path(name).is_file()
    except (OSError, ValueError):
        return False


def read_audio(path: Path, features: Features) -> Floats:
    """Return the samples (T,) of a file: the mean of its channels, at the model's sampling rate.

    Raises `AudioError` for a file that is not audio, is empty, is too long or has NaN or infinity; `UnavailableError`
    if `soundfile`, or `soxr` for another rate, is not installed.
    """
    with needed(INSTALL, "an audio file"):
        import soundfile
    if not path.is_file():
        raise AudioError(f"there is no file {path}; this model reads audio files, such as talk.wav")
    try:
        with native_stderr_held(), soundfile.SoundFile(path) as file:
            rate = int(file.samplerate)
            frames = int(file.frames)
            channels = int(file.channels)
            _require_size(path, rate, frames, channels)
            samples = file.read(dtype="float32", always_2d=True)
    except TxportError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # libsndfile raises RuntimeError
        raise AudioError(f"{path} can't be read as audio: {brief(error)}") from error
    with np.errstate(invalid="ignore", over="ignore"):  # infinity is refused later
        mean = samples.mean(axis=1, dtype=np.float32)
    return resampled(checked(mean, str(path)), rate, features)


def _require_size(path: Path, rate: int, frames: int, channels: int) -> None:
    if not SLOWEST <= rate <= FASTEST:
        raise AudioError(f"{path} has {rate} samples a second, expected {SLOWEST} to {FASTEST}")
    if frames > LONGEST * rate or frames * channels > MOST_SAMPLES:
        hours = f"{frames / max(rate, 1) / 3600:.0f} hours"
        raise AudioError(f"{path} has {hours} of audio, the most that is read is {LONGEST // 3600}; split it")


def checked(samples: Any, name: str = "audio") -> Floats:
    """Return samples (T,) as float32.

    Raises `AudioError` if they are not floats of one dim, are empty or not finite, or exceed 100 in magnitude.
    """
    array = np.asarray(samples)
    if array.ndim != 1 or array.dtype.kind != "f":
        what = f"an array of shape {array.shape} and type {array.dtype}"
        raise AudioError(f"{name} must be samples in -1 to 1, floats of one dim, got {what}")
    if not array.size:
        raise AudioError(f"{name} holds no samples; give at least one")
    with np.errstate(over="ignore"):  # infinity in float32 is refused below
        found: Floats = array.astype(np.float32, copy=False)
    if not np.isfinite(found).all():
        raise AudioError(f"{name} holds NaN or infinity in float32, which are no samples")
    if (largest := max(float(found.max()), -float(found.min()))) > LOUDEST:
        raise AudioError(f"{name} must lie in -1 to 1, got {largest:g}: divide 16-bit samples by 32768")
    return found


def resampled(samples: Floats, rate: int, features: Features) -> Floats:
    """Return the samples at the model's sampling rate."""
    if rate == features.sampling_rate:
        return samples
    with needed(INSTALL, f"audio of {rate} samples a second, for a model of {features.sampling_rate},"):
        import soxr
    if rate < 1:
        raise AudioError(f"audio can't have {quoted(rate)} samples a second")
    try:
        found = np.asarray(soxr.resample(samples, rate, features.sampling_rate), np.float32)
    except (RuntimeError, ValueError) as error:
        rates = f"from {rate} to {features.sampling_rate} samples a second"
        raise AudioError(f"audio can't be brought {rates}: {brief(error)}") from error
    return checked(found)
