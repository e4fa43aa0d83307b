"""llama-server's options of ``quire serve`` that set defaults for requests.

Oracle: the same model in this process, with the options' values in the request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from quire import LLM
from quire.engine.loading.loader import packaged_model
from served import served
from tiny_checkpoints import write_checkpoint

ASK = [{"role": "user", "content": "Who are you?"}]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if shout %}!{% endif %}"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, n_ctx=256, kv_dtype="f32") as opened:
        opened.use_chat_template(TEMPLATE)
        yield opened


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("options")
    options = [
        str(packaged_model()), "-c", "256", "--seed", "3", "--temp", "1", "--chat-template", TEMPLATE,
        "--chat-template-kwargs", '{"shout": true, "lacking": 1}', "--reasoning-budget", "4", "--tags", "small,fast",
        "--pooling", "none", "--no-jinja", "--context-shift", "--slot-save-path", str(folder), "--spec-type", "none",
        "--trust-request-chat-template", "--max-logprobs", "-1",
    ]  # fmt: skip
    with served(folder, options) as server, httpx.Client(base_url=server.url, timeout=60) as opened:
        yield opened


def test_default_seed_and_template(client: httpx.Client, llm: LLM) -> None:
    body = {"messages": ASK, "max_tokens": 8}
    answers = [client.post("/v1/chat/completions", json=body) for _ in range(2)]
    expected = llm.chat(ASK, max_tokens=8, seed=3, temperature=1, template_values={"shout": True})
    for answer in answers:
        assert answer.json()["choices"][0]["message"]["content"] == expected.text
        assert answer.json()["usage"]["prompt_tokens"] == expected.n_prompt_tokens
        assert "x-quire-ignored" not in answer.headers
    quiet = client.post("/v1/chat/completions", json={**body, "chat_template_kwargs": {"shout": False}}).json()
    assert quiet["usage"]["prompt_tokens"] == expected.n_prompt_tokens - 1
    other = client.post("/completion", json={"prompt": "Once", "n_predict": 8, "seed": 4}).json()
    own = client.post("/completion", json={"prompt": "Once", "n_predict": 8}).json()
    (with_seed,) = llm.generate("Once", max_tokens=8, seed=3, temperature=1, top_k=40, top_p=0.95, min_p=0.05)
    assert own["content"] == with_seed.text != other["content"]


def test_all_log_probabilities_where_the_operator_allows_it(client: httpx.Client, llm: LLM) -> None:
    body = {"messages": ASK, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": -1}
    (shown,) = client.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    expected = llm.chat(ASK, max_tokens=1, temperature=0, logprobs=-1, template_values={"shout": True}).logprobs
    assert expected is not None
    assert len(shown["top_logprobs"]) == llm.n_vocab
    assert [top["logprob"] for top in shown["top_logprobs"]] == pytest.approx([p for _, p in expected[0].top], abs=1e-3)


def test_a_template_of_a_request(client: httpx.Client, llm: LLM) -> None:
    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    body = {"messages": ASK, "max_tokens": 8, "seed": 3, "temperature": 1, "chat_template": template}
    answer = client.post("/v1/chat/completions", json=body).json()
    expected = llm.chat(ASK, max_tokens=8, seed=3, temperature=1, chat_template=template)
    ids = llm.tokenizer.encode("WHO ARE YOU?", add_special=False)
    assert expected.prompt_token_ids == ids
    assert answer["choices"][0]["message"]["content"] == expected.text
    assert client.post("/apply-template", json={"messages": ASK, "chat_template": template}).json() == {
        "prompt": "WHO ARE YOU?"
    }
    for bad in ("{% for %}", "{{ [1] * 1000000000 }}", "{{ ''.__class__.__mro__ }}", "{{ raise_exception('no') }}"):
        assert client.post("/v1/chat/completions", json={**body, "chat_template": bad}).status_code == 400
    assert llm.chat(ASK, max_tokens=1).prompt_token_ids == llm.tokenizer.encode("Who are you?", add_special=False)


def test_the_options_are_shown(client: httpx.Client) -> None:
    assert client.get("/v1/models").json()["data"][0]["tags"] == ["small", "fast"]
    assert client.get("/props").json()["chat_template"] == TEMPLATE


def test_vectors_of_tokens(client: httpx.Client, llm: LLM) -> None:
    (found,) = client.post("/embedding", json={"content": "Once upon", "embd_normalize": -1}).json()
    (expected,) = llm.embed_tokens("Once upon")
    assert np.allclose(found["embedding"], expected, atol=1e-4)
    refused = client.post("/v1/embeddings", json={"input": "Once upon"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "pooling")
    assert client.post("/v1/embeddings", json={"input": "Once upon", "pooling": "mean"}).status_code == 200


def test_a_grammar_and_models_with_shorter_context(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.gguf").write_bytes(packaged_model().read_bytes())
    write_checkpoint(tmp_path / "models/bert", "bert")
    options = ["--models-dir", str(tmp_path / "models"), "-c", "2048", "--grammar", 'root ::= "yes" | "no"']
    with served(tmp_path, options) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        chat = {"model": "tiny", "messages": ASK}
        for path, body in (("/v1/chat/completions", chat), ("/v1/completions", {"model": "tiny", "prompt": "Is it?"})):
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            assert (choice["message"]["content"] if "message" in choice else choice["text"]) in ("yes", "no")
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [7]}}}
        own = client.post("/v1/chat/completions", json={**chat, "response_format": form}).json()
        assert json.loads(own["choices"][0]["message"]["content"]) == 7
        answer = client.post("/v1/embeddings", json={"model": "bert", "input": [5, 6, 7]})
        assert answer.status_code == 200, answer.text
