"""Check Anthropic's client: ``python check_anthropic.py http://127.0.0.1:PORT``."""

from __future__ import annotations

import sys
from typing import Any

import anthropic
from checks import ANSWER, CAPITAL, MODEL, PARAMETERS, RESULT, WEATHER, Checks, finish

checks = Checks()
client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
create: Any = client.messages.create
BASE: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "extra_body": {"temperature": 0}}
TOOLS = [{"name": "get_weather", "description": "Get the weather for a city.", "input_schema": PARAMETERS}]

answer = create(messages=CAPITAL, **BASE)
checks.equal("text", answer.content[0].text, ANSWER)
checks.equal("end", (answer.role, answer.stop_reason, answer.stop_sequence), ("assistant", "end_turn", None))
usage = answer.usage
checks.true("usage", usage.input_tokens + usage.cache_read_input_tokens > 0 and usage.output_tokens > 0)
counted = client.messages.count_tokens(model=MODEL, messages=CAPITAL)  # type: ignore[arg-type]
checks.equal("count", counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)
with client.messages.stream(messages=CAPITAL, **BASE) as stream:
    checks.equal("stream", "".join(stream.text_stream), ANSWER)
    final = stream.get_final_message()
checks.equal("final", (final.content[0].text, final.stop_reason), (ANSWER, "end_turn"))
checks.equal("final usage", final.usage.output_tokens, usage.output_tokens)
checks.equal("cut", create(messages=CAPITAL, **{**BASE, "max_tokens": 2}).stop_reason, "max_tokens")
cut = create(messages=CAPITAL, stop_sequences=[" of"], **BASE)
checks.equal("stop", (cut.stop_reason, cut.stop_sequence), ("stop_sequence", " of"))
checks.true("system", create(messages=CAPITAL, system="Be short.", **BASE).content)
checks.true("blocks", create(messages=CAPITAL, system=[{"type": "text", "text": "Be short."}], **BASE).content)
for choice in (anthropic.omit, {"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "get_weather"}):
    called = create(messages=WEATHER, tools=TOOLS, tool_choice=choice, **BASE)
    checks.equal("call", (called.stop_reason, called.content[-1].input), ("tool_use", {"city": "Paris"}))
result = {"type": "tool_result", "tool_use_id": called.content[-1].id, "content": RESULT}
turns = [*WEATHER, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
checks.true("result", "21" in create(messages=turns, tools=TOOLS, **BASE).content[0].text)
with client.messages.stream(messages=WEATHER, tools=TOOLS, **BASE) as stream:  # type: ignore[arg-type]
    checks.equal("streamed call", stream.get_final_message().content[-1].input, {"city": "Paris"})  # type: ignore[union-attr]
for bad in ({"max_tokens": 0}, {"messages": []}, {"stop_sequences": ["x"] * 17}, {"tool_choice": {"type": "some"}}):
    body = {"messages": CAPITAL, **BASE, **bad}
    checks.raises(str(bad), anthropic.BadRequestError, lambda: create(**body))  # noqa: B023
checks.raises("model", anthropic.NotFoundError, lambda: create(messages=CAPITAL, **{**BASE, "model": "none"}))
finish(checks, f"anthropic {anthropic.__version__}", 20)
