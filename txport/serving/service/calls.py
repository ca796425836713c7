"""One request at an endpoint: what it is given, what it may return, and how long it lives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.metrics import Metrics
from txport.serving.service.models import Models, Served
from txport.serving.service.schema import Body, Schema

Item = TypeVar("Item")


@dataclass
class Call:
    """A request whose body was checked. `log` are more fields of its line in the log."""

    id: str
    values: Mapping[str, object]
    path: Mapping[str, str]
    models: Models
    metrics: Metrics
    log: dict[str, object]
    begin: float = field(default_factory=time.perf_counter)
    binary: bytes = b""

    def text(self, name: str, default: str = "") -> str:
        """Return a field that is a string."""
        return str(self.values.get(name, default))

    def texts(self, name: str) -> list[str]:
        """Return a field that is a text or a list of them, as a list."""
        value = self.values[name]
        return [value] if isinstance(value, str) else cast("list[str]", value)

    def given(self, *names: str) -> dict[str, object]:
        """Return the named fields that are given."""
        return {name: self.values[name] for name in names if name in self.values}

    async def batched(
        self,
        served: Served,
        work: Callable[..., list[Item]],
        items: Sequence[object],
        options: Mapping[str, object],
    ) -> list[Item]:
        """Return the results of items of an encoder-only model; a caller that goes away removes them."""
        assert served.batches is not None
        return cast("list[Item]", await asyncio.wrap_future(served.batches.submit(work, items, options)))

    def finish(self, model: str, prompt: int, generated: int = 0, reasons: Sequence[str] = ()) -> None:
        """Count a request that succeeded."""
        self.log |= {"model": model, "prompt_tokens": prompt, "generation_tokens": generated}
        self.metrics.finished(model, prompt, generated, reasons or ("stop",), self.begin)


@dataclass(frozen=True)
class Events:
    """A stream of server-sent events; `is_done`: it ends with OpenAI's [DONE]."""

    events: AsyncIterator[Mapping[str, object]]


@dataclass(frozen=True)
class Raw:
    """A body that is not JSON."""

    content: bytes
    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)


Result = Mapping[str, object] | Sequence[object] | Events | Raw
Handler = Callable[[Call, Served], Awaitable[Result]]


@dataclass(frozen=True)
class Endpoint:
    """An endpoint of one model: its path, what it does in one line, the fields of its body and its handler.

    `model_of` returns the model that a request is for, by default that of its field `model`. `kind` is the type of the
    body.
    """

    path: str
    summary: str
    run: Handler
    body: Body
    returns: Schema
    kind: str = "application/json"
    model_of: Callable[[Call], Served] | None = None

    def served(self, call: Call) -> Served:
        """Return the model of a request; raise `InvalidRequestError` (404) if there is none."""
        if self.model_of is not None:
            return self.model_of(call)
        return call.models.get(call.text("model"))


NEEDED = {
    "continue": "a causal model",
    "translate": "a seq2seq model",
    "transcribe": "a speech model",
    "embed": "a model that gives vectors",
    "answer": "a model that answers questions",
}


def require(served: Served, use: str) -> None:
    """Raise `InvalidRequestError` for a model of another use than an endpoint needs."""
    require_fit(served, served.use == use, NEEDED[use])


def require_fit(served: Served, is_fit: bool, needed: str) -> None:
    """Raise `InvalidRequestError` for a model that does not fit an endpoint."""
    if not is_fit:
        what = f"this endpoint needs {needed}; {served.name} is one to {served.use}"
        raise InvalidRequestError(what, param="model", code="model_not_supported")
