"""Describe the routes from their table and the bodies' wire types, as OpenAPI and as a readable page."""

from __future__ import annotations

import inspect
import re
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from ..failures import Dialect
from ..listener import sse
from ..listener.replies import Reply
from ..listener.request_context import RequestContext

if TYPE_CHECKING:
    from ..listener.request_context import Route

__all__ = ["docs", "document", "openapi", "page"]

_REFERENCE = "#/components/schemas/"
_PLACE = __name__.rpartition(".")[0].encode() + b"."
_STATUSES = {
    "400": "Invalid body or field",
    "401": "Missing or invalid API key",
    "403": "Host or origin not allowed",
    "404": "No such model or response",
    "408": "The body arrived too slowly",
    "413": "The body is too large",
    "415": "The body is compressed or not JSON",
    "429": "Too many requests: try again later",
    "500": "Internal server error",
    "501": "Not supported by any model",
    "503": "Not ready: try again later",
    "504": "Time limit exceeded",
}
_ERRORS: dict[Dialect, dict[str, Any]] = {
    Dialect.OPENAI: {"error": {"type": "object", "required": ["message", "type", "param", "code"]}},
    Dialect.LLAMA_CPP: {"error": {"type": "object", "required": ["message", "type", "code"]}},
    Dialect.ANTHROPIC: {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"]},
    },
    Dialect.OLLAMA: {"error": {"type": "string"}},
}
# Media types of routes whose answer is not JSON.
_MEDIA = {"/metrics": "text/plain", "/docs": "text/html", "/": "text/html", "/page/{file}": "text/javascript"}
# The page needs no script and nothing from elsewhere.
_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #222;
       background: #fff; }
