"""Prompts of transcription targets, and splitting of targets into segments by their timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from txport.models.audio import TASKS, Features, Speech


class Part(NamedTuple):
    """Tokens of a segment, and its start and end in seconds from the start of the window."""

    tokens: list[int]
    start: float
    end: float


def prompt(speech: Speech, language: str | None, task: str, *, times: bool) -> list[int]:
    """Return the tokens at the start of a target, after its start token."""
    found = list(speech.initial)
    if speech.languages:
        assert language is not None
        found = [speech.language_ids[speech.languages.index(language)]]
        if (token := getattr(speech, task)) is not None:
            found.append(token)
    if not times and speech.no_timestamps is not None:
        found.append(speech.no_timestamps)
    return found


def longest_prompt(speech: Speech) -> int:
    """Return the maximum number of tokens of `prompt`."""
    language = speech.languages[0] if speech.languages else None
    return max(len(prompt(speech, language, task, times=times)) for task in TASKS for times in (False, True))


def split(tokens: Sequence[int], first: int | None, frames: int, reads: Features) -> tuple[list[Part], int | None]:
    """Return the segments of a window with `frames` real frames, and the position where the next window starts.

    `first` is the token of the time 0; the position is counted in encoder positions, None: after this window. Two
    timestamps in a row end a segment and start the next. Tokens after the last such pair have no end in this window,
    and belong to the next window, unless the window ends with a single timestamp: then no speech follows it. Without
    such a pair, the whole window is one segment.
    """
    second = reads.frames_a_place * reads.hop_length / reads.sampling_rate  # per encoder position
    times = [first is not None and token >= first for token in tokens]
    cuts = [at + 1 for at in range(len(tokens) - 1) if times[at] and times[at + 1]]
    if not cuts:
        last = next((token for token, is_time in zip(tokens[::-1], times[::-1], strict=True) if is_time), first)
        places = frames // reads.frames_a_place if last == first or first is None or last is None else last - first
        return [Part(list(tokens), 0.0, places * second)], None
    assert first is not None
    ends_single = times[-2:] == [False, True]
    ends = [*cuts, len(tokens)] if ends_single else [*cuts[:-1], cuts[-1] + 1]  # the last segment keeps both timestamps
    parts = []
    for start, end in zip([0, *ends], ends, strict=False):
        closing = end - 1 if end != ends[-1] or ends_single else end - 2
        begin = max(tokens[start] - first, 0)  # a window may begin with a token that is no time
        parts.append(Part(list(tokens[start:end]), begin * second, (tokens[closing] - first) * second))
    return parts, None if ends_single else int(tokens[ends[-1] - 2]) - first


# ------------------------------------------------------------------------------------------------ names of languages

# A model has tokens for codes; users may give either.
NAMES = (
    "af afrikaans, am amharic, ar arabic, as assamese, az azerbaijani, ba bashkir, be belarusian, bg bulgarian, "
    "bn bengali, bo tibetan, br breton, bs bosnian, ca catalan, cs czech, cy welsh, da danish, de german, el greek, "
    "en english, es spanish, et estonian, eu basque, fa persian, fi finnish, fo faroese, fr french, gl galician, "
    "gu gujarati, ha hausa, haw hawaiian, he hebrew, hi hindi, hr croatian, ht haitian creole, hu hungarian, "
    "hy armenian, id indonesian, is icelandic, it italian, ja japanese, jw javanese, ka georgian, kk kazakh, "
    "km khmer, kn kannada, ko korean, la latin, lb luxembourgish, ln lingala, lo lao, lt lithuanian, lv latvian, "
    "mg malagasy, mi maori, mk macedonian, ml malayalam, mn mongolian, mr marathi, ms malay, mt maltese, my myanmar, "
    "ne nepali, nl dutch, nn nynorsk, no norwegian, oc occitan, pa punjabi, pl polish, ps pashto, pt portuguese, "
    "ro romanian, ru russian, sa sanskrit, sd sindhi, si sinhala, sk slovak, sl slovenian, sn shona, so somali, "
    "sq albanian, sr serbian, su sundanese, sv swedish, sw swahili, ta tamil, te telugu, tg tajik, th thai, "
    "tk turkmen, tl tagalog, tr turkish, tt tatar, uk ukrainian, ur urdu, uz uzbek, vi vietnamese, yi yiddish, "
    "yo yoruba, yue cantonese, zh chinese"
)
CODES = {name: code for code, _, name in (each.partition(" ") for each in NAMES.split(", "))}


def code_of(language: str) -> str:
    """Return `de` for `de`, `German` or the token `<|de|>`; an unknown name is returned in lower case."""
    word = language.strip().lower().removeprefix("<|").removesuffix("|>")
    return CODES.get(word, word)
