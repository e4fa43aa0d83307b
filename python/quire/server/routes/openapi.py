"""``/openapi.json`` and ``/docs``: the routes as a document that tools read."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ..calls import Call, Reply

if TYPE_CHECKING:
    from ..calls import Route

__all__ = ["docs", "document", "openapi"]

_ERRORS = {
    "400": "A field or body that does not hold",
    "401": "No key that the server knows",
    "403": "A host or origin that is not allowed",
    "404": "No such model or answer",
    "413": "A body that is too large",
    "415": "A body that is compressed or not JSON",
    "429": "Too many requests: come again",
    "500": "A bug",
    "501": "What no model that loads does",
    "503": "Not ready: come again",
    "504": "Not complete in time",
}


def document(routes: Iterable[Route], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of some routes."""
    rows = list(routes)
    bodies = {row.body for row in rows if row.body is not None}
    schemas, components = msgspec.json.schema_components(
        sorted(bodies, key=lambda body: body.__qualname__ + body.__module__),
        ref_template="#/components/schemas/{name}",
    )
    by_body = dict(zip(sorted(bodies, key=lambda body: body.__qualname__ + body.__module__), schemas, strict=True))
    paths: dict[str, Any] = {}
    for row in rows:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, by_body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": version},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(row: Route, by_body: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": row.summary,
        "tags": [row.dialect.value],
        "responses": {"200": {"description": "The answer"}}
        | {status: {"description": text} for status, text in _ERRORS.items()},
        "security": [{}] if row.path == "/health" else [{"key": []}, {}],
    }
    names = re.findall(r"\{(\w+)(?::\w+)?\}", row.path)
    if names:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in names
        ]
    if row.body is not None:
        content = {"application/json": {"schema": by_body[row.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


async def openapi(call: Call[None]) -> Reply:
    """The document."""
    from ..app import ROUTES

    return Reply.json(document(ROUTES, call.service.version))


async def docs(call: Call[None]) -> Reply:
    """The routes for people, as a page without scripts."""
    from ..app import ROUTES

    rows = "".join(
        f"<tr><td>{row.method}</td><td><code>{html.escape(row.path)}</code></td>"
        f"<td>{html.escape(row.summary)}</td><td>{row.dialect.value}</td></tr>"
        for row in ROUTES
    )
    page = (
        "<!doctype html><meta charset=utf-8><title>Quire: routes</title>"
        "<style>body{font:15px/1.5 system-ui;margin:2rem auto;max-width:60rem;padding:0 1rem}"
        "td{padding:.2rem .8rem .2rem 0;vertical-align:top}</style>"
        "<h1>Routes</h1><p>Fields and limits of every body: <a href=openapi.json>openapi.json</a>.</p>"
        f"<table>{rows}</table>"
    )
    return Reply(page.encode(), media_type=b"text/html; charset=utf-8")
