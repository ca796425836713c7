"""Clients that others wrote: Schemathesis on all of /openapi.json, and Triton's on the Open Inference Protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import txport
from tests.serving.service.test_encoding import TEXTS
from txport.serving.service.asgi import ENDPOINTS
from txport.serving.service.openapi import describe

schemathesis = pytest.importorskip("schemathesis", reason="`make serve-test` has it")
triton = pytest.importorskip("tritonclient.http", reason="`make serve-test` has it")


checks = pytest.importorskip("schemathesis.specs.openapi.checks", reason="`make serve-test` has it")
BOUNDED = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
MODELS = {"/translate": "spell", "/v1/embeddings": "embed", "/v1/rerank": "rerank", "/rerank": "rerank"}
MODELS["/answer"] = "answer"
MODELS |= dict.fromkeys(("/v1/audio/transcriptions", "/v1/audio/translations"), "hear")
DESCRIBED: dict[str, Any] = describe(ENDPOINTS, is_admin=False)
OPERATIONS = [(path, method) for path, methods in DESCRIBED["paths"].items() for method in methods]


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_as_described(path: str, method: str, url: str) -> None:
    """The status, the type and the fields; of models that fit. A description does not say which texts a model takes."""
    operation = schemathesis.openapi.from_dict(DESCRIBED)[path][method]

    @BOUNDED
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        for values in (case.body, case.path_parameters):
            if isinstance(values, dict) and "model" in values:
                values["model"] = MODELS.get(path, "embed" if path.startswith("/v2/") else "chat")
        case.call_and_validate(base_url=url, excluded_checks=[checks.positive_data_acceptance])

    ask()


@pytest.mark.parametrize(("path", "method"), [each for each in OPERATIONS if each[1] == "post"])
def test_what_does_not_fit_the_description_is_refused(path: str, method: str, url: str) -> None:
    operation = schemathesis.openapi.from_dict(DESCRIBED)[path][method]

    @BOUNDED
    @given(case=operation.as_strategy(schemathesis.GenerationMode.NEGATIVE))
    def ask(case: Any) -> None:
        case.call_and_validate(base_url=url)

    ask()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Any]:
    with triton.InferenceServerClient(urlsplit(url).netloc) as found:
        yield found


def test_triton_knows_the_server(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("embed")
    assert client.get_server_metadata()["name"] == "txport"
    assert [each["name"] for each in client.get_model_metadata("embed")["outputs"]] == ["last_hidden_state"]
    with pytest.raises(triton.InferenceServerException, match="there is no model 'other'"):
        client.get_model_metadata("other")


def test_a_compressed_body_is_refused_by_name(client: Any) -> None:
    given = triton.InferInput("text", [1], "BYTES")
    given.set_data_from_numpy(np.array([b"a"], object))
    with pytest.raises(triton.InferenceServerException, match="a body can't be compressed"):
        client.infer("embed", [given], request_compression_algorithm="gzip")


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("kind", ["text", "ids"])
def test_tensors_are_those_of_the_model(kind: str, binary: bool, client: Any, models: dict[str, txport.Model]) -> None:
    if kind == "text":
        given = {"text": ("BYTES", np.array([text.encode() for text in TEXTS], object))}
    else:
        ids = [models["embed"].encode(text) for text in TEXTS]
        padded = np.zeros((len(ids), max(map(len, ids))), np.int64)
        for row, each in zip(padded, ids, strict=True):
            row[: len(each)] = each
        mask = np.array([[at < len(each) for at in range(padded.shape[1])] for each in ids], np.int64)
        given = {"input_ids": ("INT64", padded), "attention_mask": ("INT64", mask)}
    inputs = [triton.InferInput(name, list(array.shape), datatype) for name, (datatype, array) in given.items()]
    for each, (_, array) in zip(inputs, given.values(), strict=True):
        each.set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput("last_hidden_state", binary_data=binary)]
    found = client.infer("embed", inputs, outputs=outputs)
    vectors = found.as_numpy("last_hidden_state")
    for vector, one in zip(vectors, models["embed"].infer(TEXTS), strict=True):
        np.testing.assert_array_equal(vector[: len(one["last_hidden_state"])], one["last_hidden_state"])
