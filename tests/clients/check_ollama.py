"""Check Ollama's client: ``python check_ollama.py http://127.0.0.1:PORT``."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import ollama
from checks import ANSWER, CAPITAL, MODEL, RESULT, TOOL, WEATHER, Checks, finish

checks = Checks()
client = ollama.Client(host=sys.argv[1])
chat: Any = client.chat
OPTIONS = {"temperature": 0, "num_predict": 64}

answer = chat(model=MODEL, messages=CAPITAL, options=OPTIONS)
checks.equal("chat", (answer.message.content, answer.done, answer.done_reason), (ANSWER, True, "stop"))
checks.true("durations", answer.total_duration >= answer.eval_duration > 0)
checks.true("counts", answer.prompt_eval_count > 0 and answer.eval_count > 0)
parts = list(chat(model=MODEL, messages=CAPITAL, options=OPTIONS, stream=True))
checks.equal("stream", "".join(part.message.content or "" for part in parts), ANSWER)
checks.equal("done", [part.done for part in parts], [False] * (len(parts) - 1) + [True])
made = client.generate(model=MODEL, prompt=CAPITAL[0]["content"], options=OPTIONS)
checks.equal("generate", made.response, ANSWER)
texts = client.generate(model=MODEL, prompt=CAPITAL[0]["content"], options=OPTIONS, stream=True)
checks.equal("stream", "".join(part.response for part in texts), ANSWER)
checks.true("raw", client.generate(model=MODEL, prompt="Once upon a time", raw=True, options=OPTIONS).response)
call = chat(model=MODEL, messages=WEATHER, tools=[TOOL], options=OPTIONS).message.tool_calls[0]
checks.equal("call", (call.function.name, call.function.arguments), ("get_weather", {"city": "Paris"}))
turns = [*WEATHER, {"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": RESULT}]
checks.true("result", "21" in chat(model=MODEL, messages=turns, tools=[TOOL], options=OPTIONS).message.content)
schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
formed = chat(model=MODEL, messages=CAPITAL, format=schema, options=OPTIONS).message.content
checks.true("format", json.loads(formed)["n"] in (1, 2))
checks.true("list", any(model.model.startswith(MODEL) for model in client.list().models))
checks.true("ps", client.ps().models)
checks.true("show", "completion" in client.show(MODEL).capabilities)
error = checks.raises("model", ollama.ResponseError, lambda: chat(model="none", messages=CAPITAL))
checks.equal("status", error.status_code, 404)
error = checks.raises("option", ollama.ResponseError, lambda: chat(model=MODEL, messages=CAPITAL, options={"top_p": 9}))
checks.equal("status", error.status_code, 400)
vectors = client.embed(model=MODEL, input=["x", "y"]).embeddings
checks.true("embed", len(vectors) == 2 and abs(sum(v * v for v in vectors[0]) - 1) < 1e-5)
finish(checks, f"ollama {version('ollama')}", 18)
