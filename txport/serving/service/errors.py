"""Errors of the service: status, kind and code of each, and the bodies that tell them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from txport import errors
from txport.errors import TxportError

INVALID = "invalid_request_error"


class InvalidRequestError(TxportError, ValueError):
    """A request is not such as its endpoint takes; `param` is the field, `code` a word for programs."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


@dataclass(frozen=True)
class Failure:
    """How an error is told: an HTTP status, OpenAI's `type` and `code`, and more headers."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] | None = None

    def body(self, path: str) -> dict[str, object]:
        """Return the body, in OpenAI's shape; at a path of the Open Inference Protocol, in its shape."""
        if is_v2(path):
            return {"error": self.message}
        told = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": told}


def is_v2(path: str) -> bool:
    """Return whether a path is one of the Open Inference Protocol."""
    return path == "/v2" or path.startswith("/v2/")


KINDS: tuple[tuple[type[Exception], int, str, str | None], ...] = (  # the first that fits
    (errors.NoRoomError, 400, INVALID, "context_length_exceeded"),
    (errors.LongTextError, 400, INVALID, "context_length_exceeded"),
    (errors.TextError, 400, INVALID, None),
    (errors.AudioError, 400, INVALID, None),
    (errors.TokenError, 400, INVALID, None),
    (errors.UnsupportedError, 400, INVALID, None),
    (errors.DeadlineError, 504, "timeout_error", "deadline_exceeded"),
    (errors.EngineError, 503, "server_error", None),
    (MemoryError, 503, "server_error", "out_of_memory"),
    (errors.UnavailableError, 503, "server_error", None),
)


def failure_of(error: BaseException) -> Failure:
    """Return how an error is told; one that is not about the request says nothing of the machine."""
    if isinstance(error, InvalidRequestError):
        kind = {401: "authentication_error", 403: "permission_error"}.get(error.status, INVALID)
        closes = {"Connection": "close"} if error.status in (408, 413) else None  # the rest of the body is not read
        return Failure(error.status, kind, str(error), error.param, error.code, closes)
    if isinstance(error, errors.QueueFullError):
        wait = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
        return Failure(429, "rate_limit_error", str(error), code="queue_full", headers=wait)
    for each, status, said, code in KINDS:
        if isinstance(error, each):
            return Failure(status, said, str(error) or "not enough memory", code=code)
    return Failure(500, "server_error", "the service failed; its log has the reason under the request's id")