h2 { font-size: 1rem; margin: 2rem 0 .3rem; } code { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { text-align: left; vertical-align: top; padding: .15rem .8rem .15rem 0; border-bottom: 1px solid #ddd; }
p { margin: .3rem 0; } .refused { color: #666; font-size: 14px; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } td, th { border-color: #444; } }
"""


async def openapi(context: RequestContext[None]) -> Reply:
    """Return the OpenAPI 3.1 description."""
    return Reply(_encoded_document(tuple(context.routes), context.service.version))


async def docs(context: RequestContext[None]) -> Reply:
    """Return the description as a page."""
    headers = ((b"content-security-policy", _POLICY), (b"x-content-type-options", b"nosniff"))
    return Reply(
        _encoded_page(tuple(context.routes), context.service.version),
        media_type=b"text/html; charset=utf-8",
        headers=headers,
    )


@cache
def _encoded_document(routes: tuple[Route, ...], version: str) -> bytes:
    return sse.encode(document(routes, version))


@cache
def _encoded_page(routes: tuple[Route, ...], version: str) -> bytes:
    return page(document(routes, version)).encode()


def document(routes: tuple[Route, ...], version: str) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document of a table of routes."""
    bodies = list(dict.fromkeys(route.body for route in routes if route.body is not None))
    made = msgspec.json.schema_components(bodies, ref_template=_REFERENCE + "{name}")
    # Bodies of several dialects share a name, so they are told apart by module; the package's path is removed.
    references, components = msgspec.json.decode(sse.encode(made).replace(_PLACE, b""))
    schemas = dict(zip(bodies, references, strict=True))
    for body, reference in schemas.items():
        component = components[reference["$ref"].removeprefix(_REFERENCE)]
        # Unknown fields are accepted (ignored and named in a header) unless the server is strict.
        component.pop("additionalProperties", None)
        if "file" in component["properties"]:  # the bytes of a form, which are not encoded
            component["properties"]["file"] = {"type": "string", "contentMediaType": "application/octet-stream"}
        for name, values in getattr(body, "refused", {}).items():
            component["properties"].setdefault(name, {"enum": [None, *values], "description": "Not supported."})
        if refused := sorted(getattr(body, "refused", {})):
            component["x-refused"] = refused
        if hints := sorted(getattr(body, "hints", {})):
            component["x-without-effect"] = hints
        if example := vars(body).get("example"):
            component["examples"] = [example]
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": version},
        "paths": paths,
        "components": {
            "schemas": {**components, **{_error_name(dialect): _error(dialect) for dialect in Dialect}},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        # A server without keys asks for none.
        "security": [{"key": []}, {}],
    }


def _operation(route: Route, schemas: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    name = re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_")
    error = {"application/json": {"schema": {"$ref": _REFERENCE + _error_name(route.dialect)}}}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "description": inspect.getdoc(route.handler) or route.summary,
        "tags": [route.dialect.value],
        "responses": {
            "200": {"description": "The answer", "content": {media: {} for media in _media_of(route)}},
            **{status: {"description": text, "content": error} for status, text in _STATUSES.items()},
        },
    }
    if parameters := re.findall(r"\{(\w+)(?::\w+)?\}", route.path):
        operation["parameters"] = [
            {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for parameter in parameters
        ]
    if route.path == "/health":
        operation["security"] = [{}]
    if route.body is not None:
        kind = "multipart/form-data" if route.is_form else "application/json"
        content = {kind: {"schema": schemas[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _media_of(route: Route) -> list[str]:
    if route.path in _MEDIA:
        return [_MEDIA[route.path]]
    streams = route.body is not None and "stream" in route.body.__struct_fields__
    stream = "application/x-ndjson" if route.dialect is Dialect.OLLAMA else "text/event-stream"
    return ["application/json", stream] if streams else ["application/json"]


def _error_name(dialect: Dialect) -> str:
    return f"Error-{dialect.value}"


def _error(dialect: Dialect) -> dict[str, Any]:
    properties = _ERRORS[dialect]
    return {"type": "object", "properties": properties, "required": list(properties)}


def page(described: dict[str, Any]) -> str:
    """Render a document of ``document`` as a page: each route, the fields of its body and their limits."""
    parts = []
    schemas = described["components"]["schemas"]
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2>")
            parts.append(f"<p>{escape(operation['summary'])} ({escape(operation['tags'][0])})</p>")
            if operation["description"] != operation["summary"]:
                parts.append(f"<p>{escape(operation['description'])}</p>")
            if "requestBody" in operation:
                (content,) = operation["requestBody"]["content"].values()
                parts.append(_table(content["schema"], schemas))
    title = f"Quire {escape(described['info']['version'])}: routes"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f'</head><body><h1>{title}</h1><p>As OpenAPI: <a href="openapi.json">openapi.json</a></p>'
        f"{''.join(parts)}</body></html>"
    )


def _table(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    body = schemas[schema["$ref"].removeprefix(_REFERENCE)]
    required = body.get("required", [])
    rows = []
    for name, field in body["properties"].items():
        if name in body.get("x-refused", ()):
            continue
        default = "required" if name in required else escape(_short(field.get("default")))
        rows.append(f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(field))}</td><td>{default}</td></tr>")
    head = "<tr><th>field</th><th>type</th><th>default</th></tr>"
    table = f"<p>{escape(body.get('description', ''))}</p><table>{head}{''.join(rows)}</table>"
    if refused := body.get("x-refused"):
        table += f'<p class="refused">Unsupported, rejected if set: {escape(", ".join(refused))}</p>'
    if hints := body.get("x-without-effect"):
        table += f'<p class="refused">Ignored, and named in a header: {escape(", ".join(hints))}</p>'
    return table


def _short(value: Any) -> str:
    return "" if value is None else sse.encode(value).decode()[:80]


_WORDS = {
    "minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "minLength": "{} characters or more",
    "maxLength": "at most {} characters", "minItems": "{} entries or more", "maxItems": "at most {} entries",
    "maxProperties": "at most {} entries", "pattern": "like {}",
}  # fmt: skip


def _kind(schema: dict[str, Any]) -> str:
    """Describe a schema in words."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    if "anyOf" in schema:
        return " or ".join(kind for kind in map(_kind, schema["anyOf"]) if kind != "null")
    if "enum" in schema:
        return "one of " + ", ".join(_short(value) for value in schema["enum"])
    kind = str(schema.get("type", "any value"))
    if isinstance(items := schema.get("items"), dict):
        kind += f" of ({_kind(items)})"
    limits = [words.format(schema[name]) for name, words in _WORDS.items() if name in schema]
    return ", ".join([kind, *limits])
