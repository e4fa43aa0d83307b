"""Requests that the server accepts and rejects, without a model.

Oracles: expected statuses and fields at fault, and the table of routes for those that require a key.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from fake_engine import FakeEngine
from one_call import call, post
from quire.errors import RequestError
from quire.server.app import ROUTES
from quire.server.failures import ApiError
from quire.server.listener.bodies import to_wire
from quire.server.settings import Settings
from quire.server.worker.protocol import Chat, Failed, Generate

KEY = "a-secret-of-some-length"
HELLO = [{"role": "user", "content": "Hello"}]
CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/v1/generate"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": f"Bearer  {KEY}"},
        {"authorization": KEY},
        {"x-api-key": ""},
        {"x-api-key": "wrong", "authorization": f"Bearer {KEY}"},
        {"authorization": "Basic !!!"},
    ],
)
def test_every_route_except_health_requires_a_key(route: Any, headers: dict[str, str]) -> None:
    response = call(route.method, route.path, options={"api_keys": (KEY, "another-key")}, headers=headers)
    assert response.status_code == (200 if route.path == "/health" else 401)
    assert KEY not in response.text


@pytest.mark.parametrize(
    "path", ["//v1/models", "/v1/../v1/models", "/v1%2fmodels", "/v1/models/", "/Health", "/health/"]
)
def test_other_spellings_of_a_path_require_a_key_too(path: str) -> None:
    for method in ("GET", "POST", "HEAD", "OPTIONS"):
        assert call(method, path, options={"api_keys": (KEY,)}).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}, {"authorization": f"bearer {KEY}"}]
)
def test_a_valid_key_is_accepted(headers: dict[str, str]) -> None:
    engine = FakeEngine()
    response = post(COMPLETIONS, {"prompt": "x"}, engine=engine, options={"api_keys": (KEY,)}, headers=headers)
    assert response.json()["choices"][0]["text"] == "ab"
    (work,) = engine.asked
    assert isinstance(work, Generate)
    # Callers share cached blocks only with themselves.
    assert len(work.hints.salt) == 32
    assert work.hints.key.startswith("key-")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:8080", 200), ("LOCALHOST", 200), ("evil.example", 403),
        ("127.0.0.1:evil", 403), ("127.0.0.1:", 200), ("127.0.0.1:99999", 403), ("[::1]evil", 403), ("[::1]", 200),
        ("[::1]:evil", 403), ("[0:0:0:0:0:0:0:1]:80", 200), ("::1", 403), ("[localhost]", 403), ("[127.0.0.1]", 403),
        ("user@127.0.0.1", 403), ("127.0.0.1:80:90", 403), ("localhost/", 403), ("localhost,evil.example", 403),
        ("evil.example:8080", 403), ("localhost.evil.example", 403), ("", 403), ("127.0.0.1.evil.example", 403),
    ],
)  # fmt: skip
def test_other_host_names_cannot_reach_loopback(host: str, status: int) -> None:
    assert call("GET", "/v1/models", headers={"host": host}).status_code == status
    assert call(
        "GET", "/v1/models", headers={"host": host}, options={"allowed_hosts": ("evil.example",)}
    ).status_code == (200 if host.startswith("evil.example") else status)


@pytest.mark.parametrize("host", ["127.0.0.1:evil", "[::1]evil", "a b", "a/b", "a:1:2"])
def test_the_host_header_must_be_valid_on_any_address(host: str) -> None:
    public = {"host": "0.0.0.0", "insecure": True}
    assert call("GET", "/v1/models", headers={"host": host}, options=public).status_code == 400
    assert call("GET", "/v1/models", headers={"host": "any.example:80"}, options=public).status_code == 200


def test_the_listening_address_is_a_valid_host() -> None:
    assert call("GET", "/v1/models", headers={"host": "127.0.0.7:80"}, options={"host": "127.0.0.7"}).status_code == 200


ALLOWED = [
    # A pattern, and origins that it allows.
    ("*", ["http://a.example", "https://b.example:8443", "null", "chrome-extension://abc"]),
    ("http://a.example", ["http://a.example"]),
    ("http://a.example/", ["http://a.example"]),
    ("http://a.example:80", ["http://a.example"]),
    ("https://a.example:443, http://b.example:81", ["https://a.example", "http://b.example:81"]),
    ("'http://A.example'", ["http://a.example"]),
    ("http://localhost:*", ["http://localhost:3000", "http://localhost"]),
    ("localhost", ["http://localhost", "https://localhost:5173", "http://127.0.0.1:8000", "http://[::1]:8000"]),
    ("https://*.a.example", ["https://x.a.example", "https://x.y.a.example"]),
    ("http://192.168.1.*:*", ["http://192.168.1.20:3000"]),
    ("app://*", ["app://obsidian.md", "app://localhost"]),
    ("chrome-extension://*,moz-extension://*", ["chrome-extension://abcdef", "moz-extension://1-2"]),
    ("vscode-webview://*", ["vscode-webview://0a1b"]),
    ("tauri://localhost", ["tauri://localhost"]),
    ("a.example:3000", ["http://a.example:3000", "https://a.example:3000"]),
    ("null", ["null"]),
]
REFUSED = [
    ("http://a.example", ["https://a.example", "http://a.example:81", "http://a.example.evil.example", "null"]),
    ("http://localhost:*", ["http://localhost.evil.example", "http://localhost:1.evil.example", "https://localhost:1"]),
    ("localhost", ["http://localhost.evil.example", "http://127.0.0.1.evil.example:80", "ftp://localhost", "null"]),
    ("https://*.a.example", ["https://a.example", "https://evil.example/.a.example", "https://x.a.example.evil.example"]),
    ("app://*", ["http://app", "xapp://a"]),
    ("", ["http://a.example", "null"]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "origins"), ALLOWED)
def test_origins_in_the_notation_of_other_servers(pattern: str, origins: list[str]) -> None:
    for origin in origins:
        response = post(GENERATE, {"prompt": "x"}, headers={"origin": origin}, options={"cors_origins": (pattern,)})
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == origin
        assert response.headers["vary"] == "origin"
        assert "access-control-allow-credentials" not in response.headers


@pytest.mark.parametrize(("pattern", "origins"), REFUSED)
def test_similar_origins_are_rejected(pattern: str, origins: list[str]) -> None:
    for origin in origins:
        headers = {"origin": origin, "access-control-request-method": "POST"}
        for method in ("POST", "OPTIONS"):
            response = call(method, GENERATE, headers=headers, options={"cors_origins": (pattern,)})
            assert response.status_code == 403
            assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("pattern", ["http://a.example/path", "http://", "http://a b", "http://a:port", "http://u@a"])
def test_invalid_origins_are_rejected_at_the_start(pattern: str) -> None:
    with pytest.raises(RequestError, match=re.escape(pattern)):
        Settings(cors_origins=(pattern,))


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_preflight_allows_the_headers_of_javascript_clients(method: str) -> None:
    wanted = "authorization,anthropic-dangerous-direct-browser-access,x-stainless-os,X-Newer-Header"
    headers = {
        "origin": "http://a.example", "access-control-request-method": method,
        "access-control-request-headers": wanted, "access-control-request-private-network": "true",
    }  # fmt: skip
    options = {"cors_origins": ("http://a.example",), "api_keys": (KEY,)}
    response = call("OPTIONS", "/v1/responses/r", headers=headers, options=options)
    assert response.status_code == 204
    allowed = response.headers["access-control-allow-headers"].split(", ")
    assert {name.lower() for name in wanted.split(",")} <= set(allowed)
    assert method in response.headers["access-control-allow-methods"].split(", ")
    assert response.headers["access-control-allow-private-network"] == "true"
    del headers["access-control-request-headers"], headers["access-control-request-private-network"]
    plain = call("OPTIONS", "/v1/messages", headers=headers, options=options)
    assert {"x-api-key", "anthropic-version", "x-stainless-retry-count"} <= set(
        plain.headers["access-control-allow-headers"].split(", ")
    )
    assert "access-control-allow-private-network" not in plain.headers


def test_allowed_pages_can_read_errors() -> None:
    options = {"cors_origins": ("*",), "api_keys": (KEY,)}
    response = post(GENERATE, {"prompt": "x"}, headers={"origin": "http://a.example"}, options=options)
    assert response.status_code == 401
    assert response.headers["access-control-allow-origin"] == "http://a.example"


def test_other_origins_get_no_cors_headers() -> None:
    for origin in ("http://evil.example", "null", "http://localhost:3000"):
        response = post(GENERATE, {"prompt": "x"}, headers={"origin": origin})
        assert response.status_code == 403
        assert not [name for name in response.headers if name.startswith("access-control")]
    own = {"origin": "http://localhost:8080"}
    assert post(GENERATE, {"prompt": "x"}, headers=own).status_code == 200
    named = {"origin": "http://localhost:3000"}
    allowed = post(GENERATE, {"prompt": "x"}, headers=named, options={"cors_origins": ("http://localhost:3000",)})
    assert allowed.headers["access-control-allow-origin"] == "http://localhost:3000"


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.parametrize("page", [{"origin": "http://localhost:8080"}, {"sec-fetch-site": "cross-site"}])
def test_pages_must_send_json_content_types(kind: str | None, page: dict[str, str]) -> None:
    """A page of any origin may send other content without a preflight."""
    headers = page if kind is None else {"content-type": kind, **page}
    assert call("POST", GENERATE, content=b'{"prompt": "x"}', headers=headers).status_code == 415


def test_programs_may_omit_the_json_content_type() -> None:
    for kind in (None, "text/plain", "application/x-www-form-urlencoded"):  # the last one is curl's default
        headers = {} if kind is None else {"content-type": kind}
        assert call("POST", GENERATE, content=b'{"prompt": "x"}', headers=headers).status_code == 200
    for kind in ("multipart/form-data", "application/xml"):
        headers = {"content-type": kind}
        assert call("POST", GENERATE, content=b'{"prompt": "x"}', headers=headers).status_code == 415


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[1]", "invalid_json"),
        (b"null", "invalid_json"),
        (b'{"prompt": NaN}', "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_json"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", "too_deep"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too_deep"),
        (b'{"prompt": ' + b'{"a":' * 60_000 + b"1" + b"}" * 60_000 + b"}", "too_deep"),
        (b'{"prompt": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}", "too_many_values"),
        (b'{"a": 1' + b"0" * 5000 + b"}", "invalid_json"),
    ],
)
def test_bodies_that_are_not_json_objects(content: bytes, code: str) -> None:
    response = call("POST", GENERATE, content=content, headers=JSON)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends inside"),
        (b'{"prompt": "x', "ends inside"),
        (b'{"prompt": NaN}', "at byte 11"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": 1' + b"0" * 5000 + b"}", "too many digits"),
        (b"[1]", "is an array"),
    ],
)
def test_invalid_json_is_described_in_plain_words(content: bytes, words: str) -> None:
    message = call("POST", GENERATE, content=content, headers=JSON).json()["error"]["message"]
    assert "body" in message
    assert words in message
    assert "truncated" not in message


FIELDS = [
    (CHAT, {"temperature": "1"}, ("temperature '1'", "text", "a number")),
    (CHAT, {"temperature": -1}, ("temperature -1", "at least 0")),
    (CHAT, {"n": 17}, ("n 17", "at most 16")),
    (CHAT, {"n": 1.5}, ("n 1.5", "a whole number")),
    (CHAT, {"stop": ["x" * 1025]}, ("stop[0]", "characters", "at most 1024")),
    (CHAT, {"stop": {}}, ("stop", "an object", "text or a list")),
    (CHAT, {"messages": []}, ("messages", "entries", "at least 1")),
    (CHAT, {"messages": None}, ("messages", "required")),
    (CHAT, {"messages": [5]}, ("messages[0]", "a whole number", "an object")),
    (CHAT, {"reasoning_effort": "extreme"},
     ("reasoning_effort 'extreme'", "high, low, max, medium, minimal, none, xhigh")),
    (CHAT, {"stream_options": {"include_usage": 1}}, ("stream_options.include_usage", "a whole number", "true or false")),
    (CHAT, {"cache_salt": "a b"}, ("cache_salt 'a b'", "^[A-Za-z0-9_-]{1,128}$")),
    (GENERATE, {"sampling_params": {"temp": 1}}, ("sampling_params", "'temp'")),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "words"), FIELDS, ids=lambda value: str(value)[:40])
def test_invalid_fields_are_described_in_plain_words(path: str, fields: dict[str, Any], words: tuple[str, ...]) -> None:
    base: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    message = post(path, {**base, **fields}).json()["error"]["message"]
    assert [word for word in words if word not in message] == []


KINDS = ({"x": 1}, [{"y": 2}], "x" * 600, 1e300, -1e300, 1.5, 2**40, True, [None], [["a"]], "", [], [True])


@pytest.mark.parametrize(
    "body", dict.fromkeys(route.body for route in ROUTES if route.body is not None), ids=lambda body: body.__name__
)
def test_no_error_message_mentions_msgspec_types(body: Any) -> None:
    """Try every field of every body with each kind of JSON value."""
    known = {"messages": HELLO, "model": "fake", "prompt": "x", "input": "x", "content": "x", "max_tokens": 1}
    base = {name: value for name, value in known.items() if name in body.__struct_encode_fields__}
    messages: list[str] = []
    for name in body.__struct_encode_fields__:
        for value in KINDS:
            try:
                to_wire({**base, name: value}, body, False)
            except ApiError as error:
                messages.append(error.message)
    assert messages
    assert not [text for text in messages if re.search(r"Expected|Invalid |Object |`|\b(str|int|bool)\b", text)]


def test_a_body_beyond_the_limit_is_rejected_at_once() -> None:
    """Also if that many tokens may not wait."""
    limits = {"max_queue_tokens": 10, "max_body_bytes": 2048}
    assert post(GENERATE, {"prompt": "x" * 4000}, options=limits).status_code == 413


def test_error_messages_are_short_for_any_input() -> None:
    for body in (
        {"messages": HELLO, "response_format": {"type": "x" * 100_000}},
        {"messages": HELLO, "y" * 100_000: 1},
        {"messages": [{"role": "user", "content": "x", "y" * 100_000: 1}]},
    ):
        assert len(post(CHAT, body).content) < 3000


def test_large_and_compressed_bodies_are_rejected() -> None:
    limit = {"max_body_bytes": 2048}
    body = {"prompt": "x" * 4000}
    assert post(GENERATE, body, options=limit).status_code == 413

    async def endless() -> Any:
        while True:
            yield b"x" * 1000

    assert call("POST", GENERATE, content=endless(), headers=JSON, options=limit).status_code == 413
    assert post(GENERATE, body, headers={"content-encoding": "gzip"}).status_code == 415


LARGE = 10**30


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice among some of the tools, in OpenAI's format."""
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"temperature": -1}, "temperature"),
    (CHAT, {"temperature": "1"}, "temperature"),
    (CHAT, {"temperature": 1e39}, "temperature"),
    (CHAT, {"temperature": True}, "temperature"),
    (CHAT, {"top_p": 1.5}, "top_p"),
    (CHAT, {"top_k": -2}, "top_k"),
    (CHAT, {"top_k": LARGE}, "top_k"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": 17}, "n"),
    (CHAT, {"max_tokens": 0}, "max_tokens"),
    (CHAT, {"max_tokens": 2**31}, "max_tokens"),
    (CHAT, {"max_tokens": 1.5}, "max_tokens"),
    (CHAT, {"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
    (CHAT, {"presence_penalty": 3}, "presence_penalty"),
    (CHAT, {"stop": ["x"] * 17}, "stop"),
    (CHAT, {"stop": ["x" * 1025]}, "stop[0]"),
    (CHAT, {"stop": 5}, "stop"),
    (CHAT, {"logit_bias": {"x": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias"),
    (CHAT, {"logit_bias": {"1": 101}}, "logit_bias[...]"),
    (CHAT, {"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias"),
    (CHAT, {"top_logprobs": 5}, "top_logprobs"),
    (CHAT, {"logprobs": 5}, "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"seed": 2**63}, "seed"),
    (CHAT, {"seed": "x"}, "seed"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{}] * 4097}, "messages"),
    (CHAT, {"messages": "x"}, "messages"),
    (CHAT, {"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    (CHAT, {"cache_salt": "a b"}, "cache_salt"),
    (CHAT, {"cache_salt": "x" * 129}, "cache_salt"),
    (CHAT, {"metadata": {str(i): "" for i in range(17)}}, "metadata"),
    (CHAT, {"reasoning_effort": "extreme"}, "reasoning_effort"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format"),
    (CHAT, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
    (CHAT, {"structured_outputs": {"rgex": "a"}}, "structured_outputs"),
    (CHAT, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    (CHAT, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.mode"),
    (CHAT, {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
     "tool_choice.allowed_tools.tools"),
    (CHAT, {"tool_choice": allowed("auto", "f")}, "tool_choice.allowed_tools.tools"),
    (CHAT, {"repeat_penalty": 1.1, "repetition_penalty": 1.1}, "repeat_penalty"),
    (CHAT, {"audio": {}}, "audio"),
    (CHAT, {"temprature": 1}, "temprature"),
    (CHAT, {"service_tier": "scale"}, "service_tier"),
    (CHAT, {"service_tier": "flex", "priority": 3}, "priority"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "prefix": True}]}, "messages[0].prefix"),
    (CHAT, {"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages[0].audio"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [1, "x"]}, "prompt"),
    (COMPLETIONS, {"prompt": [[1], "x"]}, "prompt"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": ["x"] * 129}, "prompt"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of"),
    (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
    (COMPLETIONS, {"suffix": "x", "echo": True}, "suffix"),
    (COMPLETIONS, {"suffix": "x", "prompt": [1]}, "suffix"),
    (GENERATE, {"sampling_params": {"mirostat": 3}}, "sampling_params.mirostat"),
    (GENERATE, {"sampling_params": {"temp": 1}}, "sampling_params"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "fields", "param"), REFUSED, ids=lambda value: str(value)[:40])
def test_a_field_out_of_range_is_named(path: str, fields: dict[str, Any], param: str) -> None:
    engine = FakeEngine()
    base: dict[str, Any] = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    response = post(path, {**base, **fields}, engine=engine, options={"strict": True})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert param.partition(".")[0].partition("[")[0] in error["message"]
    assert engine.asked == []


def test_null_and_neutral_values_are_accepted() -> None:
    body = {"messages": HELLO, "temperature": None, "audio": None, "unknown": None, "store": False, "tools": []}
    assert post(CHAT, body).status_code == 200


def test_fields_without_effect_are_accepted() -> None:
    more = {"prompt_cache_key": "a", "prompt_cache_retention": "in_memory", "user": "b", "safety_identifier": "c"}
    options = {"stream": True, "stream_options": {"include_obfuscation": False, "include_usage": True}}
    assert post(CHAT, {"messages": HELLO, **more, **options}).status_code == 200
    assert post("/v1/responses", {"input": "x", **more}).status_code == 200


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_shown(mode: str) -> None:
    engine = FakeEngine()
    tools = [function("f"), function("g"), function("h")]
    body = {"messages": HELLO, "tools": tools, "tool_choice": allowed(mode, "h", "f")}
    assert post(CHAT, body, engine=engine).status_code == 200
    flat = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": name} for name in "hf"]}
    body = {"input": "x", "tools": [{"type": "function", "name": name} for name in "fgh"], "tool_choice": flat}
    assert post("/v1/responses", body, engine=engine).status_code == 200
    for work in engine.asked:
        assert isinstance(work, Chat)
        assert work.options["tools"] == [function("f"), function("h")]
        assert work.options["tool_choice"] == mode


def test_fields_of_earlier_answers_are_accepted() -> None:
    said = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "name": "n"}
    assert post(CHAT, {"messages": [*HELLO, {**said, "reasoning_content": "t"}, *HELLO]}).status_code == 200
    engine = FakeEngine()
    body = {"messages": [{"role": "user", "content": "x", "prefix": True}]}
    assert post(CHAT, body, engine=engine).headers["x-quire-ignored"] == "'messages[0].prefix'"
    (work,) = engine.asked
    assert isinstance(work, Chat)
    assert work.messages == body["messages"]


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": HELLO}), (COMPLETIONS, {"prompt": "x"}), ("/v1/responses", {"input": "x"})]
)
def test_a_service_tier_sets_the_priority(path: str, body: dict[str, Any]) -> None:
    tiers = {"auto": ("default", 0), "default": ("default", 0), "flex": ("flex", -50), "priority": ("priority", 50)}
    for tier, (shown, priority) in tiers.items():
        engine = FakeEngine()
        assert post(path, {**body, "service_tier": tier}, engine=engine).json()["service_tier"] == shown
        (work,) = engine.asked
        assert isinstance(work, Chat | Generate)
        assert work.hints.priority == priority


def test_unknown_fields_are_named_and_rejected_if_strict() -> None:
    body = {"messages": HELLO, "new_thing": 1, "\r\nx": 2}
    for options in ({}, {"lenient": True}, {"strict": True, "lenient": True}):
        response = post(CHAT, body, options=options)
        assert response.status_code == 200
        assert response.headers["x-quire-ignored"] == r"'new_thing','\r\nx'"
        assert post(CHAT, {"messages": HELLO, "audio": {}}, options=options).status_code == 400
    response = post(CHAT, body, options={"strict": True})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "unknown_parameter")


def test_unknown_routes() -> None:
    assert call("GET", "/v2/none").json()["error"]["code"] == "no_such_route"
    response = call("GET", CHAT)
    assert (response.status_code, response.json()["error"]["code"]) == (405, "method_not_allowed")
    assert response.headers["allow"] == "POST"


def test_a_failure_in_a_stream_is_one_event() -> None:
    failure = Failed(0, "InternalError", "[x] broke")
    response = post(CHAT, {"messages": HELLO, "stream": True}, engine=FakeEngine([failure]))
    events = [json.loads(e.removeprefix("data: ")) for e in response.text.strip().split("\n\n")]
    assert [event["choices"][0]["delta"].get("content") for event in events[:-1]] == ["", "part"]
    assert events[-1] == {
        "error": {"message": "[x] broke", "type": "server_error", "param": None, "code": "internal_error"}
    }
    response = post(CHAT, {"messages": HELLO}, engine=FakeEngine([failure]))
    assert (response.status_code, response.json()) == (500, events[-1])


def test_an_answer_that_takes_too_long_times_out() -> None:
    engine = FakeEngine([None])
    response = post(CHAT, {"messages": HELLO}, engine=engine, options={"request_timeout_s": 0.1})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")
    assert engine.cancelled == [1]
    assert engine.n_active == 0


def test_a_valid_client_request_id_is_used() -> None:
    for given, kept in (("abc-1.X_2", True), ("a b", False), ("x" * 65, False), ("", False)):
        answered = call("GET", "/health", headers={"x-request-id": given}).headers["x-request-id"]
        assert (answered == given) == kept
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", answered)


def test_invalid_settings_are_rejected() -> None:
    for values, word in (({"host": "0.0.0.0"}, "API key"), ({"port": 70000}, "port"), ({"max_queue": -1}, "max_queue")):
        with pytest.raises(RequestError, match=word):
            Settings(**values)  # type: ignore[arg-type]
    assert Settings(host="0.0.0.0", insecure=True).host == "0.0.0.0"
    assert KEY not in repr(Settings(api_keys=(KEY,)))


def test_the_page_allows_only_its_own_scripts() -> None:
    browser = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    response = call("GET", "/", headers=browser)
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= set(policy.split("; "))
    assert "<style" not in response.text
    assert re.findall(r"<script[^>]*>(.*?)</script>", response.text, re.DOTALL) == [""]
    wanted = set(re.findall(r'(?:src|href)="([^"]*)"', response.text))
    assert {"page/icon.svg", "page/style.css", "page/main.js"} <= wanted
    for path in wanted:
        assert call("GET", f"/{path}").status_code == 200
    # Previews run what a model wrote: in an origin of their own, without a network.
    preview = call("GET", "/page/preview.html").headers["content-security-policy"].split("; ")
    assert {"sandbox allow-scripts", "default-src 'none'", "frame-ancestors 'self'"} <= set(preview)
    assert not any("'self'" in rule or "http" in rule for rule in preview if not rule.startswith("frame-ancestors"))
    closed = call("GET", "/", options={"api_keys": (KEY,)})
    assert (closed.status_code, closed.headers["www-authenticate"]) == (401, 'Basic realm="quire"')
    assert call("GET", "/", options={"api_keys": (KEY,)}, auth=("any", KEY)).status_code == 200
    # A browser asks again only for what has changed, and libraries are stored compressed.
    plain, packed = (
        call("GET", "/page/temml.js", headers={"accept-encoding": coding}) for coding in ("identity", "gzip")
    )
    assert plain.content == packed.content
    assert (plain.headers.get("content-encoding"), packed.headers["content-encoding"]) == (None, "gzip")
    again = call("GET", "/page/temml.js", headers={"if-none-match": plain.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    # Programs look for the text of Ollama's server.
    assert call("GET", "/").text == "Ollama is running"
    assert call("HEAD", "/").status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_every_method_of_every_route_requires_a_key(method: str) -> None:
    for path in {route.path for route in ROUTES} - {"/health"}:
        assert call(method, path, options={"api_keys": (KEY,)}).status_code == 401


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the response time tells neither how much of a key is right nor which key it resembles."""
    seen: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        seen.append((a, b))
        return a == b

    monkeypatch.setattr("quire.server.listener.access.hmac.compare_digest", compare)
    keys = ("first-of-the-keys", KEY, "last-of-the-keys")
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]
    for given, status in (
        (keys[0], 200),
        (KEY, 200),
        (keys[2], 200),
        ("no-key", 401),
        (KEY[:-1], 401),
        ("x" * 9999, 401),
    ):
        seen.clear()
        response = call("GET", "/v1/models", options={"api_keys": keys}, headers={"x-api-key": given})
        assert response.status_code == status
        assert seen == [(hashlib.sha256(given.encode()).digest(), digest) for digest in digests]


def test_duplicate_key_headers_are_rejected() -> None:
    headers = [("x-api-key", "wrong"), ("x-api-key", KEY)]
    response = call("GET", "/v1/models", options={"api_keys": (KEY,)}, headers=headers)
    assert (response.status_code, response.headers["connection"]) == (400, "close")
