"""What tells of the service itself: health, metrics, models, the page for people; and loading bundles again."""

from __future__ import annotations

import importlib.resources
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from txport.errors import TxportError
from txport.serving.service.bodies import JSON, Limits, read_body
from txport.serving.service.calls import Endpoint
from txport.serving.service.errors import InvalidRequestError
from txport.serving.service.fields import RELOAD
from txport.serving.service.guards import Receive, Scope, Send, refuse, tell_error
from txport.serving.service.metrics import Metrics
from txport.serving.service.models import Models, Served
from txport.serving.service.openapi import describe
from txport.serving.service.routes import inference

POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
Show = Callable[[Request], Awaitable[Response]]


class Page:
    """An endpoint that is not of one model; an error is told as elsewhere."""

    def __init__(self, path: str, show: Show) -> None:
        self.path = path
        self._show = show

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        try:
            response = await self._show(Request(scope, receive))
        except Exception as error:
            await refuse(send, scope, tell_error(error, scope))
        else:
            await response(scope, receive, send)


def routes(
    models: Models, metrics: Metrics, limits: Limits, endpoints: Sequence[Endpoint], *, is_admin: bool
) -> list[Route]:
    """Return the routes; `is_admin`: with `/admin/reload`."""
    description = JSONResponse(describe(endpoints, is_admin=is_admin))
    html = importlib.resources.files("txport.serving.service").joinpath("page.html").read_text(encoding="utf-8")
    page = Response(html, media_type="text/html", headers={"Content-Security-Policy": POLICY})

    async def measured(_: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def reload(request: Request) -> Response:
        values, _ = await read_body(request, JSON, limits, may_be_empty=True)
        name = RELOAD.read(values).get("model")
        try:
            return JSONResponse({"reloaded": await models.reload_all(str(name) if name else None)})
        except InvalidRequestError:
            raise
        except TxportError as error:
            raise InvalidRequestError(str(error), code="not_reloaded", status=409) from error

    pages: dict[str, Show] = {
        "/": _always(page),
        "/openapi.json": _always(description),
        "/metrics": measured,
        "/v2": _always(JSONResponse(inference.server())),
        "/v2/health/live": _always(JSONResponse({"live": True})),
        "/health": _always(JSONResponse({"status": "ok"})),
        **_of_models(models),
    }
    found = [Route(path, Page(path, show), methods=["GET"]) for path, show in pages.items()]
    return found + ([Route("/admin/reload", Page("/admin/reload", reload), methods=["POST"])] if is_admin else [])


def _always(response: Response) -> Show:
    async def show(_: Request) -> Response:
        return response

    return show


def _of_models(models: Models) -> dict[str, Show]:
    async def ready(_: Request) -> Response:
        is_ready = models.is_ready
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def listed(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(each) for each in models]})

    async def one(request: Request) -> Response:
        return JSONResponse(_card(models.get(request.path_params["model"])))

    async def tensors(request: Request) -> Response:
        return JSONResponse(inference.described(models.get(request.path_params["model"])))

    async def can_run(request: Request) -> Response:
        served = models.get(request.path_params["model"])
        return JSONResponse({"name": served.name, "ready": served.is_open}, 200 if served.is_open else 503)

    return {
        "/ready": ready,
        "/v2/health/ready": ready,
        "/v1/models": listed,
        "/v1/models/{model:path}": one,
        "/v2/models/{model}": tensors,
        "/v2/models/{model}/ready": can_run,
    }


def _card(served: Served) -> dict[str, object]:
    """Return a model as OpenAI's list has it; `task` says what it does, `is_chat` that it has a chat template."""
    shown = {"task": served.use, "is_chat": served.model.is_chat, "is_reranker": served.is_reranker}
    return {"id": served.name, "object": "model", "created": served.created, "owned_by": "txport", **shown}
