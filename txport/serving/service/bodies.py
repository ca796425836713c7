"""Bodies of requests: bounded in bytes and in time, and read as JSON or as a form."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from dataclasses import dataclass
from typing import cast

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from txport.serving.service.errors import InvalidRequestError, is_v2
from txport.serving.service.guards import Message, Receive

JSON = "application/json"
FORM = "multipart/form-data"
TENSORS = "application/octet-stream"
LENGTH_HEADER = "inference-header-content-length"  # of the Open Inference Protocol: the bytes of JSON before tensors
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # spelled in JSON; alone, it is no character
EXACT = 2**53  # whole numbers below are exact as floats
MAX_FIELDS, MAX_FIELD = 32, 1 << 16  # fields of a form, and bytes of one
DEPTH = "the body has lists or objects in one another, too many to be read"


@dataclass(frozen=True)
class Limits:
    """Bounds of one request: bytes of a body, of a body with audio, and seconds until a body has arrived."""

    body: int = 4 << 20
    audio: int = 100 << 20
    seconds: float = 30.0


async def read_body(request: Request, kind: str, limits: Limits, *, may_be_empty: bool = False) -> tuple[object, bytes]:
    """Return the values of a body of a type, JSON or a form, and its binary part; {} if it `may_be_empty` and is.

    Raises `InvalidRequestError`: 415 for another type, 413 and 408 beyond the limits, 400 for what can't be read.
    """
    is_form = kind != JSON
    most = limits.audio if is_form else limits.body
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > most:
        raise too_large(most)
    bounded = Request(request.scope, within(request.receive, most, limits.seconds))
    if may_be_empty and not await bounded.body():
        return {}, b""
    require_kind(request, kind)
    return await (read_form(bounded) if is_form else read_json(bounded))


def within(receive: Receive, most: int, seconds: float) -> Receive:
    """Return `receive` that raises for a body of more than `most` bytes, or one that takes longer than `seconds`."""
    until = time.monotonic() + seconds
    size = 0

    async def read() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout(until - time.monotonic()):
                message = await receive()
        except TimeoutError:
            what = f"the body did not arrive in {seconds:g} seconds"
            raise InvalidRequestError(what, code="request_timeout", status=408) from None
        size += len(message.get("body", b""))
        if size > most:
            raise too_large(most)
        return message

    return read


def too_large(most: int) -> InvalidRequestError:
    """Return the error of a body that is too large."""
    return InvalidRequestError(f"a body may have {most} bytes here", code="body_too_large", status=413)


def require_kind(request: Request, kind: str) -> None:
    """Raise `InvalidRequestError` (415) for a compressed body, and for another type; a web page's form is none of JSON.

    Clients of the Open Inference Protocol name no type, or that of binary tensors.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != kind and not (is_v2(request.url.path) and given in ("", TENSORS)):
        raise InvalidRequestError(f"the content type must be {kind}, got {given[:100]!r}", status=415)
    if (coding := request.headers.get("content-encoding", "identity")) != "identity":
        raise InvalidRequestError(f"a body can't be compressed here, got the encoding {coding[:100]!r}", status=415)


async def read_json(request: Request) -> tuple[object, bytes]:
    """Return the JSON of a body, and what follows it if a header tells its length."""
    content = await request.body()
    length = request.headers.get(LENGTH_HEADER, "")
    size = int(length) if length.isdecimal() and len(length) < 12 else len(content)
    try:
        values = json.loads(content[:size].decode("utf-8-sig"), parse_constant=_no_number, parse_float=_number)
        if SURROGATE.search(content):
            json.dumps(values, ensure_ascii=False).encode()  # raises for what no answer could spell
        return values, content[size:]
    except RecursionError:
        raise InvalidRequestError(DEPTH, code="invalid_json") from None
    except ValueError as error:  # also of bytes or characters that are no UTF-8
        raise InvalidRequestError(f"the body is not JSON: {error}"[:300], code="invalid_json") from None


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")


def _number(text: str) -> int | float:
    """Return a number; 1.0 is a whole number, as in JSON Schema."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:20]} is too large")
    return int(value) if value.is_integer() and abs(value) < EXACT else value


async def read_form(request: Request) -> tuple[object, bytes]:
    """Return the fields of a form, with numbers and switches as JSON has them, and the content of its file."""
    values: dict[str, object] = {}
    content = b""
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD) as form:
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    values[name] = value.filename or "file"
                    content = await value.read()
                elif name.endswith("[]"):
                    values[name] = [*cast("list[object]", values.get(name, [])), value]
                else:
                    values[name] = _plain(value)
    except HTTPException as error:
        raise InvalidRequestError(f"the body is not a form: {error.detail}") from None
    if not content and "file" in values:
        raise InvalidRequestError("file must be an uploaded file, and not be empty", param="file")
    return values, content


def _plain(value: str) -> object:
    try:
        found: object = json.loads(value, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return value
    return found if found is None or isinstance(found, bool | int | float) else value
