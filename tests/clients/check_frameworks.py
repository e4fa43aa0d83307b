"""Check litellm, langchain-openai and instructor: ``python check_frameworks.py http://127.0.0.1:PORT``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from importlib.metadata import version
from typing import Any, Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise it would be downloaded

import instructor
import litellm
from checks import ANSWER, CAPITAL, MODEL, PARAMETERS, RESULT, TOOL, WEATHER, Checks, finish
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, SecretStr

URL = f"{sys.argv[1]}/v1"


def check_litellm() -> None:
    checks = Checks()
    base: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": URL, "api_key": "unused", "temperature": 0}
    ask: Any = litellm.completion
    answer = ask(messages=CAPITAL, **base)
    checks.equal("chat", answer.choices[0].message.content, ANSWER)
    checks.true("usage", answer.usage.total_tokens > 0)
    streamed = "".join(c.choices[0].delta.content or "" for c in ask(messages=CAPITAL, stream=True, **base))
    checks.equal("stream", streamed, ANSWER)
    call = ask(messages=WEATHER, tools=[TOOL], **base).choices[0].message.tool_calls[0]
    checks.equal("call", json.loads(call.function.arguments), {"city": "Paris"})
    turns = [*WEATHER, {"role": "assistant", "tool_calls": [call.model_dump()], "content": ""}]
    turns.append({"role": "tool", "tool_call_id": call.id, "content": RESULT})
    checks.true("result", "21" in ask(messages=turns, tools=[TOOL], **base).choices[0].message.content)
    later = asyncio.run(litellm.acompletion(messages=CAPITAL, **base))
    checks.equal("async", later.choices[0].message.content, ANSWER)  # type: ignore[union-attr]
    text = litellm.text_completion(
        prompt="Once upon a time", max_tokens=5, **{**base, "model": f"text-completion-openai/{MODEL}"}
    )
    checks.true("text", text.choices[0].text)  # type: ignore[union-attr]
    other = {
        "model": f"anthropic/{MODEL}",
        "api_base": sys.argv[1],
        "api_key": "unused",
        "temperature": 0,
        "max_tokens": 64,
    }
    checks.equal("anthropic's", ask(messages=CAPITAL, **other).choices[0].message.content, ANSWER)
    checks.raises("refusal", litellm.BadRequestError, lambda: ask(messages=CAPITAL, **{**base, "temperature": -1}))
    finish(checks, f"litellm {version('litellm')}", 9)


def check_langchain() -> None:
    checks = Checks()
    model = ChatOpenAI(model=MODEL, base_url=URL, api_key=SecretStr("unused"), temperature=0, max_retries=0)
    question = HumanMessage(str(CAPITAL[0]["content"]))
    answer = model.invoke([question])
    checks.equal("invoke", answer.content, ANSWER)
    checks.true("usage", answer.usage_metadata)
    checks.equal("stream", "".join(str(part.content) for part in model.stream([question])), ANSWER)
    checks.equal("batch", [a.content for a in model.batch([[question]] * 4)], [ANSWER] * 4)
    checks.equal("async", asyncio.run(model.ainvoke([question])).content, ANSWER)
    with_tools = model.bind_tools([TOOL])
    asked = HumanMessage(str(WEATHER[0]["content"]))
    called: Any = with_tools.invoke([asked])
    (call,) = called.tool_calls
    checks.equal("call", (call["name"], call["args"]), ("get_weather", {"city": "Paris"}))
    after = with_tools.invoke([asked, called, ToolMessage(RESULT, tool_call_id=call["id"])])
    checks.true("result", "21" in str(after.content))
    schema = {"title": "Weather", **PARAMETERS, "additionalProperties": False}
    formed: Any = model.with_structured_output(schema, method="json_schema").invoke([asked])
    checks.true("form", isinstance(formed["city"], str))
    finish(checks, f"langchain-openai {version('langchain-openai')}", 8)


class Colour(BaseModel):
    """One of three colours."""

    model_config = ConfigDict(extra="forbid")
    colour: Literal["red", "green", "blue"]


def check_instructor() -> None:
    checks = Checks()
    plain = OpenAI(base_url=URL, api_key="unused", max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        client: Any = instructor.from_openai(plain, mode=mode)
        made = client.chat.completions.create(
            model=MODEL, messages=CAPITAL, response_model=Colour, max_tokens=64, temperature=0, max_retries=0
        )
        checks.true(str(mode), made.colour in ("red", "green", "blue"))
    finish(checks, f"instructor {version('instructor')}", 2)


check_litellm()
check_langchain()
check_instructor()
