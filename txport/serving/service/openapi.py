"""The OpenAPI description of the service, from the same table of fields as the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from txport.serving.service.calls import Endpoint
from txport.serving.service.errors import is_v2
from txport.serving.service.fields import RELOAD
from txport.serving.service.schema import Schema
from txport.version import __version__

ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
V2_ERROR: Schema = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
STATUSES = {
    "400": "A field is unknown, missing or wrong, or the model can't take the input.",
    "401": "The API key is missing or wrong.",
    "404": "There is no such model.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "415": "The body has another type.",
    "429": "The queue is full; `Retry-After` has the seconds to wait.",
    "500": "The service failed.",
    "503": "Memory, or something that the request needs, is not there.",
    "504": "The deadline has passed.",
}
PAGES = {
    "/health": ("The process runs", {"type": "object"}),
    "/ready": ("All models are loaded (503 before that)", {"type": "object"}),
    "/metrics": ("Metrics for Prometheus", None),
    "/v1/models": ("The models", {"type": "object"}),
    "/v1/models/{model}": ("One model", {"type": "object"}),
    "/v2": ("The server, as the Open Inference Protocol", {"type": "object"}),
    "/v2/health/live": ("Like /health", {"type": "object"}),
    "/v2/health/ready": ("Like /ready", {"type": "object"}),
    "/v2/models/{model}": ("Inputs and outputs of an encoder-only model", {"type": "object"}),
    "/v2/models/{model}/ready": ("Whether a model is loaded", {"type": "object"}),
}


def describe(endpoints: Sequence[Endpoint], *, is_admin: bool) -> dict[str, object]:
    """Return the description; `is_admin`: with `/admin/reload`, and keys."""
    paths: dict[str, object] = {path: {"get": _page(path, *told)} for path, told in PAGES.items()}
    for each in endpoints:
        answers = {"application/json": {"schema": each.returns}}
        paths[each.path] = {"post": _operation(each.path, each.summary, each.body.schema, each.kind, answers)}
    if is_admin:
        answers = {"application/json": {"schema": {"type": "object"}}}
        told = "Load bundles again, and replace models if `txport verify` passes"
        paths["/admin/reload"] = {"post": _operation("/admin/reload", told, RELOAD.schema, "application/json", answers)}
    schemes = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "txport", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR, "V2Error": V2_ERROR},
            **({"securitySchemes": schemes} if is_admin else {}),
        },
        **({"security": [{"key": []}]} if is_admin else {}),
    }


def _operation(path: str, summary: str, body: Schema, kind: str, answers: Mapping[str, object]) -> dict[str, object]:
    return {
        "summary": summary,
        "parameters": _parameters(path),
        "requestBody": {"required": True, "content": {kind: {"schema": body}}},
        "responses": {"200": {"description": "The result", "content": answers}, **_errors(path, STATUSES)},
    }


def _page(path: str, summary: str, schema: Schema | None) -> dict[str, object]:
    content = {"text/plain": {}} if schema is None else {"application/json": {"schema": schema}}
    found = {"200": {"description": "The result", "content": content}}
    kept = {status: STATUSES[status] for status in ("401", "404")}
    more = {"503": {"description": "Not yet", "content": content}} if "ready" in path else {}
    return {"summary": summary, "parameters": _parameters(path), "responses": {**found, **_errors(path, kept), **more}}


def _errors(path: str, statuses: Mapping[str, str]) -> dict[str, object]:
    content = {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{'V2Error' if is_v2(path) else 'Error'}"}}
    }
    return {status: {"description": told, "content": content} for status, told in statuses.items()}


def _parameters(path: str) -> list[object]:
    named = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return [named] if "{model}" in path else []
