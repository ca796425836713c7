"""The service on Ray Serve answers as one process does."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import txport
from tests.serving.service.served import client
from txport.serving.service.server import bound

ray = pytest.importorskip("ray", reason="`make serve-test` has it")
serve = pytest.importorskip("ray.serve", reason="`make serve-test` has it")
# Ray's own warnings and sockets
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("default"),
]
WORDS = [word + end for end in ("", "a", "ed") for word in ("bad", "chief", "ace", "dab", "face")]


@pytest.fixture(scope="module")
def on_ray(bundles: dict[str, Path]) -> Iterator[httpx.Client]:
    """A client of a replica of two models behind Ray's proxy."""
    from examples.serving.ray_serve import service

    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR")
    with bound("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(service({name: str(bundles[name]) for name in ("spell", "chat", "embed")}))
    with client(f"http://127.0.0.1:{port}") as http:
        yield http
    serve.shutdown()
    ray.shutdown()


def test_outputs_are_those_of_the_models(on_ray: httpx.Client, models: dict[str, txport.Model]) -> None:
    def ask(word: str) -> Any:
        return on_ray.post("/translate", json={"model": "spell", "text": word}).json()["translations"][0]["output"]

    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        assert list(callers.map(ask, WORDS)) == [each.output for each in models["spell"].generate(WORDS)]
    vectors = on_ray.post("/v1/embeddings", json={"model": "embed", "input": "a b"}).json()["data"]
    assert len(vectors[0]["embedding"]) == models["embed"].facts.width


def test_a_stream_comes_in_parts(on_ray: httpx.Client, models: dict[str, txport.Model]) -> None:
    body = {"model": "chat", "prompt": "Hello", "max_tokens": 8, "stream": True}
    with on_ray.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    text = "".join(json.loads(line)["choices"][0]["text"] for line in lines[:-1])
    assert text == models["chat"].generate("Hello", max_new_tokens=8)[0].output
