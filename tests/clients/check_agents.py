"""Check pydantic-ai, LlamaIndex and llm, with tools: ``python check_agents.py http://127.0.0.1:PORT``."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from checks import ANSWER, CAPITAL, MODEL, RESULT, WEATHER, Checks, finish
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = f"{sys.argv[1]}/v1"
QUESTION, WEATHER_QUESTION = str(CAPITAL[0]["content"]), str(WEATHER[0]["content"])


class Colour(BaseModel):
    """One of three colours."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green", "blue"]


def get_weather(city: str) -> str:
    """Get the weather for a city."""
    return RESULT


def check_pydantic_ai() -> None:
    checks = Checks()
    model: Any = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="unused"))
    settings: Any = {"temperature": 0.0, "max_tokens": 64}
    checks.equal("run", Agent(model, model_settings=settings).run_sync(QUESTION).output, ANSWER)
    forced: Any = Agent(model, output_type=ToolOutput(Colour, strict=True), model_settings=settings)
    checks.true("ToolOutput", forced.run_sync(QUESTION).output.colour in ("red", "green", "blue"))
    agent: Any = Agent(model, tools=[get_weather], model_settings=settings)
    checks.true("tools", "21" in agent.run_sync(WEATHER_QUESTION).output)

    async def streamed() -> str:
        async with Agent(model, model_settings=settings).run_stream(QUESTION) as result:
            return str(await result.get_output())

    checks.equal("stream", asyncio.run(streamed()), ANSWER)
    finish(checks, f"pydantic-ai {version('pydantic-ai-slim')}", 4)


def check_llama_index() -> None:
    checks = Checks()
    llm = OpenAILike(
        model=MODEL, api_base=URL, api_key="unused", is_chat_model=True, is_function_calling_model=True,
        temperature=0, context_window=2048, max_tokens=64,
    )  # fmt: skip
    checks.equal("chat", llm.chat([ChatMessage(role="user", content=QUESTION)]).message.content, ANSWER)
    streamed = [part.delta or "" for part in llm.stream_chat([ChatMessage(role="user", content=QUESTION)])]
    checks.equal("stream", "".join(streamed), ANSWER)
    tool = FunctionTool.from_defaults(get_weather)
    answer = llm.chat_with_tools([tool], user_msg=WEATHER_QUESTION)
    (call,) = llm.get_tool_calls_from_response(answer)
    checks.equal("call", (call.tool_name, call.tool_kwargs), ("get_weather", {"city": "Paris"}))
    finish(checks, f"llama-index {version('llama-index-llms-openai-like')}", 3)


def check_llm() -> None:
    """Check the command ``llm -T``, with a model from llm's configuration file."""
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        models = [
            f"- model_id: {MODEL}", f"  model_name: {MODEL}", f"  api_base: {URL}", "  can_stream: true",
            "  supports_tools: true",
        ]  # fmt: skip
        Path(folder, "extra-openai-models.yaml").write_text("\n".join(models), encoding="utf-8")
        functions = Path(folder, "tools.py")
        functions.write_text(
            f"def get_weather(city: str) -> str:\n    '''Get the weather for a city.'''\n    return {RESULT!r}\n",
            encoding="utf-8",
        )
        environment = {**os.environ, "LLM_USER_PATH": folder, "OPENAI_API_KEY": "unused"}

        def run(*arguments: str) -> str:
            command = [sys.executable, "-m", "llm", "-m", MODEL, "-o", "temperature", "0", "-o", "max_tokens", "64"]
            done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=True)
            return done.stdout

        checks.equal("prompt", run(QUESTION).strip(), ANSWER)
        checks.equal("whole", run("--no-stream", QUESTION).strip(), ANSWER)
        checks.true("tools", "21" in run("--functions", str(functions), WEATHER_QUESTION))
        shown = run("-T", "llm_version", "--no-stream", QUESTION)
        checks.true("-T", shown.strip())
    finish(checks, f"llm {version('llm')}", 4)


check_pydantic_ai()
check_llama_index()
check_llm()
