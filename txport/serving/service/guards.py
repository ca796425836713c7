"""What stands before every endpoint: request ids, API keys, limits of bodies, one line of log for each request."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from starlette.responses import JSONResponse

from txport.errors import EngineError, UnsupportedError
from txport.serving.service.errors import Failure, InvalidRequestError, failure_of
from txport.serving.service.metrics import Metrics
from txport.system.documents import DocumentError, read_lines

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("txport.serving")
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
LEAST_KEY = 16  # characters
LARGEST_KEYS = 1 << 20  # bytes of a file of keys
OPEN = ("/", "/health", "/ready", "/v2/health/live", "/v2/health/ready", "/openapi.json")  # these need no key
QUIET = (*OPEN[1:5], "/metrics")  # asked every few seconds, so that they are logged at DEBUG


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the API keys of a file, one a line; empty lines and lines that begin with # are none.

    Raises `UnsupportedError` if there is no key, or a key is short or has characters that a header can't have.
    """
    try:
        lines = [line.strip() for line in read_lines(path, LARGEST_KEYS)]
    except DocumentError as error:
        raise UnsupportedError(f"the API keys can't be read: {error}") from error
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    require_keys(keys, str(path))
    if not keys:
        raise UnsupportedError(f"{path} has no API key; write one a line")
    return keys


def require_keys(keys: Collection[str], where: str) -> None:
    """Raise `UnsupportedError` for a key that is too short, or that a header can't have."""
    for number, key in enumerate(keys, 1):
        if len(key) < LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key:
            what = f"at least {LEAST_KEY} visible ASCII characters without spaces"
            raise UnsupportedError(f"key {number} of {where} must have {what}")


class Guards:
    """The ASGI application around the endpoints."""

    def __init__(self, app: App, keys: Sequence[str], metrics: Metrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless its key is wrong."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        request_id = given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["state"] = {**scope.get("state", {}), "id": request_id, "log": {}}
        watched = Watched(send, request_id)
        begin = time.perf_counter()
        try:
            if not self._is_allowed(scope["path"], headers):
                await refuse(watched, scope, failure_of(UNKNOWN_KEY), {"WWW-Authenticate": "Bearer"})
            elif not self._keys and is_of_another_site(headers):
                await refuse(watched, scope, failure_of(ANOTHER_SITE))
            else:
                await self._app(scope, receive, watched)
        except asyncio.CancelledError:  # the service ends, and waits no longer
            if watched.status:
                raise
            await refuse(watched, scope, failure_of(EngineError("the service ends; send the request again")))
        finally:
            self._tell(scope, watched.status or 499, time.perf_counter() - begin)

    def _is_allowed(self, path: str, headers: dict[bytes, bytes]) -> bool:
        """Compare the key with all keys, each in constant time."""
        if not self._keys or path in OPEN:
            return True
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        found = [hmac.compare_digest(key.strip(), each) for each in self._keys]
        return kind.lower() == b"bearer" and any(found)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        """Log one line; a status of 499 is a caller that went away."""
        route = scope.get("endpoint")
        self._metrics.answers.labels(getattr(route, "path", "unknown"), str(status)).inc()
        told = {"request_id": scope["state"]["id"], "method": scope["method"], "path": scope["path"][:200]}
        told |= {"status": status, "seconds": round(seconds, 6), **scope["state"]["log"]}
        is_quiet = scope["path"] in QUIET and status < 400
        logger.log(logging.DEBUG if is_quiet else logging.INFO, "request", extra={"fields": told})


def is_of_another_site(headers: dict[bytes, bytes]) -> bool:
    """Return whether a browser sends a request for a page that is not this service's own."""
    origin = headers.get(b"origin")
    return origin is not None and origin.partition(b"://")[2] != headers.get(b"host")


ANOTHER_SITE = InvalidRequestError(
    "a page of another site can't use a service without API keys; behind a proxy, pass the header Host on",
    code="another_site",
    status=403,
)
UNKNOWN_KEY = InvalidRequestError(
    "a valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key", status=401
)


class Watched:
    """`send` with the request's id in the headers; `status` is that of the answer, 0 before there is one."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._id = request_id.encode()
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), (b"x-request-id", self._id)]
        await self._send(message)


def tell_error(error: Exception, scope: Scope) -> Failure:
    """Return how an error is told, and log one that is not about the request, with the request's id."""
    failure = failure_of(error)
    if failure.status == 500:
        logger.error("failed", exc_info=error, extra={"fields": {"request_id": scope["state"]["id"]}})
    return failure


async def refuse(send: Send, scope: Scope, failure: Failure, headers: dict[str, str] | None = None) -> None:
    """Send an error."""
    more = {**(failure.headers or {}), **(headers or {})}
    await JSONResponse(failure.body(scope["path"]), failure.status, headers=more)({"type": "http"}, gone, send)


async def gone() -> Message:
    """The `receive` of a response that reads nothing."""
    return {"type": "http.disconnect"}
