"""Whatever a caller sends has the right status and one clear message, and disturbs nobody."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txport
from tests.serving.service.served import client, running
from txport.errors import UnsupportedError
from txport.models.options import DEFAULTS, GenerationOptions
from txport.models.options import options as declared
from txport.serving.service.asgi import ENDPOINTS, Service, app
from txport.serving.service.fields import CHAT as CHATS
from txport.serving.service.fields import COMPLETIONS, TRANSLATE
from txport.serving.service.schema import Field, fits

GOOD = {"model": "chat", "prompt": "Hello", "max_tokens": 3}
CHAT = {"model": "chat", "messages": [{"role": "user", "content": "Hello"}]}
KEY = "a-key-of-some-length"
ASK = {"model": "answer", "question": "who", "context": "Ada wrote it."}
SPELL = {"model": "spell", "text": "bad"}
REFUSED: list[tuple[str, Any, int, str, str | None]] = [  # path, body, status, what the message has, param
    ("/v1/completions", GOOD | {"max_token": 3}, 400, "unknown field 'max_token'; supported: model", "max_token"),
    ("/v1/completions", {"prompt": "Hello"}, 400, "the field 'model' is missing", "model"),
    ("/v1/completions", GOOD | {"model": "gpt"}, 404, "there is no model 'gpt'", "model"),
    ("/v1/completions", GOOD | {"model": "embed"}, 400, "needs a causal model; embed is", "model"),
    ("/v1/completions", GOOD | {"model": "../chat"}, 404, "there is no model", "model"),
    ("/v1/completions", GOOD | {"prompt": 7}, 400, "prompt must be a string or a list of items", "prompt"),
    ("/v1/completions", GOOD | {"prompt": []}, 400, "with a length of at least 1", "prompt"),
    ("/v1/completions", GOOD | {"prompt": ["a", [1]]}, 400, "prompt must be a string or a list", "prompt"),
    ("/v1/completions", GOOD | {"max_tokens": "3"}, 400, "max_tokens must be a whole number of", "max_tokens"),
    ("/v1/completions", GOOD | {"max_tokens": True}, 400, "max_tokens must be a whole number", "max_tokens"),
    ("/v1/completions", GOOD | {"max_new_tokens": 3}, 400, "max_tokens and max_new_tokens set", None),
    ("/v1/completions", GOOD | {"temperature": -1}, 400, "temperature must be a number of at least 0", "temperature"),
    ("/v1/completions", GOOD | {"top_p": 2}, 400, "top_p must be a number of at most 1 and above 0", "top_p"),
    ("/v1/completions", GOOD | {"presence_penalty": 1}, 400, "except 0 or null; got 1", "presence_penalty"),
    ("/v1/completions", GOOD | {"echo": True}, 400, "echo is not supported, except false", "echo"),
    ("/v1/completions", GOOD | {"n": 2, "temperature": 0}, 400, "nbest can't exceed beams", None),
    ("/v1/completions", GOOD | {"n": 2, "stream": True}, 400, "only one hypothesis can be streamed", None),
    ("/v1/completions", GOOD | {"logit_bias": {"x": 1}}, 400, "token ids as names, got 'x'", "logit_bias"),
    ("/v1/completions", GOOD | {"logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, 400, "most 1024", "logit_bias"),
    ("/v1/completions", GOOD | {"stop": ["a"] * 65}, 400, "with a length of at most 64", "stop"),
    ("/v1/completions", GOOD | {"bad_words_ids": [[1]] * 1025}, 400, "of at most 1024", "bad_words_ids"),
    ("/v1/completions", GOOD | {"prompt": ["a"] * 1057}, 400, "may have 1056 inputs here, got 1057; send", None),
    ("/v1/completions", GOOD | {"prompt": "a " * 500}, 400, "the model takes at most 400", None),
    ("/v1/completions", GOOD | {"prompt": [10**9]}, 400, "token ids must lie in 0 to", None),
    ("/v1/chat/completions", CHAT | {"messages": [{"role": "system", "content": "x"}]}, 400, "Only users", None),
    ("/v1/chat/completions", CHAT | {"messages": ["x"]}, 400, "messages must be a list of items", "messages"),
    ("/v1/chat/completions", CHAT | {"n": 2, "stream": True}, 400, "only one hypothesis can be streamed", None),
    ("/v1/chat/completions", CHAT | {"tools": [{}]}, 400, "tools is not supported, except []", "tools"),
    ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"x": 1}}, 400, "does not read 'x'", None),
    ("/translate", SPELL | {"beams": 0}, 400, "beams must be a whole number of", "beams"),
    ("/translate", SPELL | {"top_k": 3}, 400, "top_k is for sampling; give do_sample too", None),
    ("/translate", {"model": "spell", "text": "b%d"}, 400, "outside the vocabulary", None),
    ("/translate", SPELL | {"target_language": "x"}, 400, "has no language option", None),
    ("/translate", SPELL | {"prefix": "ZZ"}, 400, "ZZ", None),
    ("/v1/embeddings", {"model": "embed", "input": [1, 2]}, 400, "input must be a string or a list", "input"),
    ("/v1/embeddings", {"model": "embed", "input": "a", "dimensions": 99}, 400, "dimensions must not exceed 16", None),
    ("/v1/rerank", {"model": "rerank", "query": "a", "documents": [{}]}, 400, "or an object with a text", "documents"),
    ("/v1/rerank", {"model": "embed", "query": "a", "documents": ["a"]}, 400, "needs a reranker", "model"),
    ("/answer", ASK | {"context": None}, 400, "the field 'context' is missing", "context"),
    ("/answer", ASK | {"context": " "}, 400, "the text is empty", None),
    ("/answer", ASK | {"model": "embed"}, 400, "needs a model that answers questions; embed is", "model"),
    ("/answer", ASK | {"nbest": 0}, 400, "nbest must be a whole number of at least 1", "nbest"),
    ("/answer", ASK | {"stride": 1.5}, 400, "stride must be a whole number of at least 0", "stride"),
    ("/answer", ASK | {"window": 9, "stride": 8}, 400, "must be more than the stride, 8", None),
    ("/answer", ASK | {"question": "a " * 99}, 400, "leaves 0 of 64 tokens of a window", None),
    ("/answer", ASK | {"context": "a " * 1200, "window": 10, "stride": 3}, 400, "more than 1056 windows", None),
    ("/answer", ASK | {"unknown": "skip"}, 400, "unknown='skip' leaves out text", None),
    ("/v1/nothing", {}, 404, "there is no endpoint /v1/nothing", None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "message", "param"), REFUSED)
def test_a_request_that_is_wrong_is_refused_by_name(
    path: str, body: Any, status: int, message: str, param: str | None, http: httpx.Client
) -> None:
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, set(error)) == (status, {"message", "type", "param", "code"}), error
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert param is None or error["param"] == param


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object, got [1]"),
        (b'{"model": 1e999}', "1e999 is too large"),
        (b'{"model": NaN}', "NaN is no number of JSON"),
        (b'{"model": "\\ud800"}', "surrogates not allowed"),
        (b'{"model": "\xed\xa0\x80"}', "the body is not JSON"),
        (b"[" * 200_000, "in one another, too many to be read"),
        (b'{"model": ' + b"9" * 100_000 + b"}", ""),
    ],
)
def test_a_body_that_is_no_json_is_refused(content: bytes, message: str, http: httpx.Client) -> None:
    answer = http.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
    assert message in answer.json()["error"]["message"]


def test_other_methods_and_types_are_refused(http: httpx.Client) -> None:
    answer = http.get("/v1/completions")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.json()["error"]["message"] == "GET is not for this endpoint; use POST"
    form = http.post("/v1/completions", data=GOOD)  # a web page may send one anywhere without being asked
    assert (form.status_code, form.json()["error"]["message"][:40]) == (415, "the content type must be application/jso")
    assert http.post("/v1/audio/transcriptions", json={}).status_code == 415
    assert http.post("/admin/reload").status_code == 404  # there are no keys


def test_the_public_client_knows_the_errors(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        ai.completions.create(model="gpt", prompt="Hello")
    with pytest.raises(openai.BadRequestError, match="unknown field 'colour'"):
        ai.completions.create(model="chat", prompt="Hello", extra_body={"colour": 1})
    with pytest.raises(openai.BadRequestError, match="only one hypothesis can be streamed"):
        list(ai.completions.create(model="chat", prompt="Hello", n=2, stream=True))


def test_a_body_beyond_the_limit_gets_413(models: dict[str, txport.Model]) -> None:
    service = app({"spell": models["spell"]}, max_body=1000)
    with running(service) as url, client(url) as http:
        long = json.dumps({"model": "spell", "text": "a" * 2000}).encode()
        headers = {"Content-Type": "application/json"}
        for content in (long, iter([long])):  # with and without its length
            answer = http.post("/translate", content=content, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert http.post("/translate", json={"model": "spell", "text": "bad"}).status_code == 200


def test_a_page_of_another_site_gets_403_without_keys(models: dict[str, txport.Model]) -> None:
    with running(app({"spell": models["spell"]})) as url, client(url) as http:
        for origin, status in (("http://elsewhere.example", 403), ("null", 403), (url, 200)):
            answer = http.get("/v1/models", headers={"Origin": origin})
            assert answer.status_code == status, origin
            assert status == 200 or answer.json()["error"]["code"] == "another_site"


def test_requests_need_a_key_where_there_are_keys(models: dict[str, txport.Model]) -> None:
    with running(app({"spell": models["spell"]}, api_keys=[KEY, "b" * 20])) as url, client(url) as http:
        for key in ("", "Bearer", f"Basic {KEY}", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", "Bearer \xe9"):
            answer = http.get("/v1/models", headers=[(b"authorization", key.encode("latin-1"))])
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/metrics", "/v2", "/admin/reload", "/translate", "/nothing"):
            assert http.get(path).status_code == 401
        for path in ("/", "/health", "/ready", "/openapi.json"):
            assert http.get(path).status_code == 200
        with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY) as ai:
            assert [each.id for each in ai.models.list()] == ["spell"]
        answer = http.post("/admin/reload", headers={"Authorization": f"Bearer {KEY}"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (
            409,
            "spell was given as a loaded model, so that it can't be loaded again",
        )
    with pytest.raises(UnsupportedError, match="key 1 of api_keys must have at least 16 visible ASCII"):
        app({}, api_keys=["short"])


LETTERS = st.characters(exclude_categories=())  # surrogates too
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(LETTERS, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150)
@given(data=st.data())
def test_no_body_fails_the_service(data: st.DataObject, http: httpx.Client) -> None:
    """Any values of the fields of any endpoint are answered or refused."""
    endpoint = data.draw(st.sampled_from([each for each in ENDPOINTS if each.kind == "application/json"]))
    usual: dict[str, Any] = {
        "model": data.draw(st.sampled_from(["spell", "chat", "embed", "rerank", "hear", "answer"]))
    }
    usual |= {
        "prompt": "Hello",
        "messages": CHAT["messages"],
        "text": "bad",
        "input": "a",
        "query": "a",
        "question": "a",
        "context": "b",
    }
    usual |= {"documents": ["a", "b"], "texts": ["b"], "max_new_tokens": 2}
    more = st.dictionaries(st.just("parameters"), VALUES)
    usual["inputs"] = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"], **data.draw(more)}]
    usual["outputs"] = [{"name": "last_hidden_state", **data.draw(more)}]
    names = [each.name for each in endpoint.body.fields]
    drawn = data.draw(st.dictionaries(st.sampled_from(names), VALUES, max_size=3))
    body = {name: value for name, value in usual.items() if name in names} | drawn
    answer = http.post(endpoint.path.format(model="embed"), content=json.dumps(body).encode(), headers={
        "Content-Type": "application/json"
    })  # fmt: skip
    assert answer.status_code in (200, 400, 404, 504), answer.text


def test_the_description_is_that_of_the_checks(http: httpx.Client) -> None:
    told = http.get("/openapi.json").json()
    assert told["openapi"] == "3.1.0"
    for each in ENDPOINTS:
        schema = told["paths"][each.path]["post"]["requestBody"]["content"][each.kind]["schema"]
        assert list(schema["properties"]) == [field.name for field in each.body.fields]
        assert schema["additionalProperties"] is False
        assert all(field["description"] for field in schema["properties"].values())


def test_every_option_of_a_search_is_a_field() -> None:
    assert {each.name for each in TRANSLATE.fields} >= DEFAULTS.keys()
    for body in (COMPLETIONS, CHATS):
        sets = {each.sets or each.name for each in body.fields}
        assert DEFAULTS.keys() - sets == {"alignment"}  # a causal model has no source
        assert {each.sets for each in body.fields} - {""} <= DEFAULTS.keys()


SCALARS = ("whole", "number", "switch")
NUMBERS = st.integers(-3, 5) | st.floats(-2, 2) | st.sampled_from([0, 1, 4096, 4097, 1e9, 1e10, 2**63]) | st.booleans()


@given(name=st.sampled_from([name for name, each in declared(GenerationOptions).items() if each.kind in SCALARS]),
       value=NUMBERS)  # fmt: skip
def test_a_field_takes_what_its_option_takes(name: str, value: float) -> None:
    """Except a whole number as a float, and a number as a switch, which JSON tells apart."""
    field: Field = next(each for each in TRANSLATE.fields if each.name == name)
    option = declared(GenerationOptions)[name]
    try:
        GenerationOptions(**{name: value})
    except (UnsupportedError, ValueError):
        assert not fits(value, field.schema)
    else:
        is_exact = isinstance(value, bool) == (option.kind == "switch")
        is_exact &= option.kind != "whole" or not isinstance(value, float)
        assert fits(value, field.schema) or not is_exact


def test_a_service_without_a_model_is_one(service: Service) -> None:
    with running(app({})) as url, client(url) as http:
        assert http.get("/v1/models").json()["data"] == []
        assert http.get("/ready").status_code == 200
