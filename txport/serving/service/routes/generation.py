"""`/v1/completions` and `/v1/chat/completions` of causal models, and `/translate` of seq2seq models."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import cast

from txport.api.generated import Generated, Hypothesis
from txport.serving.engine import Handle
from txport.serving.service.calls import Call, Endpoint, Events, Result, require, require_fit
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.fields import CHAT, COMPLETIONS, TRANSLATE, search_options
from txport.serving.service.models import Served
from txport.serving.service.schema import options_of

LONG = 256  # characters of one text; more, or several inputs, are read in a thread, so that other requests go on
REASONS = {"end": "stop", "stop": "stop", "length": "length", None: "stop"}
CHATTING = {"chat_template_kwargs": "template_options", "continue_final_message": "continue_final_message"}
QUEUING = ("priority", "deadline")
READING = ("unknown", "special")
NOTHING = Hypothesis("", 0.0, [], [])  # the output of a text of which `unknown` leaves nothing
LANGUAGES = ("prefix", "source_language", "target_language")


async def completions(call: Call, served: Served) -> Result:
    """Answer as OpenAI's completions."""
    require(served, "continue")
    options = search_options(call.values, COMPLETIONS) | call.given(*QUEUING, *READING)
    prompts = [{"ids": each} if isinstance(each, list) else {"text": each} for each in _prompts(call.values["prompt"])]
    return await _answer(call, served, prompts, options, Shape("cmpl", "text_completion", "text_completion"))


async def chat(call: Call, served: Served) -> Result:
    """Answer as OpenAI's chat completions."""
    require_fit(served, served.model.is_chat, "a model with a chat template")
    options = search_options(call.values, CHAT) | call.given(*QUEUING)
    options |= {own: call.values[name] for name, own in CHATTING.items() if name in call.values}
    if "top_logprobs" in call.values and not call.values.get("logprobs"):
        raise InvalidRequestError("top_logprobs needs logprobs", param="top_logprobs")
    prompts: list[Mapping[str, object]] = [{"messages": call.values["messages"]}]
    shape = Shape("chatcmpl", "chat.completion", "chat.completion.chunk", is_chat=True)
    return await _answer(call, served, prompts, options, shape)


async def translate(call: Call, served: Served) -> Result:
    """Answer with all hypotheses of each text: scores, tokens with log-probs, and the alignment if it is asked for."""
    require(served, "translate")
    options = options_of(call.values, TRANSLATE.fields) | call.given(*QUEUING, *READING, *LANGUAGES)
    async with submitted(served, [{"text": each} for each in call.texts("text")], options) as handles:
        found = [await each for each in handles]
        usage = _usage(call, served, handles, found)
    return {"model": served.name, "translations": [each.to_dict() for each in found], "usage": usage}


def _prompts(prompt: object) -> list[str] | list[list[int]]:
    """Return the prompts of a field that has one or several, as text or as token ids."""
    if isinstance(prompt, str):
        return [prompt]
    items = cast("list[object]", prompt)
    return [cast("list[int]", items)] if isinstance(items[0], int) else cast("list[str]", items)


@contextlib.asynccontextmanager
async def submitted(
    served: Served, inputs: Sequence[Mapping[str, object]], options: Mapping[str, object]
) -> AsyncIterator[list[Handle]]:
    """Submit inputs with options, and cancel those that run at the end: after an error, or if the caller goes away.

    Raises `InvalidRequestError` for more inputs than the engine ever has room for.
    """
    engine = served.engine
    assert engine is not None
    if len(inputs) > (most := served.sizes.slots + served.sizes.queue):
        raise InvalidRequestError(f"a request may have {most} inputs here, got {len(inputs)}; send several requests")
    handles: list[Handle] = []
    is_over = threading.Event()

    def submit() -> None:
        for each in inputs:
            if is_over.is_set():
                break
            handles.append(engine.submit(**each, **options))  # type: ignore[arg-type]

    def cancel() -> None:
        for handle in handles:
            handle.cancel()

    try:
        if _is_short(inputs):
            submit()
        else:
            submitting = asyncio.ensure_future(asyncio.to_thread(submit))
            submitting.add_done_callback(lambda _: cancel() if is_over.is_set() else None)  # the thread was left alone
            await asyncio.shield(submitting)
        yield handles
    finally:
        is_over.set()
        cancel()


def _is_short(inputs: Sequence[Mapping[str, object]]) -> bool:
    """Return whether inputs are read in no time: one short text, or a few token ids. A template formats a chat."""
    values = [value for each in inputs for name, value in each.items() if name != "messages"]
    return len(values) == 1 and isinstance(values[0], str | list) and len(values[0]) <= LONG


@dataclass(frozen=True)
class Shape:
    """How an output is told: as OpenAI's completions, or as its chats."""

    prefix: str
    whole: str
    chunk: str
    is_chat: bool = False

    def choice(self, index: int, found: Hypothesis, tokens: Sequence[str] | None) -> dict[str, object]:
        """Return one output."""
        told: dict[str, object] = {"index": index, "finish_reason": REASONS[found.finish]}
        told["logprobs"] = None if tokens is None else self._log_probs(tokens, found.token_scores)
        if self.is_chat:
            return told | {"message": {"role": "assistant", "content": found.output, "refusal": None}}
        return told | {"text": found.output}

    def _log_probs(self, tokens: Sequence[str], scores: Sequence[float]) -> dict[str, object]:
        if not self.is_chat:
            return {"tokens": list(tokens), "token_logprobs": list(scores)}
        pairs = zip(tokens, scores, strict=True)
        return {"content": [{"token": token, "logprob": score, "top_logprobs": []} for token, score in pairs]}

    def part(self, index: int, text: str | None, reason: str | None = None) -> dict[str, object]:
        """Return a part of one output; None is an empty first one."""
        told: dict[str, object] = {"index": index, "finish_reason": reason, "logprobs": None}
        if not self.is_chat:
            return told | {"text": text or ""}
        content = {"content": text} if text else {}
        return told | {"delta": {"role": "assistant", "content": ""} if text is None else content}


