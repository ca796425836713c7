"""Vectors, scores, tensors and transcripts over HTTP are those of the model."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import threading
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import soundfile

import txport
from tests.audio.noise import RATE, noise
from tests.serving.service.served import PATIENCE, metric
from txport.errors import QueueFullError
from txport.serving.service.recordings import TOGETHER, Recordings

TEXTS = ["a b c", "d", "h g f e"]
QUERY = "a b"


@pytest.mark.parametrize("how", ["float", "base64", None])
def test_embeddings_are_those_of_the_model(how: Any, ai: openai.OpenAI, models: dict[str, txport.Model]) -> None:
    """The client asks for base64 unless it is told otherwise."""
    given = {} if how is None else {"encoding_format": how}
    options = {"extra_body": {"pooling": "first", "normalize": True}, "dimensions": 8}
    found = ai.embeddings.create(model="embed", input=TEXTS, **given, **options)
    wanted = models["embed"].embed(TEXTS, pooling="first", normalize=True, dimensions=8)
    decoded = [
        np.frombuffer(base64.b64decode(each.embedding), "<f4")
        if isinstance(each.embedding, str)
        else np.array(each.embedding, np.float32)
        for each in found.data
    ]
    np.testing.assert_array_equal(np.stack(decoded), wanted)
    assert found.usage.prompt_tokens == sum(len(models["embed"].encode(text)) for text in TEXTS)


def test_many_callers_share_batches_and_get_their_own(url: str, models: dict[str, txport.Model]) -> None:
    texts = [" ".join("abcdefgh"[at % 8 : at % 8 + 1 + at % 5]) for at in range(60)]
    wanted = models["embed"].embed(texts)

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            bodies = [{"model": "embed", "input": text} for text in texts]
            bodies[7]["input"] = "a " * 50  # too long: its own error, and no other's
            answers = await asyncio.gather(*(http.post("/v1/embeddings", json=body) for body in bodies))
            return [answer.json() for answer in answers]

    found = asyncio.run(ask())
    assert found[7]["error"]["code"] == "context_length_exceeded"
    for at, each in enumerate(found):
        if at != 7:
            np.testing.assert_array_equal(np.array(each["data"][0]["embedding"], np.float32), wanted[at])


def test_documents_are_ranked_as_the_model_ranks_them(http: httpx.Client, models: dict[str, txport.Model]) -> None:
    texts = ["c", "a b", "h g f e d c b a a b c d e f", "b"]
    wanted = models["rerank"].rank(QUERY, texts)
    body = {"model": "rerank", "query": QUERY, "documents": [texts[0], {"text": texts[1]}, *texts[2:]]}
    found = http.post("/v1/rerank", json=body | {"return_documents": True}).json()
    assert [(each["index"], each["relevance_score"]) for each in found["results"]] == [
        (each.index, each.score) for each in wanted
    ]
    assert found["results"][0]["document"]["text"] == wanted[0].text
    assert [each["index"] for each in http.post("/v1/rerank", json=body | {"top_n": 2}).json()["results"]] == [
        each.index for each in wanted[:2]
    ]
    tei = http.post("/rerank", json={"query": QUERY, "texts": texts}).json()
    assert tei == [{"index": each.index, "score": each.score} for each in wanted]


def test_answers_of_many_callers_are_those_of_the_model(url: str, models: dict[str, txport.Model]) -> None:
    """Of other questions, options and numbers of windows, which share batches."""
    context = "The harbour is old. It was built by Ada Byron in 1842, and it opens at nine. "
    options: list[dict[str, Any]] = [{}, {"nbest": 3}, {"impossible": True, "longest": 4}, {"window": 40, "stride": 5}]
    bodies = [
        {"question": f"who built {at}?", "context": context * (1 + at % 5), **options[at % len(options)]}
        for at in range(20)
    ]
    wanted = [models["answer"].answer(**body) for body in bodies]
    bodies[7]["question"] *= 30  # too long: its own error, and no other's

    async def ask() -> list[Any]:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            asked = (http.post("/answer", json={"model": "answer", **body}) for body in bodies)
            return [answer.json() for answer in await asyncio.gather(*asked)]

    found = asyncio.run(ask())
    assert found.pop(7)["error"]["code"] == "context_length_exceeded"
    del wanted[7]
    for each, own in zip(found, wanted, strict=True):
        told = [(one["answer"], one["score"], one["start"], one["end"]) for one in each["answers"]]
        assert told == [(one.text, one.score, one.start, one.end) for one in own]


def test_tensors_as_the_open_inference_protocol_has_them(http: httpx.Client, models: dict[str, txport.Model]) -> None:
    wanted = [each["last_hidden_state"] for each in models["embed"].infer(TEXTS)]
    longest = max(map(len, wanted))
    told = http.get("/v2/models/embed").json()
    assert {each["name"]: each["datatype"] for each in told["inputs"]} == {
        "text": "BYTES",
        "input_ids": "INT64",
        "attention_mask": "INT64",
    }
    ids = [models["embed"].encode(text) for text in TEXTS]
    padded = [[*each, *[0] * (longest - len(each))] for each in ids]
    mask = [[1] * len(each) + [0] * (longest - len(each)) for each in ids]
    shape = [len(TEXTS), longest]
    by_text = [{"name": "text", "datatype": "BYTES", "shape": [3], "data": TEXTS}]
    by_ids = [
        {"name": "input_ids", "datatype": "INT64", "shape": shape, "data": padded},
        {"name": "attention_mask", "datatype": "INT64", "shape": shape, "data": [each for row in mask for each in row]},
    ]
    for inputs in (by_text, by_ids):
        content = json.dumps({"id": "7", "inputs": inputs})  # tritonclient names no type
        before = metric(http, "txport:prompt_tokens_total")
        found = http.post("/v2/models/embed/infer", content=content).json()
        assert metric(http, "txport:prompt_tokens_total") - before == sum(map(len, ids))
        (output,) = found["outputs"]
        assert (found["model_name"], found["id"], output["shape"]) == ("embed", "7", [3, longest, 16])
        vectors = np.array(output["data"], np.float32).reshape(output["shape"])
        for vector, one in zip(vectors, wanted, strict=True):
            np.testing.assert_array_equal(vector[: len(one)], one)
            assert not vector[len(one) :].any()


def test_tensors_may_be_binary(http: httpx.Client, models: dict[str, txport.Model]) -> None:
    packed = b"".join(struct.pack("<I", len(text)) + text.encode() for text in TEXTS)
    entry = {"name": "text", "datatype": "BYTES", "shape": [3], "parameters": {"binary_data_size": len(packed)}}
    head = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    answer = http.post("/v2/models/embed/infer", content=head + packed, headers=headers)
    size = int(answer.headers["inference-header-content-length"])
    (output,) = json.loads(answer.content[:size])["outputs"]
    assert output["parameters"]["binary_data_size"] == len(answer.content) - size
    vectors = np.frombuffer(answer.content[size:], "<f4").reshape(output["shape"])
    for vector, one in zip(vectors, models["embed"].infer(TEXTS), strict=True):
        np.testing.assert_array_equal(vector[: len(one["last_hidden_state"])], one["last_hidden_state"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([{"name": "text", "datatype": "FP32", "shape": [1], "data": [1]}], "an input must be one of text (BYTES)"),
        ([{"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a"]}], "text has 1 values, its shape 2"),
        ([{"name": "text", "datatype": "BYTES", "shape": [-1], "data": ["a"]}], "dims of at least 1"),
        ([{"name": "text", "datatype": "BYTES", "shape": [1], "data": [1]}], "text must hold strings"),
        ([{"name": "input_ids", "datatype": "INT64", "shape": [1, 1], "data": [99]}], "token ids must lie in 0 to 12"),
        ([{"name": "input_ids", "datatype": "INT64", "shape": [1, 40], "data": [1] * 40}], "1 to 12 tokens, got 40"),
        ([{"name": "input_ids", "datatype": "INT64", "shape": [1 << 40], "data": []}], "may have 16777216 values"),
        ([{"name": "input_ids", "datatype": "INT64", "shape": [10**4000] * 2, "data": []}], "its shape has more"),
        ([{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": "x"}], "parameters must be an object"),
        (
            [{"name": "text", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 9}}],
            "binary_data_size of text is not that of the body",
        ),
    ],
)
def test_tensors_that_fit_no_model_are_refused(inputs: Any, message: str, http: httpx.Client) -> None:
    answer = http.post("/v2/models/embed/infer", json={"inputs": inputs})
    assert answer.status_code == 400
    assert message in answer.json()["error"]  # a text, as clients of the protocol read it


def recording(name: str = "longer") -> bytes:
    content = io.BytesIO()
    soundfile.write(content, noise(name), RATE, format="WAV", subtype="FLOAT")
    return content.getvalue()


def test_a_transcript_is_the_models(ai: openai.OpenAI, http: httpx.Client, models: dict[str, txport.Model]) -> None:
    audio = recording()
    files = {"file": ("talk.wav", audio)}
    (wanted,) = models["hear"].transcribe(audio, task="translate")  # deprecated in the client
    assert http.post("/v1/audio/translations", data={"model": "hear"}, files=files).json() == {"text": wanted.text}
    (wanted,) = models["hear"].transcribe(audio, task="transcribe")
    assert ai.audio.transcriptions.create(model="hear", file=("talk.wav", audio)).text == wanted.text
    (wanted,) = models["hear"].transcribe(audio, task="transcribe", timestamps=True, language="de")
    how: Any = {"response_format": "verbose_json", "timestamp_granularities": ["segment"], "language": "de"}
    found = ai.audio.transcriptions.create(model="hear", file=("talk.wav", audio), **how)
    assert [(each.start, each.end, each.text) for each in found.segments or []] == [
        (each.start, each.end, each.text) for each in wanted.segments
    ]
    plain = http.post("/v1/audio/transcriptions", data={"model": "hear", "response_format": "text"}, files=files)
    assert plain.headers["content-type"].startswith("text/plain")


def test_what_is_no_audio_is_refused(http: httpx.Client) -> None:
    ways: list[tuple[dict[str, Any], str]] = [
        ({"data": {"model": "hear"}, "files": {"file": ("a.wav", b"no audio")}}, "audio can't be read as audio"),
        ({"data": {"model": "hear"}, "files": {"file": ("/etc/passwd", b"")}}, "and not be empty"),
        ({"data": {"model": "hear", "file": "/etc/passwd"}, "files": {"x": b"1"}}, "unknown field 'x'"),
        ({"data": {"model": "hear", "beams": "two"}, "files": {"file": b"1"}}, "beams must be a whole number"),
        ({"data": {"model": "embed"}, "files": {"file": recording("short")}}, "this endpoint needs a speech model"),
    ]
    for request, message in ways:
        answer = http.post("/v1/audio/transcriptions", **request)
        assert answer.status_code == 400
        assert message in answer.json()["error"]["message"]


def test_recordings_together_are_heard_as_alone(url: str, models: dict[str, txport.Model]) -> None:
    contents = [recording(name) for name in ("short", "whole", "long", "longer")] * 4
    wanted = [each.text for each in models["hear"].transcribe(contents[:4], task="transcribe")] * 4

    async def ask() -> list[str]:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            asked = (
                http.post("/v1/audio/transcriptions", data={"model": "hear"}, files={"file": ("a.wav", content)})
                for content in contents
            )
            return [answer.json()["text"] for answer in await asyncio.gather(*asked)]

    assert asyncio.run(ask()) == wanted


def test_recordings_that_run_have_a_slot_each(models: dict[str, txport.Model]) -> None:
    with models["hear"].engine(slots=2, queue=0) as engine:
        recordings = Recordings(engine, 2, 6, 1 << 30)
        asked = [recordings.submit(recording(), {}) for _ in range(8)]
        assert all(each.future.result(PATIENCE) for each in asked)
        recordings.close()


def test_recordings_that_wait_are_bounded(models: dict[str, txport.Model], monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    with models["hear"].engine() as engine:
        monkeypatch.setattr(engine, "transcribe", lambda content, **_: gate.wait(PATIENCE) and [content])
        recordings = Recordings(engine, 2 * TOGETHER, 2, 2 * TOGETHER)
        asked = [recordings.submit(bytes([number]), {}) for number in range(TOGETHER + 2)]
        assert recordings.waiting == 2
        with pytest.raises(QueueFullError, match="the queue is full, with 2 recordings"):
            recordings.submit(b"", {})
        waits = asked.pop()
        waits.cancel()
        assert waits.future.cancelled()
        assert not waits.content
        with pytest.raises(QueueFullError, match=f"and {TOGETHER + 1} bytes with those that run"):
            recordings.submit(bytes(TOGETHER), {})
        asked.append(recordings.submit(b"last", {}))
        gate.set()
        assert [each.future.result(PATIENCE) for each in asked][-1] == [b"last"]
        recordings.close()
        assert recordings.waiting == 0
