"""Facts about a model with speech input: its features, its special tokens, and the settings that other tools read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txport.errors import quoted
from txport.models.config import LONGEST
from txport.models.json_values import require_keys, several, text, token_id, whole_number

TASKS = ("transcribe", "translate")
MOST_BINS = 1 << 12
MOST_FRAMES = 1 << 16
MOST_RATE = 1 << 20
MOST_NUMBERS = 1 << 24  # per source
MOST_LANGUAGES = 1 << 10
MOST_TOKENS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Features:
    """Log-mel spectrograms (size, frames), from which an encoder makes `longest` positions.

    All sources have the same length; shorter audio is padded with silence. A frame has `n_fft` samples, and the next
    one begins `hop_length` samples later.
    """

    size: int
    frames: int
    longest: int
    sampling_rate: int
    hop_length: int
    n_fft: int

    @property
    def samples(self) -> int:
        """The number of audio samples of the frames."""
        return self.frames * self.hop_length

    @property
    def seconds(self) -> float:
        """The duration of the frames in seconds."""
        return self.samples / self.sampling_rate

    @property
    def frames_a_place(self) -> int:
        """The number of frames per encoder position."""
        return self.frames // self.longest


@dataclass(frozen=True, kw_only=True)
class Speech:
    """The special tokens of targets, and the prompt of a target.

    The start token is followed by the token of the language, if the model has several (`languages` are their codes),
    the token of the task, and `no_timestamps` if timestamps are not wanted. Tokens after that one in the vocabulary are
    timestamps. `language` and `task` are the checkpoint's defaults; without a language, the model detects it. `initial`
    is the prompt of a model without language tokens. `previous` precedes the previous text. The first timestamp of a
    target is at most `latest_first` steps after its start.
    """

    languages: tuple[str, ...] = ()
    language_ids: tuple[int, ...] = ()
    transcribe: int | None = None
    translate: int | None = None
    no_timestamps: int | None = None
    previous: int | None = None
    language: str | None = None
    task: str | None = None
    initial: tuple[int, ...] = ()
    latest_first: int | None = None

    @property
    def first_timestamp(self) -> int | None:
        """The token of the time 0; None for a model without timestamps."""
        return None if self.no_timestamps is None else self.no_timestamps + 1

    @property
    def no_speech(self) -> int | None:
        """The token of silence, the one before `no_timestamps` in every vocabulary of Whisper; None without it."""
        return None if not self.no_timestamps else self.no_timestamps - 1

    @property
    def special(self) -> tuple[int, ...]:
        """The special tokens, without timestamps."""
        ones = (self.transcribe, self.translate, self.no_timestamps, self.previous)
        return (*self.language_ids, *(each for each in ones if each is not None))

    def problems(self, size: int) -> Iterator[str]:
        """Yield inconsistencies, and the first token that is not in a vocabulary of `size`."""
        if len(self.languages) != len(self.language_ids):
            yield f"there are {len(self.languages)} languages, and tokens of {len(self.language_ids)}"
        if len(set(self.languages)) != len(self.languages):
            yield "languages have one name twice"
        if len(set(self.language_ids)) != len(self.language_ids):
            yield "two languages have one token"
        if self.language is not None and self.language not in self.languages:
            yield f"language must be one of the languages, got {quoted(self.language)}"
        if self.task is not None and (self.task not in TASKS or getattr(self, self.task) is None):
            yield f"task must be transcribe or translate, and have a token, got {quoted(self.task)}"
        if self.first_timestamp is not None and self.first_timestamp >= size:
            yield f"no token of a time comes after no_timestamps {self.no_timestamps} in a vocabulary of {size}"
        for token in (*self.special, *self.initial):
            if not 0 <= token < size:
                yield f"tokens of speech must lie in the vocabulary of {size}, got {token}"
                return


def features(values: Any) -> Features:
    """Return the features of JSON values; raise `KeyError`, `TypeError` or `ValueError` for invalid values."""
    require_keys("source", values, Features)
    most = {"size": MOST_BINS, "frames": MOST_FRAMES, "longest": LONGEST}
    numbers = {name: whole_number(f"source.{name}", each, 1, most.get(name, MOST_RATE))
               for name, each in values.items()}  # fmt: skip
    found = Features(**numbers)
    for problem in feature_problems(found):
        raise ValueError(problem)
    return found


def feature_problems(given: Features) -> Iterator[str]:
    """Yield inconsistencies."""
    if given.size * given.frames > MOST_NUMBERS:
        yield f"{given.frames} frames of {given.size} numbers are more than {MOST_NUMBERS}"
    if given.frames % given.longest:
        yield f"{given.frames} frames are no whole number for each of {given.longest} places"
    if given.hop_length > given.n_fft:
        yield f"a hop of {given.hop_length} samples leaves out some between frames of {given.n_fft}"
    if given.samples <= given.n_fft // 2:
        yield f"{given.frames} frames of {given.hop_length} samples are shorter than half a window of {given.n_fft}"


def speech(values: Any, size: int) -> Speech:
    """Return the special tokens of JSON values, for a vocabulary of `size`.

    Raises `KeyError`, `TypeError` or `ValueError` for invalid values.
    """
    require_keys("speech", values, Speech)
    ones = ("transcribe", "translate", "no_timestamps", "previous")
    ids: dict[str, Any] = {name: None if values[name] is None else token_id(name, values[name], size) for name in ones}
    lists: dict[str, Any] = {
        name: tuple(token_id(name, each, size) for each in several(name, values[name], MOST_TOKENS))
        for name in ("language_ids", "initial")
    }
    latest = values["latest_first"]
    found = Speech(
        languages=tuple(text("a language", each) for each in several("languages", values["languages"], MOST_LANGUAGES)),
        language=None if values["language"] is None else text("language", values["language"]),
        task=None if values["task"] is None else text("task", values["task"]),
        latest_first=None if latest is None else whole_number("latest_first", latest, 0),
        **ids,
        **lists,
    )
    for problem in found.problems(size):
        raise ValueError(problem)
    return found


def preprocessor_config(features: Features) -> dict[str, Any]:
    """Return the settings of a transformers feature extractor with the same features."""
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": features.size,
        "sampling_rate": features.sampling_rate,
        "hop_length": features.hop_length,
        "n_fft": features.n_fft,
        "chunk_length": features.samples // features.sampling_rate,
        "n_samples": features.samples,
        "nb_max_frames": features.frames,
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": False,
    }


def speech_config(speech: Speech) -> dict[str, object]:
    """Return the languages, tasks and timestamp settings for `generation_config.json`."""
    found: dict[str, object] = {}
    if speech.languages:
        ids = zip(speech.languages, speech.language_ids, strict=True)
        found |= {"is_multilingual": True, "lang_to_id": {f"<|{code}|>": id_ for code, id_ in ids}}
    tasks = {task: id_ for task in TASKS if (id_ := getattr(speech, task)) is not None}
    ones = {
        "task_to_id": tasks or None,
        "no_timestamps_token_id": speech.no_timestamps,
        "prev_sot_token_id": speech.previous,
        "max_initial_timestamp_index": speech.latest_first,
        "language": speech.language,
        "task": speech.task,
    }
    found |= {name: value for name, value in ones.items() if value is not None}
    if speech.initial:
        found["forced_decoder_ids"] = [[place, token] for place, token in enumerate(speech.initial, 1)]
    return found
