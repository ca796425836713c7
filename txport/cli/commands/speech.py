"""`txport run` for models that read audio: prints transcripts of files, optionally with timestamps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from txport.cli import bulk, textio
from txport.cli.options import F, is_given
from txport.errors import TextError, UnsupportedError
from txport.models.facts import Facts

FLAGS = {
    "language": "--language",
    "task": "--task",
    "timestamps": "--timestamps",
    "fallback": "--fallback",
    "no_speech_threshold": "--no-speech-threshold",
}
NO_USE = {  # options for text that do not apply to audio
    "continuous": "--continuous",
    "truncate": "--truncate",
    "explained": "--explain",
    "batch_tokens": "--batch-tokens",
    "workers": "--workers",
    "unknown": "--unknown",
    "prefixes": "--prefixes",
    "alignment": "--alignment",
    "nbest": "--nbest",
    "forced_bos_token": "--forced-bos-token",
    "as_stream": "--stream",
    "special_tokens": "--special-tokens",
    "special": "--parse-special",
    **bulk.FLAGS,
}
OF_TEXT = ("continuous", "batch_tokens", "unknown", "special", "prefixes", "batch_size")


def speech_options(command: F) -> F:
    """Add the options for audio."""
    tasks = click.Choice(["transcribe", "translate"])
    for option in (
        click.option(
            "--no-speech-threshold",
            type=click.FloatRange(0, 1),
            help="Pass over a window whose text is improbable if silence is more probable than this.",
        ),
        click.option("--fallback", is_flag=True, help="Retry with sampling if a text is repetitive or improbable."),
        click.option("--timestamps", is_flag=True, help="Print start and end of each segment, in seconds."),
        click.option("--task", type=tasks, help="Transcribe, or translate to English."),
        click.option("--language", metavar="CODE", help="The language.  [default: detected by the model]"),
    ):
        command = option(command)
    return command


def is_for(facts: Facts) -> bool:
    """Whether a model reads audio."""
    return facts.vocabulary is not facts.reads


def require_fit(facts: Facts) -> None:
    """Raise `UnsupportedError` for options that do not apply to the model."""
    wrong, what = (NO_USE, "text") if is_for(facts) else (FLAGS, "audio")
    if flags := [flag for name, flag in wrong.items() if is_given(name)]:
        this = "this model reads audio" if is_for(facts) else "this model reads text"
        raise UnsupportedError(f"{', '.join(flags)} needs a model that reads {what}; {this}")


def require_text(text: str) -> str:
    """Return the text; raise `TextError` if it is the name of an audio file."""
    from txport.audio.reading import is_audio

    if is_audio(text):
        raise TextError(f"{text} is an audio file, and this model reads text; give it to a model that reads audio")
    return text


def run(
    model: Any,
    files: Iterable[str],
    total: int | None,
    out: textio.Rows,
    as_json: bool,
    heard: dict[str, Any],
    options: dict[str, object],
) -> None:
    """Write the transcript of each file; `heard`: the values of `FLAGS`, `options`: options of search."""
    how: dict[str, object] = {name: value for name, value in options.items() if name not in OF_TEXT}
    if is_given("batch_size"):
        how["batch_size"] = options["batch_size"]
    found = model.transcribe_iter(files, **heard, **how)
    for transcript in textio.with_progress(found, total, out.stream):
        out.put(_rows(transcript, as_json, heard["timestamps"]))


def _rows(transcript: Any, as_json: bool, timestamps: bool) -> Iterator[tuple[str, ...]]:
    if as_json:
        yield (textio.to_json(transcript.to_dict()),)
    elif timestamps:
        yield from ((f"{each.start:.2f}", f"{each.end:.2f}", each.text.strip()) for each in transcript.segments)
    else:
        yield (transcript.text.strip(),)
