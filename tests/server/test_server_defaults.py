"""Sampling defaults: the same in every dialect.

Oracle: llama.cpp's documented numbers, and ``RequestKeywords`` of the Python interface, which the tests of ``LLM`` hold.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from fake_engine import FakeEngine
from one_call import call, post
from quire.params.request_fields import RequestKeywords
from quire.params.sampling import SamplingParams
from quire.server.worker.params import params_of
from quire.server.worker.protocol import Chat, Generate

ASKED = [{"role": "user", "content": "Hi"}]
ADVICE: list[dict[str, Any]] = [{}, {"temperature": 0.6, "top_k": 20}, {"temperature": 1.0, "top_k": 64, "min_p": 0.0}]
CHATS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/v1/chat/completions", {"messages": ASKED}),
    "openai, unversioned": ("/chat/completions", {"messages": ASKED}),
    "responses": ("/v1/responses", {"input": "Hi"}),
    "anthropic": ("/v1/messages", {"model": "fake", "messages": ASKED, "max_tokens": 9}),
    "ollama chat": ("/api/chat", {"model": "fake", "messages": ASKED}),
    "ollama generate": ("/api/generate", {"model": "fake", "prompt": "Hi"}),
    "own": ("/v1/generate", {"prompt": "Hi"}),
    "llama.cpp": ("/completion", {"prompt": "Hi"}),
}
# llama.cpp's own chain, and a parameter that only matters with penalties.
_APART = ("samplers", "max_tokens", "penalty_last_n", "dry_penalty_last_n")


def drawn_by(path: str, body: dict[str, Any], advised: dict[str, Any]) -> SamplingParams:
    """Return the sampling parameters that a body results in."""
    engine = FakeEngine()
    engine.info = msgspec.structs.replace(engine.info, advised=advised)
    response = post(path, {**body, "stream": False}, engine=engine)
    assert response.status_code == 200, response.text
    (work,) = [one for one in engine.asked if isinstance(one, Chat | Generate)]
    usual = params_of({name: value for name, value in work.params.items() if name not in _APART})
    assert path == "/completion" or "samplers" not in work.params
    return usual


@pytest.mark.parametrize("advised", ADVICE)
@pytest.mark.parametrize("dialect", CHATS)
def test_every_dialect_has_the_same_defaults(dialect: str, advised: dict[str, Any]) -> None:
    path, body = CHATS[dialect]
    assert drawn_by(path, body, advised) == RequestKeywords().sampling_params(None, advised)


@pytest.mark.parametrize("dialect", ["openai", "responses", "anthropic", "ollama chat"])
def test_the_requests_own_values_take_precedence(dialect: str) -> None:
    path, body = CHATS[dialect]
    more: dict[str, Any] = {"options": {"temperature": 0.3}} if "api" in path else {"temperature": 0.3}
    assert drawn_by(path, {**body, **more}, ADVICE[1]) == RequestKeywords({"temperature": 0.3}).sampling_params(
        None, ADVICE[1]
    )


def test_openai_completions_keep_the_models_distribution() -> None:
    body = {"prompt": "Hi"}
    assert drawn_by("/v1/completions", body, {}) == SamplingParams()
    assert drawn_by("/v1/completions", body, {"temperature": 0.6}) == SamplingParams(temperature=0.6)


@pytest.mark.parametrize("advised", ADVICE)
def test_props_show_them(advised: dict[str, Any]) -> None:
    engine = FakeEngine()
    engine.info = msgspec.structs.replace(engine.info, advised=advised)
    props = call("GET", "/props", engine=engine).json()
    expected = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, **advised}
    shown = props["default_generation_settings"]["params"]
    assert {name: shown[name] for name in expected} == expected
    assert props["chat_sampling"] == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/completion"])
def test_seed_minus_one_is_random(path: str) -> None:
    body = {"messages": ASKED} if "chat" in path else {"prompt": "Hi"}
    assert drawn_by(path, {**body, "seed": -1}, {}).seed is None
    assert drawn_by(path, {**body, "seed": 5}, {}).seed == 5
