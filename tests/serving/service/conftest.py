"""One service of all kinds of models for the session: an export takes a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

import txport
from tests.serving.service.served import PATIENCE, client, make_bundles, running
from txport.serving.service.asgi import Service, app


@pytest.fixture(scope="session")
def bundles(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Bundles by name: `spell` (seq2seq), `chat` (causal), `embed`, `rerank`, `hear` (speech), `answer`."""
    return make_bundles(tmp_path_factory.mktemp("served"), checkpoint)


@pytest.fixture(scope="session")
def models(bundles: dict[str, Path]) -> dict[str, txport.Model]:
    return {name: txport.load(path, threads=1) for name, path in bundles.items()}


@pytest.fixture(scope="session")
def service(models: dict[str, txport.Model]) -> Service:
    return app(models)


@pytest.fixture(scope="session")
def url(service: Service) -> Iterator[str]:
    with running(service) as url:
        yield url


@pytest.fixture(scope="session")
def http(url: str) -> Iterator[httpx.Client]:
    with client(url) as http:
        yield http


@pytest.fixture(scope="session")
def ai(url: str) -> Iterator[openai.OpenAI]:
    """The public client."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as found:
        yield found
