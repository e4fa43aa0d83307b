"""The description of the routes.

Oracles: JSON Schema's semantics, with jsonschema's validator if it is installed, against what the server rejects; the
table of routes; an HTML parser.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
from fake_engine import FakeEngine
from one_call import call, post
from quire.server.app import ROUTES


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    response = call("GET", "/openapi.json")
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def references(value: Any) -> list[str]:
    """Return every ``$ref`` inside."""
    if isinstance(value, list):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [found for item in value.values() for found in references(item)]


def test_every_route_is_described(described: dict[str, Any]) -> None:
    assert described["openapi"].startswith("3.1")
    assert {(m.upper(), p) for p, operations in described["paths"].items() for m in operations} == {
        (route.method, route.path) for route in ROUTES
    }
    operations = [operation for at in described["paths"].values() for operation in at.values()]
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    schemas = described["components"]["schemas"]
    for reference in references(described):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for route in ROUTES:
        operation = described["paths"][route.path][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None)
    assert not [name for name in schemas if name.startswith("quire.")]


def test_streams_and_parameters_are_described(described: dict[str, Any]) -> None:
    paths = described["paths"]

    def media(path: str, method: str = "post") -> list[str]:
        return list(paths[path][method]["responses"]["200"]["content"])

    assert media("/v1/chat/completions") == ["application/json", "text/event-stream"]
    assert media("/api/chat") == ["application/json", "application/x-ndjson"]
    assert media("/tokenize") == ["application/json"]
    assert media("/metrics", "get") == ["text/plain"]
    (parameter,) = paths["/v1/models/{model}"]["get"]["parameters"]
    assert (parameter["name"], parameter["in"], parameter["required"]) == ("model", "path", True)


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/generate", {"prompt": "x"}),
    ("/completion", {"prompt": "x"}),
    ("/api/generate", {"model": "fake", "prompt": "x"}),
    ("/tokenize", {"content": "x"}),
    ("/detokenize", {"tokens": [1]}),
]
CHANGES: list[dict[str, Any]] = [
    {}, {"stream": 1}, {"stream": False}, {"temperature": -1}, {"top_p": 1.5}, {"top_p": 0.5}, {"top_k": 2**31}, {"n": 0},
    {"n": 17}, {"stop": ["x"] * 17}, {"stop": [""]}, {"stop": "x"}, {"seed": "x"}, {"seed": 3}, {"nothing_known": 1},
    {"prompt": 5}, {"prompt": [1, 2]}, {"prompt": []}, {"tokens": [-1]}, {"tokens": "x"}, {"logit_bias": {"1": 1}},
    {"model": ""}, {"model": "x" * 257}, {"max_tokens": 0}, {"max_tokens": 3}, {"messages": []}, {"messages": "x"},
    {"sampling_params": {"mirostat": 3}}, {"sampling_params": {"mirostat": 2}}, {"sampling_params": {"temp": 1}},
    {"think": "extreme"}, {"cache_salt": "a b"}, {"cache_salt": "a-b"}, {"metadata": {"a": "x" * 513}},
]  # fmt: skip


@pytest.mark.parametrize(("path", "base"), BODIES, ids=lambda value: str(value)[:24])
def test_schemas_reject_what_the_server_rejects(described: dict[str, Any], path: str, base: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": described["components"]})
    for change in CHANGES:
        body = {**base, **change}
        response = post(path, body, engine=FakeEngine())
        assert response.status_code in (200, 400), response.text
        assert validator.is_valid(body) == (response.status_code == 200), body


class _Page(HTMLParser):
    """Collects open tags, loaded resources, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_routes_page_shows_all_and_loads_nothing() -> None:
    response = call("GET", "/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    page = _Page()
    page.feed(response.text)
    page.close()
    assert page.open == []
    assert page.loaded == ["openapi.json"]
    assert "<script" not in response.text
    assert "url(" not in response.text
    for route in ROUTES:
        assert f"{route.method} {route.path}" in page.text
    for shown in ("n_predict", "from -1, to 2147483647", "rejected if set: audio"):
        assert shown in page.text


def test_examples_are_valid() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = call("GET", "/openapi.json").json()
    shown = 0
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert operation["description"]
        if route.body is None:
            continue
        (content,) = operation["requestBody"]["content"].values()
        schema = content["schema"]
        body = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        for example in body.get("examples", ()):
            shown += 1
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(example)
            response = call(route.method, route.path, json=example, options={"strict": False})
            assert response.status_code == 200, (route.path, response.text)
    assert shown >= 8
