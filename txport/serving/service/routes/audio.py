"""`/v1/audio/transcriptions` and `/v1/audio/translations`: speech to text, as OpenAI's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from txport.api.transcription import Transcript
from txport.serving.service.bodies import FORM
from txport.serving.service.calls import Call, Endpoint, Raw, Result, require
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.fields import TRANSCRIPTION
from txport.serving.service.models import Served

TIMES = "timestamp_granularities[]"


async def transcriptions(call: Call, served: Served) -> Result:
    """Answer with the text in its own language."""
    return await _answer(call, served, "transcribe", is_needed=False)


async def translations(call: Call, served: Served) -> Result:
    """Answer with the text in English."""
    return await _answer(call, served, "translate", is_needed=True)


async def _answer(call: Call, served: Served, task: str, *, is_needed: bool) -> Result:
    """Answer; a model of one task is asked for it by name only if it `is_needed`, and refuses another."""
    facts = served.model.facts
    require(served, "transcribe")
    shape = call.text("response_format", "json")
    is_timed = TIMES in call.values
    if is_timed and shape != "verbose_json":
        raise InvalidRequestError("times of segments need response_format=verbose_json", param=TIMES)
    has_tasks = facts.speech is not None and bool(facts.speech.languages)
    options = call.given("language", "fallback", "no_speech_threshold", "beams") | {"timestamps": is_timed}
    if has_tasks or is_needed:
        options["task"] = task
    assert served.recordings is not None
    recording = served.recordings.submit(call.binary, options)
    try:
        (found,) = await asyncio.wrap_future(recording.future)
    finally:
        recording.cancel()  # if its caller goes away
    call.finish(served.name, 0, len(found.tokens))
    if shape == "text":
        return Raw((found.text + "\n").encode(), "text/plain; charset=utf-8")
    return {"text": found.text, **(_verbose(found, task) if shape == "verbose_json" else {})}


def _verbose(found: Transcript, task: str) -> Mapping[str, object]:
    segments = [
        {"id": at, "start": each.start, "end": each.end, "text": each.text, "tokens": each.tokens}
        for at, each in enumerate(found.segments)
    ]
    duration = found.segments[-1].end if found.segments else 0.0
    return {"task": task, "language": found.language, "duration": duration, "segments": segments}


TEXT = {"type": "object", "required": ["text"]}
ENDPOINTS = (
    Endpoint("/v1/audio/transcriptions", "Text of speech, as OpenAI's", transcriptions, TRANSCRIPTION, TEXT, FORM),
    Endpoint("/v1/audio/translations", "English text of speech, as OpenAI's", translations, TRANSCRIPTION, TEXT, FORM),
)