async def _answer(
    call: Call,
    served: Served,
    inputs: Sequence[Mapping[str, object]],
    options: Mapping[str, object],
    shape: Shape,
) -> Result:
    about = {"id": f"{shape.prefix}-{call.id}", "created": int(time.time()), "model": served.name}
    streaming = call.values.get("stream_options", {})
    if not isinstance(streaming, Mapping) or not {"include_usage"} >= streaming.keys():
        raise InvalidRequestError("stream_options has include_usage alone", param="stream_options")
    if call.values.get("stream"):
        return Events(_events(call, served, inputs, options, shape, about))
    if streaming:
        raise InvalidRequestError("stream_options needs stream", param="stream_options")
    async with submitted(served, inputs, options) as handles:
        found = [await each for each in handles]
        usage = _usage(call, served, handles, found)
    hypotheses = [each for result in found for each in result.hypotheses or [NOTHING]]
    is_scored = "logprobs" in call.values and call.values["logprobs"] is not False
    names = [served.model.tokenizer.tokens(each.tokens) if is_scored else None for each in hypotheses]
    choices = [shape.choice(at, each, tokens) for at, (each, tokens) in enumerate(zip(hypotheses, names, strict=True))]
    return {**about, "object": shape.whole, "choices": choices, "usage": usage}


def _usage(call: Call, served: Served, handles: Sequence[Handle], found: Sequence[Generated]) -> dict[str, object]:
    """Count the tokens of a request that has ended, and return them."""
    prompt = sum(each.source_tokens for each in handles)
    hypotheses = [each for result in found for each in result.hypotheses]
    generated = sum(len(each.tokens) for each in hypotheses)
    for times in (each.times for each in handles):
        if times.first_token is not None:
            call.metrics.first.labels(served.name).observe(times.first_token - times.submitted)
    call.finish(served.name, prompt, generated, [REASONS[each.finish] for each in hypotheses])
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


async def _events(
    call: Call,
    served: Served,
    inputs: Sequence[Mapping[str, object]],
    options: Mapping[str, object],
    shape: Shape,
    about: Mapping[str, object],
) -> AsyncIterator[Mapping[str, object]]:
    """Yield the parts of all outputs as they grow, then why each ended, and the usage if it is asked for."""
    if "logprobs" in call.values and call.values["logprobs"] is not False:
        raise InvalidRequestError("logprobs can't be streamed; leave stream out", param="logprobs")
    chunk = {**about, "object": shape.chunk}
    async with submitted(served, inputs, options) as handles:
        streams = [_grown(aiter(each)) for each in handles]  # raises for outputs that can't be streamed
        if shape.is_chat:
            yield {**chunk, "choices": [shape.part(0, None)]}
        async for at, text in _merged(streams):
            if text:
                yield {**chunk, "choices": [shape.part(at, text)]}
            else:
                reason = REASONS[(await handles[at]).finish]
                yield {**chunk, "choices": [shape.part(at, "", reason)]}
        usage = _usage(call, served, handles, [await each for each in handles])
    if cast("Mapping[str, object]", call.values.get("stream_options", {})).get("include_usage"):
        yield {**chunk, "choices": [], "usage": usage}


async def _grown(outputs: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield what is added to an output that grows, and "" at its end.

    What was sent can't be taken back: where a tokenizer spells the end of it anew, that follows.
    """
    shown = ""
    async for text in outputs:
        if added := text[_common(shown, text) :]:
            yield added
        shown = text
    yield ""


def _common(one: str, other: str) -> int:
    """Return the number of characters that two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    return next(at for at, pair in enumerate(zip_longest(one, other)) if pair[0] != pair[1])


async def _merged(streams: Sequence[AsyncIterator[str]]) -> AsyncIterator[tuple[int, str]]:
    """Yield the items of several streams with the number of each, as they come."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    queue: asyncio.Queue[tuple[int, str | None]] = asyncio.Queue()  # None: a stream has ended

    async def pump(at: int, stream: AsyncIterator[str]) -> None:
        try:
            async for item in stream:
                queue.put_nowait((at, item))
        finally:
            queue.put_nowait((at, None))

    tasks = [asyncio.ensure_future(pump(at, stream)) for at, stream in enumerate(streams)]
    try:
        left = len(tasks)
        while left:
            at, grown = await queue.get()
            if grown is None:
                left -= 1
                await tasks[at]
            else:
                yield at, grown
    finally:
        for task in tasks:
            task.cancel()


CHOICES = {"type": "object", "required": ["id", "object", "created", "model", "choices"]}
TRANSLATIONS = {"type": "object", "required": ["model", "translations", "usage"]}
ENDPOINTS = (
    Endpoint("/v1/completions", "Continue a prompt, as OpenAI's", completions, COMPLETIONS, CHOICES),
    Endpoint("/v1/chat/completions", "Answer a chat, as OpenAI's", chat, CHAT, CHOICES),
    Endpoint("/translate", "Translate texts with a seq2seq model", translate, TRANSLATE, TRANSLATIONS),
)
