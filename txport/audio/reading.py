"""Reading audio files (WAV, FLAC and other formats of libsndfile) as mono samples at the model's sampling rate."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txport.audio import mp3
from txport.errors import AudioError, TxportError, brief
from txport.models.audio import Features
from txport.system import memory
from txport.system.packages import needed
from txport.system.terminal import native_stderr_held

Floats = NDArray[np.float32]

INSTALL = "txport[audio]"
BLOCK = 1 << 18  # samples, over all channels, that are decoded together
LONGEST = 24 * 3600  # seconds of one file
MOST_SAMPLES = 1 << 31  # of a file, over all channels
SLOWEST, FASTEST = 1_000, 1_000_000  # samples per second; at a lower rate, a small file would become days of audio
UNKNOWN = (1 << 63) - 1  # samples that libsndfile counts where a header tells no number
LOUDEST = 100.0  # loud floats may exceed 1 somewhat; integers read as floats exceed it by far
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff", ".aif", ".w64", ".opus")


def is_audio(name: str) -> bool:
    """Return whether a text is the name of an existing audio file."""
    try:
        return name.lower().endswith(SUFFIXES) and Path(name).is_file()
    except (OSError, ValueError):
        return False


def read_audio(source: Path | bytes, features: Features) -> Iterator[Floats]:
    """Yield the samples of a file in blocks (T,): the mean of its channels, at the model's sampling rate.

    The file is given by its path, or by its content.

    Raises `AudioError` for a file that is not audio, is empty, is too long, has NaN or infinity, or does not tell its
    length; `OutOfMemoryError` if its features would not fit; `UnavailableError` if `soundfile`, or `soxr` for another
    rate, is not installed.
    """
    with needed(INSTALL, "an audio file"):
        import soundfile
    if isinstance(source, Path) and not source.is_file():
        raise AudioError(f"there is no file {source}; this model reads audio files, such as talk.wav")
    name = "audio" if isinstance(source, bytes) else str(source)
    with contextlib.ExitStack() as stack:
        with _reading(name):
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as data:
                longest = mp3.seconds(data)
            file = stack.enter_context(soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source))
            rate = int(file.samplerate)
            _require_length(name, int(file.frames), longest - int(file.frames) / rate)
            _require_size(name, rate, int(file.frames), int(file.channels), features)
        yield from resampled(_blocks(file, name), rate, features)


def _blocks(file: Any, name: str) -> Iterator[Floats]:
    """Yield the mean of the channels of an open file, in blocks."""
    samples = [None]
    while len(samples):
        with _reading(name):
            samples = file.read(max(1, BLOCK // file.channels), dtype="float32", always_2d=True)
        with np.errstate(invalid="ignore", over="ignore"):  # infinity is refused later
            mean = samples.mean(axis=1, dtype=np.float32)
        if len(samples) or not file.tell():
            yield checked(mean, name)


@contextlib.contextmanager
def _reading(name: str) -> Iterator[None]:
    """Raise `AudioError` for an error of libsndfile, and keep what it prints."""
    try:
        with native_stderr_held():
            yield
    except TxportError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError) as error:  # libsndfile raises RuntimeError
        raise AudioError(f"{name} can't be read as audio: {brief(error)}") from error


def _require_length(name: str, frames: int, more: float) -> None:
    """Refuse audio of which only a part would be read: `more` is by how many seconds an MP3 is longer than it says."""
    if frames == UNKNOWN:
        raise AudioError(f"the header of {name} does not tell how long it is; convert it, such as to WAV")
    if more > 1:
        raise AudioError(f"{name} is {more:.0f} s longer than its header says; convert it, such as to WAV")


def _require_size(name: str, rate: int, frames: int, channels: int, features: Features) -> None:
    if not SLOWEST <= rate <= FASTEST:
        raise AudioError(f"{name} has {rate} samples a second, expected {SLOWEST} to {FASTEST}")
    if frames > LONGEST * rate or frames * channels > MOST_SAMPLES:
        hours = f"{frames / max(rate, 1) / 3600:.0f} hours"
        raise AudioError(f"{name} has {hours} of audio, the most that is read is {LONGEST // 3600}; split it")
    size = 4 * features.size * frames * features.sampling_rate // (rate * features.hop_length)
    memory.require(size, f"{name}, with {frames / rate / 3600:.1f} hours of audio,", "split it")


def checked(samples: object, name: str = "audio") -> Floats:
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


def resampled(blocks: Iterable[Floats], rate: int, features: Features) -> Iterator[Floats]:
    """Yield blocks of samples at the model's sampling rate."""
    if rate == features.sampling_rate:
        yield from blocks
        return
    with needed(INSTALL, f"audio of {rate} samples a second, for a model of {features.sampling_rate},"):
        import soxr
    try:
        stream = soxr.ResampleStream(rate, features.sampling_rate, 1, dtype="float32")
        for block in blocks:
            yield from _filled(stream.resample_chunk(block))
        yield from _filled(stream.resample_chunk(np.empty(0, np.float32), last=True))
    except (RuntimeError, ValueError) as error:
        if isinstance(error, TxportError):
            raise
        rates = f"from {rate} to {features.sampling_rate} samples a second"
        raise AudioError(f"audio can't be brought {rates}: {brief(error)}") from error


def _filled(block: Floats) -> Iterator[Floats]:
    """Yield a block unless it is empty, as the first ones of a stream are."""
    if len(block):
        yield checked(block)
