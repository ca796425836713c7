"""`/v1/embeddings`, `/v1/rerank` with `/rerank`, and `/answer`: what encoder-only models give."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from txport.api.answers import Spans, Window, answers
from txport.api.encoding import Batches, Vectors
from txport.api.model import Model
from txport.errors import LongTextError, UnknownTextError
from txport.serving.service.calls import Call, Endpoint, require, require_fit
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.fields import ANSWER, EMBEDDINGS, RERANK, TEI_RERANK
from txport.serving.service.models import TEXTS, Served
from txport.serving.service.routes.inference import Inference

READING = ("truncate", "unknown", "special")
Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Embedder:
    """Returns the vector and the number of tokens of each text."""

    model: Model

    def __call__(self, texts: Sequence[str], **options: object) -> list[tuple[Vector, int]]:
        """Embed a batch, with the options of `Model.embed`."""
        vectors = list(self.model.embed_iter(texts, **cast(Vectors, options)))
        return [(vector, _count(self.model, text, options)) for text, vector in zip(texts, vectors, strict=True)]


@dataclass(frozen=True)
class Ranker:
    """Returns the score and the number of tokens of each pair of a query and a text."""

    model: Model

    def __call__(self, pairs: Sequence[tuple[str, str]], **options: object) -> list[tuple[float | None, int]]:
        """Score a batch as `Model.rank` does; None: nothing of a text is in the vocabulary."""
        found = self.model.classify_iter(pairs, **cast(Batches, options))
        return [
            (labels[0].score if labels else None, _count(self.model, pair, options))
            for pair, labels in zip(pairs, found, strict=True)
        ]


def _count(model: Model, text: str | tuple[str, str], options: Mapping[str, object]) -> int:
    reading = {name: options[name] for name in READING if name in options}
    try:
        return len(model.encode(text, **reading))  # type: ignore[arg-type]
    except UnknownTextError:
        return 0


async def embeddings(call: Call, served: Served) -> Mapping[str, object]:
    """Answer as OpenAI's embeddings."""
    require(served, "embed")
    texts = call.texts("input")
    options = call.given("pooling", "normalize", "dimensions", "prompt", *READING)
    found = await call.batched(served, Embedder(served.model), texts, options)
    for place, (vector, _) in enumerate(found):
        if not vector.size:
            raise InvalidRequestError(f"input {place} has no character of the vocabulary", param="input")
    as_base64 = call.text("encoding_format") == "base64"
    tokens = sum(count for _, count in found)
    call.finish(served.name, tokens)
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if as_base64 else vector.tolist()}
        for index, (vector, _) in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}


def _base64(vector: Vector) -> str:
    little = vector.astype("<f4") if sys.byteorder == "big" else vector
    return base64.b64encode(little.tobytes()).decode("ascii")


async def rerank(call: Call, served: Served) -> Mapping[str, object]:
    """Answer as Jina's reranker: the best documents first."""
    documents = [_document(each) for each in cast("list[object]", call.values["documents"])]
    ranked, tokens = await _ranked(call, served, documents)
    most = call.values.get("top_n")
    results: list[dict[str, object]] = []
    for index, score in ranked[: most if isinstance(most, int) else None]:
        shown = {"document": {"text": documents[index]}} if call.values.get("return_documents") else {}
        results.append({"index": index, "relevance_score": score, **shown})
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"rerank-{call.id}", "model": served.name, "results": results, "usage": usage}


async def tei_rerank(call: Call, served: Served) -> Sequence[object]:
    """Answer as Text Embeddings Inference: index and score, the best first."""
    texts = call.texts("texts")
    ranked, _ = await _ranked(call, served, texts)
    shows = bool(call.values.get("return_text"))
    return [{"index": at, "score": score, **({"text": texts[at]} if shows else {})} for at, score in ranked]


async def _ranked(call: Call, served: Served, texts: Sequence[str]) -> tuple[list[tuple[int, float]], int]:
    """Return the places of the texts with their scores, the best first, and the number of tokens."""
    require_fit(served, served.is_reranker, "a reranker, a classifier with one label")
    options = {"truncate": True, **call.given(*READING)}
    pairs = [(call.text("query"), each) for each in texts]
    found = await call.batched(served, Ranker(served.model), pairs, options)
    tokens = sum(count for _, count in found)
    call.finish(served.name, tokens)
    scored = [(at, score) for at, (score, _) in enumerate(found) if score is not None]
    return sorted(scored, key=lambda each: -each[1]), tokens


def _document(value: object) -> str:
    text = value.get("text") if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        raise InvalidRequestError("a document must be a text, or an object with a text", param="documents")
    return text


async def answer(call: Call, served: Served) -> Mapping[str, object]:
    """Answer a question by parts of a context, the most probable first; windows of all requests share batches."""
    require(served, "answer")
    options: dict[str, Any] = call.given("nbest", "longest", "stride", "window", "impossible")
    spans, context = Spans(**options), call.text("context")
    windows = await asyncio.to_thread(_windows, call, served, spans)
    outputs = await call.batched(served, Inference(served.model), [each.ids for each in windows], {})
    found = await asyncio.to_thread(answers, context, windows, [each for each, _ in outputs], spans)
    tokens = sum(len(each.ids) for each in windows)
    call.finish(served.name, tokens)
    results = [{"answer": each.text, "score": each.score, "start": each.start, "end": each.end} for each in found]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"model": served.name, "answers": results, "usage": usage}


def _windows(call: Call, served: Served, spans: Spans) -> list[Window]:
    """Return the windows of a request; raise `LongTextError` for more than may wait and run."""
    most = served.sizes.queue + TEXTS
    reading: dict[str, Any] = call.given("unknown", "special")
    found = served.model.windows(call.text("question"), call.text("context"), spans, **reading)
    windows = list(islice(found, most + 1))
    if len(windows) > most:
        raise LongTextError(f"the context has more than {most} windows; shorten it, or make the stride smaller")
    return windows


def only_reranker(call: Call) -> Served:
    """Return the named model, or the only reranker of the service."""
    if "model" in call.values:
        return call.models.get(call.text("model"))
    found = [each for each in call.models if each.is_reranker]
    if len(found) != 1:
        raise InvalidRequestError("name the model: the service has no reranker, or several", param="model")
    return found[0]


VECTORS = {"type": "object", "required": ["object", "data", "model", "usage"]}
RANKED = {"type": "object", "required": ["model", "results", "usage"]}
ANSWERED = {"type": "object", "required": ["model", "answers", "usage"]}
ENDPOINTS = (
    Endpoint("/v1/embeddings", "Vectors of texts, as OpenAI's", embeddings, EMBEDDINGS, VECTORS),
    Endpoint("/v1/rerank", "Order documents by their scores for a query, as Jina's", rerank, RERANK, RANKED),
    Endpoint(
        "/rerank", "Like /v1/rerank, as Text Embeddings Inference", tei_rerank, TEI_RERANK, {"type": "array"},
        model_of=only_reranker,
    ),
    Endpoint("/answer", "Answer a question by parts of a text, as model.answer", answer, ANSWER, ANSWERED),
)  # fmt: skip
