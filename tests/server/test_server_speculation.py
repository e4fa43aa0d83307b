"""Speculation over HTTP: predictions, usage, timings and metrics in the formats of OpenAI, llama.cpp and Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import served, wait_until

ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about a bird."}],
    "max_tokens": 40,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def http(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    draft = str(shared / "models" / "tiny-draft")
    options = ["--draft", draft, "--draft-min", "4", "--draft-max", "4", "--deterministic"]
    with served(tmp_path_factory.mktemp("served"), options) as server, server.client() as client:
        yield client


def answer(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={**ASKED, **fields})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def test_every_drafter_gives_the_same_answer_and_reports_usage(http: httpx.Client) -> None:
    off = answer(http, speculation="off")
    text = off["choices"][0]["message"]["content"]
    assert "completion_tokens_details" not in off["usage"]
    assert "draft_n" not in off["timings"]
    parts = [{"type": "text", "text": text[:30]}, {"type": "text", "text": text[30:]}]
    ways: list[dict[str, Any]] = [
        {},
        {"speculation": "draft"},
        {"speculation": "lookup", "prediction": {"type": "content", "content": text}},
        {"prediction": {"type": "content", "content": parts}},
    ]
    for fields in ways:
        found = answer(http, **fields)
        assert found["choices"][0]["message"]["content"] == text
        assert found["usage"]["completion_tokens"] == off["usage"]["completion_tokens"]
        details = found["usage"]["completion_tokens_details"]
        accepted, rejected = details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]
        assert accepted > (15 if "prediction" in fields else 0)
        assert found["timings"]["draft_n"] == accepted + rejected
        assert found["timings"]["draft_n_accepted"] == accepted


def test_a_stream_ends_with_the_same_usage(http: httpx.Client) -> None:
    body = {**ASKED, "stream": True, "stream_options": {"include_usage": True}}
    lines = [
        line[6:] for line in http.post("/v1/chat/completions", json=body).text.splitlines() if line[:6] == "data: "
    ]
    usage = json.loads(lines[-2])["usage"]
    assert usage == answer(http)["usage"] | {"prompt_tokens_details": usage["prompt_tokens_details"]}


def test_metrics_by_drafter_and_position(http: httpx.Client) -> None:
    answer(http)
    wait_until(lambda: 'quire_drafts_total{drafter="draft"' in http.get("/metrics").text)
    figures = {}
    for line in http.get("/metrics").text.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("quire_draft", "quire_accepted")) and 'drafter="draft"' in name:
            figures[name.partition("{")[0], name.partition('position="')[2][:1]] = float(value)
    n_drafts = figures["quire_drafts_total", ""]
    assert figures["quire_drafted_tokens_total", "0"] == n_drafts
    assert 0 < figures["quire_accepted_tokens_total", "0"] <= n_drafts
    assert figures["quire_accepted_tokens_total", "3"] <= figures["quire_accepted_tokens_total", "0"]
    assert figures["quire_draft_seconds_total", ""] > 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"speculation": "medusa"}, "speculation"),
        ({"speculation": "eagle"}, "'eagle': expected one of auto, off, grammar, lookup, draft"),
        ({"speculation": "mtp"}, "'mtp': expected one of auto, off, grammar, lookup, draft"),
        ({"prediction": {"type": "content"}}, "prediction"),
        ({"prediction": {"type": "other", "content": ""}}, "prediction"),
    ],
)
def test_unknown_drafters_are_named(http: httpx.Client, fields: dict[str, Any], words: str) -> None:
    response = http.post("/v1/chat/completions", json={**ASKED, **fields})
    assert response.status_code == 400
    assert words in response.text
