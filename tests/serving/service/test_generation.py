"""Completions, chats and translations, read by OpenAI's public client, are bit for bit what a model generates."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

import txport
from tests.serving.service.served import PATIENCE, TEXTS, metric

PROMPT = "Hello there"
WAYS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # fields of the body, options of `generate`
    ({}, {}),
    ({"temperature": 0, "top_p": 0.5, "seed": 3}, {}),
    ({"temperature": 0.7, "seed": 3, "top_p": 0.9}, {"do_sample": True, "temperature": 0.7, "seed": 3, "top_p": 0.9}),
    ({"seed": 5, "n": 3}, {"do_sample": True, "seed": 5, "nbest": 3}),
    ({"seed": 5, "top_k": 4}, {"do_sample": True, "seed": 5, "top_k": 4}),
    ({"beams": 3, "n": 2}, {"beams": 3, "nbest": 2}),
    ({"logit_bias": {"7": -50.0, "9": 2}}, {"sequence_bias": [((7,), -50.0), ((9,), 2.0)]}),
    ({"stop": ["e", "a"]}, {"stop": ["e", "a"]}),
    ({"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}),
]
REASONS = {"end": "stop", "stop": "stop", "length": "length"}


@pytest.mark.parametrize(("fields", "options"), WAYS)
def test_a_completion_is_what_the_model_generates(
    fields: dict[str, Any], options: dict[str, Any], ai: openai.OpenAI, models: dict[str, txport.Model]
) -> None:
    (wanted,) = models["chat"].generate(PROMPT, max_new_tokens=9, **options)
    own = {name for name in fields if name in ("top_k", "beams", "repetition_penalty", "no_repeat_ngram_size")}
    extra = {"extra_body": {name: fields[name] for name in own}}
    rest = {name: value for name, value in fields.items() if name not in own}
    found = ai.completions.create(model="chat", prompt=PROMPT, max_tokens=9, logprobs=0, **rest, **extra)
    assert [each.text for each in found.choices] == [each.output for each in wanted.hypotheses]
    assert [each.finish_reason for each in found.choices] == [REASONS[each.finish or ""] for each in wanted.hypotheses]
    assert [each.index for each in found.choices] == list(range(len(wanted.hypotheses)))
    for choice, one in zip(found.choices, wanted.hypotheses, strict=True):
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == one.token_scores  # to the last bit
        assert choice.logprobs.tokens == models["chat"].tokenizer.tokens(one.tokens)
    assert found.usage is not None
    assert found.usage.prompt_tokens == len(models["chat"].encode(PROMPT))
    assert found.usage.completion_tokens == sum(len(each.tokens) for each in wanted.hypotheses)


def test_prompts_are_texts_or_token_ids_one_or_many(ai: openai.OpenAI, models: dict[str, txport.Model]) -> None:
    texts = [PROMPT, "good morning"]
    wanted = [each.output for each in models["chat"].generate(texts, max_new_tokens=6)]
    ids = [models["chat"].encode(text) for text in texts]
    for prompt in (texts, ids):
        found = ai.completions.create(model="chat", prompt=prompt, max_tokens=6)
        assert [each.text for each in found.choices] == wanted
    assert ai.completions.create(model="chat", prompt=ids[0], max_tokens=6).choices[0].text == wanted[0]


@pytest.mark.parametrize("count", [1, 3])
def test_streams_add_up_to_the_whole(count: int, ai: openai.OpenAI, models: dict[str, txport.Model]) -> None:
    texts = [PROMPT, "good morning", "x y z"][:count]
    wanted = models["chat"].generate(texts, max_new_tokens=12)
    stream = ai.completions.create(
        model="chat", prompt=texts, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    parts = list(stream)
    for at, each in enumerate(wanted):
        own = [choice for part in parts for choice in part.choices if choice.index == at]
        assert "".join(choice.text for choice in own) == each.output
        assert [choice.finish_reason for choice in own[:-1]] == [None] * (len(own) - 1)  # type: ignore[comparison-overlap]
        assert own[-1].finish_reason == REASONS[each.finish or ""]
    assert parts[-1].usage is not None
    assert parts[-1].usage.completion_tokens == sum(len(each.hypotheses[0].tokens) for each in wanted)


def test_a_chat_is_answered_whole_and_as_a_stream(ai: openai.OpenAI, models: dict[str, txport.Model]) -> None:
    messages: Any = [{"role": "user", "content": PROMPT}]
    wanted = models["chat"].chat(messages, max_new_tokens=9)
    found = ai.chat.completions.create(model="chat", messages=messages, max_completion_tokens=9, logprobs=True)
    (choice,) = found.choices
    assert choice.message.content == wanted.output
    assert choice.message.role == "assistant"
    assert choice.finish_reason == REASONS[wanted.finish or ""]
    assert choice.logprobs is not None
    assert [each.logprob for each in choice.logprobs.content or []] == wanted.hypotheses[0].token_scores
    stream = ai.chat.completions.create(model="chat", messages=messages, max_tokens=9, stream=True)
    parts = [choice for part in stream for choice in part.choices]
    assert parts[0].delta.role == "assistant"
    assert "".join(part.delta.content or "" for part in parts) == wanted.output
    assert parts[-1].finish_reason == choice.finish_reason


def test_the_last_message_can_be_continued(http: httpx.Client, models: dict[str, txport.Model]) -> None:
    messages = [{"role": "user", "content": "Say it"}, {"role": "assistant", "content": "It is"}]
    wanted = models["chat"].chat(messages, max_new_tokens=5, continue_final_message=True)
    body = {"model": "chat", "messages": messages, "max_tokens": 5, "continue_final_message": True}
    found = http.post("/v1/chat/completions", json=body).json()
    assert found["choices"][0]["message"]["content"] == wanted.output


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beams": 4, "nbest": 3, "alignment": "hard"},
        {"alignment": "soft", "max_new_tokens": 4},
        {"do_sample": True, "seed": 1, "nbest": 2},
        {"prefix": "AA B"},
    ],
)
def test_translations_have_all_that_results_have(
    options: dict[str, Any], http: httpx.Client, models: dict[str, txport.Model]
) -> None:
    own = {{"prefix": "prefixes"}.get(name, name): value for name, value in options.items()}
    wanted = models["spell"].generate(TEXTS, **own)
    found = http.post("/translate", json={"model": "spell", "text": TEXTS, **options}).json()
    assert found["translations"] == [json.loads(json.dumps(each.to_dict())) for each in wanted]
    assert found["usage"]["prompt_tokens"] == sum(len(models["spell"].encode(text)) for text in TEXTS)


def test_requests_of_all_kinds_together_find_what_each_finds_alone(url: str, models: dict[str, txport.Model]) -> None:
    wanted = [
        [one.output for one in models["chat"].generate(f"{PROMPT} {at}", max_new_tokens=8, **options)[0].hypotheses]
        for at, (_, options) in enumerate(WAYS * 4)
    ]

    async def ask() -> list[list[str]]:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            bodies = [
                {"model": "chat", "prompt": f"{PROMPT} {at}", "max_tokens": 8, **fields}
                for at, (fields, _) in enumerate(WAYS * 4)
            ]
            answers = await asyncio.gather(*(http.post("/v1/completions", json=body) for body in bodies))
            return [[choice["text"] for choice in answer.json()["choices"]] for answer in answers]

    assert asyncio.run(ask()) == wanted


def test_metrics_count_what_was_done(http: httpx.Client) -> None:
    def counted() -> tuple[float, ...]:
        names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
        counts = [metric(http, f"txport:{name}", model_name="spell") for name in names]
        return (*counts, metric(http, "txport:http_requests_total", endpoint="/translate", status="200"))

    before = counted()
    found = http.post("/translate", json={"model": "spell", "text": ["bad", "fed"]}).json()
    tokens = found["usage"]["completion_tokens"]
    added = tuple(now - then for now, then in zip(counted(), before, strict=True))
    assert added == (found["usage"]["prompt_tokens"], tokens, 2, 1)
    assert metric(http, "txport:num_requests_running") == 0


def test_a_deadline_that_passes_is_told(http: httpx.Client) -> None:
    found = http.post("/v1/completions", json={"model": "chat", "prompt": PROMPT, "deadline": 0})
    assert (found.status_code, found.json()["error"]["code"]) == (504, "deadline_exceeded")
