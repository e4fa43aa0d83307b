"""Hidden states in replies of ``/v1/completions`` and ``/v1/chat/completions``.

Oracle: ``LLM.hidden_states`` with the same tokens, which ``tests/models/test_taps.py`` compares with transformers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from quire.engine import LLM
from served import served

GREEDY = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], **GREEDY}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with served(tmp_path_factory.mktemp("server"), ["--taps", "0,2"]) as server, server.client() as made:
        yield made


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1, kv_dtype="f32", taps=(0, 2)) as made:
        yield made


def made(client: httpx.Client, path: str, body: dict[str, Any], status: int = 200) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def states_of(choice: dict[str, Any]) -> np.ndarray:
    shown = choice["hidden_states"]
    return np.frombuffer(base64.b64decode(shown["data"]), "<f4").reshape(shown["shape"])


def test_completions_have_the_states_of_prompt_and_answer(client: httpx.Client, llm: LLM) -> None:
    prompts = [[5, 6, 7] * 9, [8, 9]]
    body = {"prompt": prompts, **GREEDY, "n": 2, "return_hidden_states": [2, 0]}
    choices = made(client, "/v1/completions", body)["choices"]
    results = llm.generate(prompts, max_tokens=5, temperature=0, ignore_eos=True, n=2, hidden_states=[2, 0])
    expected = [choice for result in results for choice in result.choices]
    assert [choice["text"] for choice in choices] == [choice.text for choice in expected]
    for choice, known in zip(choices, expected, strict=True):
        assert known.hidden_states is not None
        assert choice["hidden_states"]["layers"] == [2, 0]
        np.testing.assert_allclose(
            states_of(choice), known.hidden_states, atol=1e-5 * np.abs(known.hidden_states).max()
        )


def test_chats_have_the_states_of_prompt_and_answer(client: httpx.Client, llm: LLM) -> None:
    answer = made(client, "/v1/chat/completions", {**CHAT, "return_hidden_states": True})
    result = llm.chat(CHAT["messages"], max_tokens=5, temperature=0, ignore_eos=True)  # type: ignore[arg-type]
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == result.message.content
    prompt = made(client, "/apply-template", {"messages": CHAT["messages"]})["prompt"]
    ids = [*made(client, "/tokenize", {"content": prompt, "add_special": False})["tokens"], *result.token_ids]
    (expected,) = llm.hidden_states([ids], layers=[0, 2])
    np.testing.assert_allclose(states_of(choice), expected, atol=1e-5 * np.abs(expected).max())
    assert "hidden_states" not in made(client, "/v1/chat/completions", CHAT)["choices"][0]


@pytest.mark.parametrize(
    "more",
    [{"return_hidden_states": [1]}, {"return_hidden_states": []}, {"return_hidden_states": True, "stream": True},
     {"return_hidden_states": True, "max_tokens": 2000, "n": 8}],
)  # fmt: skip
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "x", **GREEDY}), ("/v1/chat/completions", CHAT)]
)
def test_what_cannot_be_returned_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], more: dict[str, Any]
) -> None:
    assert made(client, path, {**body, **more}, 400)["error"]["param"] == "return_hidden_states"


def test_a_server_without_taps_refuses(tmp_path: Path) -> None:
    with served(tmp_path) as server, server.client() as client:
        error = made(client, "/v1/completions", {"prompt": "x", "return_hidden_states": True}, 400)["error"]
        assert "--taps" in error["message"]
