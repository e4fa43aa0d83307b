"""Write docs/http.md: every route of the server and the fields of its body, from the routes' own table.

PYTHONPATH=python python ci/make_http_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from quire.server.app import ROUTES
from quire.server.routes.openapi import document

PAGE = Path(__file__).resolve().parent.parent / "docs" / "http.md"
HEAD = """# Routes and fields

This page lists every route of `quire serve` and the fields of its body. A running server shows the same at `/docs` and,
for programs, at `/openapi.json`. [The server](server.md) explains what the routes do.

Fields that are unknown or ignored are named in the header `x-quire-ignored` of the answer; `--strict` rejects unknown
ones. An unsupported field gets status 400. `ci/make_http_reference.py` writes this page from the server's own table of
routes.
"""
DIALECTS = {
    "openai": "OpenAI and Quire's own",
    "anthropic": "Anthropic",
    "llama.cpp": "llama.cpp",
    "ollama": "Ollama",
}
METHODS = ("get", "post", "delete")


def type_of(schema: dict[str, Any]) -> str:
    """Describe a schema in a few words."""
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(each) for each in schema["anyOf"]))
    if "const" in schema:
        return f"`{schema['const']!r}`"
    if "enum" in schema:
        return " ".join(f"`{value!r}`" for value in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = type_of(schema["items"]) if schema.get("items") else ""
        return f"list of ({items})" if " or " in items else f"list of {items}" if items else "list"
    return " ".join([kind, *_limits(schema)])


def _limits(schema: dict[str, Any]) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None:
        yield f"from {_number(low)}" if high is not None else f"of at least {_number(low)}"
    if "exclusiveMinimum" in schema:
        yield f"above {_number(schema['exclusiveMinimum'])}" + (" and" if high is not None else "")
    if high is not None:
        yield f"to {_number(high)}" if low is not None else f"at most {_number(high)}"


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def fields(component: dict[str, Any]) -> list[str]:
    """Return the lines of a body's table."""
    required, refused = set(component.get("required", ())), set(component.get("x-refused", ()))
    lines = ["", "| field | type |", "|---|---|"]
    for name, schema in component.get("properties", {}).items():
        if name not in refused:
            lines.append(
                f"| `{name}`{' (required)' if name in required else ''} | {type_of(schema).replace('|', '/')} |"
            )
    for key, text in (("x-refused", "Unsupported"), ("x-without-effect", "Ignored")):
        if names := component.get(key):
            lines += ["", f"{text}: {', '.join(f'`{name}`' for name in names)}."]
    return lines


def main() -> None:
    described = document(tuple(ROUTES), "")
    components = described["components"]["schemas"]
    by_dialect: dict[str, dict[tuple[str, str], list[str]]] = {}
    for path, operations in described["paths"].items():
        for method in METHODS:
            if (operation := operations.get(method)) is None:
                continue
            content = next(iter(operation.get("requestBody", {}).get("content", {}).values()), {})
            body = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            routes = by_dialect.setdefault(operation["tags"][0], {})
            routes.setdefault((operation["summary"], body), []).append(f"`{method.upper()} {path}`")
    lines = [HEAD]
    shown: dict[str, str] = {}
    for dialect, title in DIALECTS.items():
        lines += [f"## {title}", ""]
        plain = [(summary, paths) for (summary, body), paths in by_dialect.get(dialect, {}).items() if not body]
        if plain:
            lines += ["| route without a body | description |", "|---|---|"]
            lines += [f"| {', '.join(paths)} | {summary} |" for summary, paths in plain] + [""]
        for (summary, body), paths in by_dialect.get(dialect, {}).items():
            if not body:
                continue
            lines += [f"### {summary}: {paths[0]}", ""]
            if paths[1:]:
                lines += [f"Also {', '.join(paths[1:])}.", ""]
            lines += [f"The fields of {shown[body]}."] if body in shown else fields(components[body])[1:]
            shown.setdefault(body, paths[0])
            lines.append("")
    unknown = by_dialect.keys() - DIALECTS.keys()
    if unknown:
        raise SystemExit(f"no title for dialects {sorted(unknown)}")
    text = "\n".join(lines).rstrip() + "\n"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
