"""Speech to text: audio is split into windows, and each window is a source of a search; see `api.Model.transcribe`.

Audio longer than one window is transcribed with timestamps: the next window begins where the last complete segment of
this one ends (section 3.8 of Radford et al. 2022), as in transformers' `generate`. Shape comments: M mel bins, F frames
of a window, L frames of all audio.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from txport.audio.reading import checked, read_audio
from txport.audio.spectrogram import in_blocks, log_mel
from txport.audio.targets import code_of, prompt, split
from txport.errors import AudioError, UnsupportedError, quoted
from txport.models.audio import TASKS, Features, Speech
from txport.models.facts import Facts
from txport.runtimes.base import Floats, Ints, log_softmax
from txport.search.options import Found, Searching, SearchOptions
from txport.search.timestamps import TimestampRules
from txport.system.arrays import Array
from txport.system.numbers import number, switch
from txport.text.base import Tokenizer

Audio = str | PathLike[str] | bytes | Array  # a path, the content of a file, or samples
Requests = list[tuple[Floats, list[int]]]  # features (M, F), and the prefix of the target
# Section 4.5 of the paper: a window is decoded again, by sampling with rising temperature, if the compression ratio of
# its text is too high (repetition), or the mean log-probability of its tokens too low.
FALLBACK = (0.2, 0.4, 0.6, 0.8, 1.0)  # temperatures
MOST_COMPRESSED = 2.4
LEAST_LIKELY = -1.0
WINDOWS = 8  # decoded together by default
Find = Callable[[Requests, SearchOptions], list[list[Found]]]


class Transcribing(Searching, total=False):
    """The options of `Model.transcribe_iter`, for methods that pass them on."""

    language: str | None
    task: str | None
    timestamps: bool
    fallback: bool
    no_speech_threshold: float | None
    batch_size: int


@dataclass(frozen=True)
class Segment:
    """A transcript segment: start and end in seconds, text, and tokens, timestamp tokens included."""

    start: float
    end: float
    text: str
    tokens: list[int]


@dataclass(frozen=True)
class Transcript:
    """The transcript of one audio input, as a whole and in segments.

    `language` is its code, or None for a model of one language. Without timestamps, each window is one segment. If the
    model generates timestamps that were not requested, they are used, as in transformers' `generate`.
    """

    input: str
    text: str
    language: str | None
    segments: list[Segment]

    @property
    def tokens(self) -> list[int]:
        """The tokens of all segments."""
        return [token for each in self.segments for token in each.tokens]

    def to_dict(self) -> dict[str, object]:
        """Return JSON values."""
        return dataclasses.asdict(self)


@dataclass
class Track:
    """One audio input in progress: features (M, L), number of transcribed frames (`seek`), prefix of its targets."""

    name: str
    features: Floats
    times: bool
    language: str | None = None
    prompt: list[int] = field(default_factory=list)
    seek: int = 0
    segments: list[Segment] = field(default_factory=list)

    def window(self, reads: Features) -> Floats:
        """Return the next frames (M, F), padded with zeros at the end."""
        found = np.zeros((reads.size, reads.frames), np.float32)
        rest = self.features[:, self.seek : self.seek + reads.frames]
        found[:, : rest.shape[1]] = rest
        return found

    @property
    def left(self) -> int:
        """The number of frames that are not transcribed yet."""
        return int(self.features.shape[1]) - self.seek


class Told:
    """The options of a transcription: language, task, timestamps, fallback and the threshold of silence.

    Raises `UnsupportedError` for a model that does not read audio, and for values that the model does not support.
    """

    def __init__(
        self,
        facts: Facts,
        language: object,
        task: object,
        timestamps: object,
        fallback: object,
        no_speech_threshold: object = None,
    ) -> None:
        if not isinstance(facts.reads, Features):
            raise UnsupportedError("transcribe needs a model that reads audio; this model reads text: use generate")
        speech = facts.speech or Speech()
        self.language = _language(speech, language)
        self.task = _task(speech, task)
        self.timestamps = _timestamps(speech, switch("timestamps", timestamps))
        self.fallback = switch("fallback", fallback)
        self.no_speech_threshold = _threshold(speech, no_speech_threshold)


@dataclass(frozen=True)
class Transcriber:
    """Transcribe audio with one model; `find` searches one batch."""

    facts: Facts
    tokenizer: Tokenizer
    find: Find
    options: SearchOptions
    told: Told

    def __post_init__(self) -> None:
        require_one(self.options)

    @property
    def reads(self) -> Features:
        """The features that the model reads."""
        assert isinstance(self.facts.reads, Features)
        return self.facts.reads

    @property
    def speech(self) -> Speech:
        """The special tokens of a speech model."""
        return self.facts.speech or Speech()

    def run(self, audio: Audio | Iterable[Audio], batch_size: int) -> Iterator[Transcript]:
        """Yield the transcript of each input in order; `batch_size` inputs are decoded together."""
        waiting = iter(pieces(audio))
        while tracks := [self._track(each) for each in islice(waiting, batch_size)]:
            self._begin(tracks)
            running = tracks
            while running:
                self._turn(running)
                running = [track for track in running if track.left > 0]
            yield from map(self._transcript, tracks)

    def _track(self, audio: Audio) -> Track:
        if isinstance(audio, np.ndarray):
            name = "audio"
            blocks = in_blocks(checked(audio))
        else:
            if not isinstance(audio, str | PathLike | bytes):
                raise AudioError(f"audio must be a path or samples, got {quoted(audio)}")
            name = "audio" if isinstance(audio, bytes) else str(audio)
            blocks = read_audio(audio if isinstance(audio, bytes) else Path(audio), self.reads)
        features = log_mel(blocks, self.reads)
        is_long = features.shape[1] > self.reads.frames
        if is_long and self.speech.first_timestamp is None:
            seconds = features.shape[1] * self.reads.hop_length / self.reads.sampling_rate
            what = f"{seconds:.0f} seconds, a window has {self.reads.seconds:g}"
            raise AudioError(f"{name} has {what}, and this model tells no times to go on by: split it")
        return Track(name, features, self.told.timestamps or is_long)

    def _begin(self, tracks: Sequence[Track]) -> None:
        """Set the language and the prompt of each track.

        The defaults of language and task are the checkpoint's. Without any language, the model detects it.
        """
        told = self.told.language or self.speech.language
        task = self.told.task or self.speech.task
        unknown = list(tracks) if self.speech.languages and told is None else []
        for track, code in zip(unknown, self._detect(unknown), strict=True):
            track.language = code
        for track in tracks:
            track.language = told if track.language is None else track.language
            track.prompt = prompt(self.speech, track.language, task or TASKS[0], times=track.times)

    def _detect(self, tracks: Sequence[Track]) -> list[str]:
        """Return the language of each first window: the most probable language token after the start token."""
        if not tracks:
            return []
        languages = dict(zip(self.speech.language_ids, self.speech.languages, strict=True))
        options = SearchOptions(max_new_tokens=1, scores=False, logits_processor=Only(tuple(languages)))
        found = self.find([(track.window(self.reads), []) for track in tracks], options)
        return [languages[each[0].tokens[0]] for each in found]

    def _turn(self, tracks: Sequence[Track]) -> None:
        """Decode the next window of each track; tracks with equal prompt length and timestamp mode form one batch."""
        kinds: dict[tuple[int, bool], list[Track]] = {}
        for track in tracks:
            kinds.setdefault((len(track.prompt), track.times), []).append(track)
        for (size, times), alike in kinds.items():
            requests = [(track.window(self.reads), track.prompt) for track in alike]
            for track, best in zip(alike, self._search(requests, self._options(size, times), size), strict=True):
                self._write(track, None if best is None else best.tokens[size:])

    def _search(self, requests: Requests, options: SearchOptions, size: int) -> list[Found | None]:
        """Return the best target of each window; None: it holds no speech.

        With the fallback, repetitive or improbable targets are sampled again, but not those of silence.
        """
        if not self.told.fallback and self.told.no_speech_threshold is None:
            return [best for best, *_ in self.find(requests, options)]
        found = [best for best, *_ in self.find(requests, dataclasses.replace(options, scores=True))]
        silent = self._silent(requests, found, size, range(len(found)))
        for temperature in FALLBACK if self.told.fallback else ():
            weak = [at for at, one in enumerate(found) if at not in silent and self._is_weak(one, size)]
            if not weak:
                break
            again = self.find([requests[at] for at in weak], drawn(options, temperature))
            for at, (best, *_) in zip(weak, again, strict=True):
                found[at] = best
            silent |= self._silent(requests, found, size, weak)
        return [None if at in silent else one for at, one in enumerate(found)]

    def _silent(self, requests: Requests, found: Sequence[Found], size: int, windows: Iterable[int]) -> set[int]:
        """Return those of the windows that hold no speech: their targets are improbable, and silence is probable.

        As OpenAI's whisper, this compares the probability of the token of silence after the start token. Only windows
        with an improbable target are encoded again for it.
        """
        threshold = self.told.no_speech_threshold
        unlikely = [at for at in windows if _is_unlikely(found[at], size)]
        if threshold is None or not unlikely:
            return set()
        assert self.speech.no_speech is not None
        heard = Heard(self.speech.no_speech)
        options = SearchOptions(max_new_tokens=1, scores=False, logits_processor=heard)
        self.find([(requests[at][0], []) for at in unlikely], options)
        return {at for at, share in zip(unlikely, heard.shares, strict=True) if share > threshold}

    def _is_weak(self, found: Found, size: int) -> bool:
        """Return True if a target, after its prompt of `size` tokens, is repetitive or improbable."""
        content = self._text(found.tokens[size:]).encode()
        return _is_unlikely(found, size) or len(content) > MOST_COMPRESSED * len(zlib.compress(content))

    def _options(self, size: int, times: bool) -> SearchOptions:
        """Return the options of a search after a start token and a prompt of `size` tokens.

        Raises `UnsupportedError` if `max_length` leaves no room after the prompt.
        """
        longest = min(self.facts.writes.longest, self.options.max_length or self.facts.writes.longest)
        if (room := longest - 1 - size) < 1:
            raise UnsupportedError(f"max_length {longest} leaves no room behind the {size + 1} tokens of a prompt")
        asked = self.options.max_new_tokens
        most = room if asked is None else min(self.facts.writes.longest - 1 - size, asked)
        chosen = dataclasses.replace(self.options, max_new_tokens=most)
        first = self.speech.first_timestamp
        if not times or first is None:
            return chosen
        rules = TimestampRules(1 + size, first, self.facts.writes.end, self.speech.latest_first)
        return dataclasses.replace(chosen, logits_processor=rules)

    def _write(self, track: Track, tokens: Sequence[int] | None) -> None:
        """Add the segments of a window to a track, and move `seek` to the end of the last one; None: pass over it."""
        frames = min(track.left, self.reads.frames)
        reads = self.reads
        if tokens is None:
            track.seek += frames
            return
        text_ids = [token for token in tokens if token not in self.options.ends(self.facts)]
        parts, places = split(text_ids, self.speech.first_timestamp, frames, reads)
        offset = track.seek * reads.hop_length / reads.sampling_rate
        for part in parts:
            track.segments.append(Segment(offset + part.start, offset + part.end, self._text(part.tokens), part.tokens))
        moved = frames if places is None else places * reads.frames_a_place
        track.seek += moved if moved > 0 else frames  # without progress, the loop would not end

    def _text(self, tokens: Sequence[int]) -> str:
        """Decode tokens to text, without the special tokens of speech."""
        first = self.speech.first_timestamp
        special = self.speech.special
        return self.tokenizer.decode([id_ for id_ in tokens if id_ not in special and (first is None or id_ < first)])

    def _transcript(self, track: Track) -> Transcript:
        text = self._text([token for each in track.segments for token in each.tokens])
        return Transcript(track.name, text, track.language, track.segments)


@dataclass(frozen=True)
class Only:
    """A `logits_processor` that allows only these tokens."""

    tokens: tuple[int, ...]

    def __call__(self, scores: Floats, tokens: Ints) -> Floats:
        """Scores (R, V) -> scores (R, V), -inf for all other tokens."""
        kept = np.full_like(scores, -np.inf)
        kept[:, self.tokens] = scores[:, self.tokens]
        return kept


class Heard:
    """A `logits_processor` that changes nothing, and keeps the probability of one token in each row."""

    def __init__(self, token: int) -> None:
        self._token = token
        self.shares: list[float] = []

    def __call__(self, scores: Floats, tokens: Ints) -> Floats:
        """Scores (R, V) -> the same scores."""
        self.shares += np.exp(log_softmax(scores, scores[:, [self._token]]))[:, 0].tolist()
        return scores


def _is_unlikely(found: Found, size: int) -> bool:
    """Return True if the mean log-prob of a target, after its prompt of `size` tokens, is too low."""
    return bool(np.mean(found.token_scores[size:] or (0.0,)) < LEAST_LIKELY)


def drawn(options: SearchOptions, temperature: float) -> SearchOptions:
    """Return the options with sampling instead of beam search; the seed is fixed, so results are reproducible."""
    usual = SearchOptions()
    names = ("beams", "beam_groups", "diversity_penalty", "coverage_penalty", "early_stopping", "patience")
    greedy = {name: getattr(usual, name) for name in names}
    how: dict[str, Any] = {"do_sample": True, "temperature": temperature, "seed": options.seed or 0, "scores": True}
    return dataclasses.replace(options, **greedy, **how)


def require_one(options: SearchOptions) -> None:
    """Raise `UnsupportedError` for search options that transcription does not support."""
    if options.nbest > 1:
        raise UnsupportedError(f"audio is written down in one way, got nbest {options.nbest}")
    for name in ("alignment", "logits_processor", "forced_bos_token_id"):
        if getattr(options, name) is not None:
            raise UnsupportedError(
                f"{name} can't be given for audio, whose windows have prompts and rules of their own"
            )


def pieces(audio: Audio | Iterable[Audio]) -> Iterable[Audio]:
    """Return the inputs as an iterable; a path or an array is one input. Raises `AudioError` for other values."""
    if isinstance(audio, str | PathLike | bytes | np.ndarray):
        return [audio]
    try:
        return iter(audio)
    except TypeError:
        what = "a path, samples, or many of them"
        raise AudioError(f"audio must be {what}, got {quoted(audio)}") from None


def _language(speech: Speech, language: object) -> str | None:
    """Return the code of a language code or name; raise `UnsupportedError` for a language not in the model."""
    if language is None:
        return None
    if not speech.languages:
        raise UnsupportedError(f"this model knows one language, so that none can be chosen; got {quoted(language)}")
    code = code_of(language) if isinstance(language, str) else language
    if code not in speech.languages:
        known = ", ".join(speech.languages)
        raise UnsupportedError(f"language must be one of {known}; got {quoted(language)}")
    return str(code)


def _threshold(speech: Speech, threshold: object) -> float | None:
    """Return the threshold of silence; raise `UnsupportedError` if it is no probability, or the model has no token."""
    if threshold is None:
        return None
    found = number("no_speech_threshold", threshold)
    if not 0 <= found <= 1:
        raise UnsupportedError(f"no_speech_threshold must lie in 0 to 1, got {found}")
    if speech.no_speech is None:
        raise UnsupportedError("no_speech_threshold needs a model with the token <|nospeech|>")
    return float(found)


def _task(speech: Speech, task: object) -> str | None:
    """Return the task; raise `UnsupportedError` for a task that the model does not support."""
    if task is None:
        return None
    known = [each for each in TASKS if getattr(speech, each) is not None and speech.languages]
    if task not in known:
        what = f"one of {', '.join(known)}" if known else "left out: this model has only one"
        raise UnsupportedError(f"task must be {what}; got {quoted(task)}")
    return str(task)


def _timestamps(speech: Speech, timestamps: bool) -> bool:
    """Return the switch; raise `UnsupportedError` for timestamps of a model without timestamp tokens."""
    if timestamps and speech.first_timestamp is None:
        raise UnsupportedError("timestamps need a model that was trained to tell them; this one has no tokens of times")
    return timestamps
