"""``quire.integrations.llm`` in ``llm`` itself, in a program and as people type it.  Oracle: ``quire.LLM``."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from quire import LLM, SamplingParams
from quire.errors import RequestError
from served import environment
from weather_tool import ASKED

pytest.importorskip("llm", reason="needs llm")

from capital_question import ANSWER, CAPITAL
from quire.integrations import llm as plugin

GREEDY = {"temperature": 0.0, "max_tokens": 64, "threads": 1, "n_ctx": 1024}
RESULT = '{"city": "Paris", "temp_c": 21, "sky": "sunny"}'


def get_weather(city: str) -> str:
    """Get the weather for a city."""
    return RESULT


def test_answers_are_equal_in_all_calls(llm: LLM) -> None:
    expected = llm.chat([{"role": "user", "content": CAPITAL}], temperature=0.0, max_tokens=64)
    model = plugin.QuireModel("quire")
    response = model.prompt(CAPITAL, **GREEDY)
    assert list(response) == [*response._chunks]
    assert len(response._chunks) > 2

    async def ask() -> Any:
        answer = plugin.AsyncQuireModel("quire").prompt(CAPITAL, **GREEDY)
        await answer.text()
        return answer

    for answer in (response, model.prompt(CAPITAL, stream=False, **GREEDY), asyncio.run(ask())):
        text = answer.text()
        if asyncio.iscoroutine(text):
            text = asyncio.run(text)
        assert text == expected.message.content == ANSWER
        assert (answer.input_tokens, answer.output_tokens) == (expected.n_prompt_tokens, len(expected.token_ids))
    turns = model.conversation()
    turns.prompt(CAPITAL, system="Be brief.", **GREEDY).text()
    second = turns.prompt("And of Italy?", **GREEDY)
    second.text()
    said = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": CAPITAL},
        {"role": "assistant", "content": turns.responses[0].text()}, {"role": "user", "content": "And of Italy?"},
    ]  # fmt: skip
    whole = llm.chat(said, temperature=0.0, max_tokens=64)
    assert (second.text(), second.input_tokens) == (whole.message.content, whole.n_prompt_tokens)


def test_options_tools_and_forms() -> None:
    model = plugin.QuireModel("quire")
    assert model.prompt(CAPITAL, stop=" Paris", **GREEDY).text() == "The capital of France is"
    fields = {name for name, value in SamplingParams().__dict__.items() if isinstance(value, bool | int | float | None)}
    left_out = {"n", "logprobs", "prompt_logprobs", "processed_logprobs", "allowed_token_ids", "structured_outputs"}
    left_out |= {"adapter", "control_vectors"}  # names of what a server has loaded
    assert fields - left_out <= set(plugin.QuireModel.Options.model_fields)
    with pytest.raises(RequestError, match="temperature"):
        model.prompt(CAPITAL, **{**GREEDY, "temperature": -1.0}).text()
    with pytest.raises(ValueError, match="temp"):
        model.prompt(CAPITAL, temp=1)
    with pytest.raises(RequestError, match="path"):
        plugin.QuireModel("quire/other", "other.gguf").prompt(CAPITAL, path="x.gguf").text()
    schema = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    assert json.loads(model.prompt(CAPITAL, schema=schema, **GREEDY).text())["a"] in ("b", "c")
    chain = model.chain(ASKED[0]["content"], tools=[get_weather], options=GREEDY)
    assert "21" in chain.text()
    (call,) = chain._responses[0].tool_calls()
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})


def test_vectors(llm: LLM) -> None:
    texts = ["The fox ran.", "Paris is the capital."]
    made = list(plugin.QuireEmbeddingModel("quire").embed_multi(texts))
    assert np.allclose(made, llm.embed(texts), atol=0.02)  # with another type of cache


def test_command_lines(tmp_path: Path) -> None:
    """The plugin is found by its entry point, of an installed package."""
    found = [entry for entry in entry_points(group="llm") if entry.name == "quire"]
    if not found:
        pytest.skip("needs quire installed")
    assert found[0].load() is plugin
    tools = tmp_path / "tools.py"
    tools.write_text(
        f"def get_weather(city: str) -> str:\n    '''Get the weather for a city.'''\n    return {RESULT!r}\n"
    )
    variables = {**environment(), "LLM_USER_PATH": str(tmp_path), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def run(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("-m", "quire", "-o", "temperature", "0", CAPITAL).strip() == ANSWER
    assert "21" in run("-m", "quire", "-o", "temperature", "0", "--functions", str(tools), str(ASKED[0]["content"]))
