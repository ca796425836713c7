"""The service as an ASGI application: its routes, its answers and their life."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping
from dataclasses import dataclass
from os import PathLike, fspath

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from txport.api.model import Model
from txport.serving.engine import BUDGET, QUEUE, SLOTS
from txport.serving.service.bodies import Limits, read_body
from txport.serving.service.calls import Call, Endpoint, Events, Raw, Result
from txport.serving.service.errors import Failure, InvalidRequestError, failure_of
from txport.serving.service.guards import App, Guards, Receive, Scope, Send, gone, refuse, require_keys, tell_error
from txport.serving.service.metrics import Metrics
from txport.serving.service.models import Models, Served, Sizes, Source
from txport.serving.service.routes import audio, encoding, generation, inference, system

logger = logging.getLogger("txport.serving")
HELD = 4  # the largest recordings that a model of speech holds
ENDPOINTS: tuple[Endpoint, ...] = (
    *generation.ENDPOINTS,
    *encoding.ENDPOINTS,
    *audio.ENDPOINTS,
    *inference.ENDPOINTS,
)
PATHS = {each.path for each in ENDPOINTS}


@dataclass(frozen=True)
class Service:
    """The ASGI application; `models` are what it serves, `metrics` what it counts."""

    models: Models
    metrics: Metrics
    app: App

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop with the server (ASGI's lifespan)."""
        try:
            await self.app(scope, receive, send)
        finally:
            self.models.leave(scope.get("state", {}))

    def refusal(self, path: str) -> Failure | None:
        """Return and count the answer to a request at an endpoint that no model has room for; None for others."""
        error = self.models.full(self.models.entering)
        if error is None or path not in PATHS:
            return None
        failure = failure_of(error)
        self.metrics.failures.labels("unknown", failure.code).inc()
        self.metrics.answers.labels(path, str(failure.status)).inc()
        return failure


def app(
    models: Mapping[str, Model | Source | str | PathLike[str]],
    *,
    api_keys: Collection[str] = (),
    slots: int = SLOTS,
    queue: int = QUEUE,
    budget: int = BUDGET,
    max_body: int = Limits.body,
    max_audio: int = Limits.audio,
    body_seconds: float = Limits.seconds,
) -> Service:
    """Return the service of models by name, as an ASGI application for a server of one's own.

    A model is loaded, or a bundle that the lifespan of the application loads; it starts an engine for each, with
    `slots`, `queue` and `budget` of `Model.engine`, and closes it. With `api_keys`, requests need one of them, and
    `/admin/reload` is there. A body has up to `max_body` bytes, with audio `max_audio`, and arrives in `body_seconds`.
    Raises `UnsupportedError` for a key that is too short.
    """
    require_keys(api_keys, "api_keys")
    given = {name: Source(fspath(each)) if isinstance(each, str | PathLike) else each for name, each in models.items()}
    registry = Models(given, Sizes(slots=slots, queue=queue, budget=budget, audio=HELD * max_audio))
    metrics = Metrics(registry.loads)
    bounds = Limits(max_body, max_audio, body_seconds)
    routes = [Route(each.path, Answer(each, registry, metrics, bounds), methods=["POST"]) for each in ENDPOINTS]
    routes += system.routes(registry, metrics, bounds, ENDPOINTS, is_admin=bool(api_keys))

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        noting = asyncio.ensure_future(metrics.keep_fresh())
        try:
            await registry.start()
            yield
        finally:
            noting.cancel()
            await registry.close()

    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _no_route})
    return Service(registry, metrics, Guards(inner, tuple(api_keys), metrics))


class Answer:
    """Answers the requests at one endpoint."""

    def __init__(self, endpoint: Endpoint, models: Models, metrics: Metrics, limits: Limits) -> None:
        self.path = endpoint.path
        self._endpoint = endpoint
        self._models = models
        self._metrics = metrics
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, check it, run the endpoint and send what it returns; an error is told in OpenAI's shape."""
        name = "unknown"
        try:
            if (full := self._models.full()) is not None:
                raise full  # before the body is read
            call = await self._read(Request(scope, receive))
            served = self._endpoint.served(call)
            name = served.name
            async with self._models.use(served):
                asyncio.get_running_loop().call_soon(self._models.leave, scope["state"])  # when it is submitted
                if not await unless_gone(receive, self._run(call, served, send)):
                    self._metrics.cancelled.labels(name).inc()
        except Exception as error:
            failure = tell_error(error, scope)
            self._metrics.failures.labels(name, failure.code or failure.kind).inc()
            await refuse(send, scope, failure)

    async def _read(self, request: Request) -> Call:
        """Return the call of a request whose fields were checked."""
        values, binary = await read_body(request, self._endpoint.kind, self._limits)
        checked = self._endpoint.body.read(values)
        state = request.scope["state"]
        path = request.path_params
        return Call(state["id"], checked, path, self._models, self._metrics, state["log"], binary=binary)

    async def _run(self, call: Call, served: Served, send: Send) -> None:
        result = await self._endpoint.run(call, served)
        if isinstance(result, Events):
            await _stream(result, call, send)
        else:
            await _response(result)({"type": "http"}, gone, send)


async def unless_gone(receive: Receive, work: Coroutine[object, object, None]) -> bool:
    """Do the work, and return True; cancel it and return False if the caller goes away."""
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        await task
        return True
    finally:
        left.cancel()
        task.cancel()
        await asyncio.gather(left, task, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    """Return when the caller goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _response(result: Result) -> Response:
    if isinstance(result, Raw):
        return Response(result.content, media_type=result.kind, headers=dict(result.headers))
    return JSONResponse(result)


async def _stream(result: Events, call: Call, send: Send) -> None:
    """Send server-sent events; an error before the first is the answer, a later one is the last event."""
    events = result.events
    first = await anext(events)
    headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": [*headers, (b"x-accel-buffering", b"no")]})

    async def tell(event: object) -> None:
        told = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        await send({"type": "http.response.body", "body": f"data: {told}\n\n".encode(), "more_body": True})

    try:
        await tell(first)
        async for event in events:
            await tell(event)
        await tell("[DONE]")
    except Exception as error:
        failure = tell_error(error, {"state": {"id": call.id}})
        call.log["error"] = failure.message
        await tell(failure.body(""))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _no_route(request: Request, error: Exception) -> Response:
    """Tell in OpenAI's shape that there is no such endpoint, or not with this method."""
    assert isinstance(error, HTTPException)
    what = {404: f"there is no endpoint {request.url.path[:100]}; /openapi.json lists them"}
    what[405] = f"{request.method} is not for this endpoint; use {(error.headers or {}).get('Allow', 'POST')}"
    failure = InvalidRequestError(what.get(error.status_code, error.detail), status=error.status_code)
    return JSONResponse(failure_of(failure).body(request.url.path), error.status_code, headers=error.headers)
