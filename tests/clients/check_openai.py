"""Check OpenAI's client: ``python check_openai.py http://127.0.0.1:PORT``."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import openai
from checks import ANSWER, CAPITAL, MODEL, PARAMETERS, RESULT, TOOL, WEATHER, Checks, finish
from openai import AsyncOpenAI, OpenAI

checks = Checks()
client = OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
create: Any = client.chat.completions.create
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0}


def embeddings() -> None:
    made: Any = client.embeddings.create(model=MODEL, input=["a", "b"])  # requests base64 by default
    floats: Any = client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    checks.equal("index", [item.index for item in made.data], [0, 1])
    for ours, theirs in zip(made.data, floats.data, strict=True):
        checks.true("vector", max(abs(a - b) for a, b in zip(ours.embedding, theirs.embedding, strict=True)) < 1e-5)
        checks.true("length", abs(sum(v * v for v in ours.embedding) - 1) < 1e-5)
    short: Any = client.embeddings.create(model=MODEL, input="a", dimensions=8)
    checks.equal("dimensions", len(short.data[0].embedding), 8)
    checks.true("usage", made.usage.total_tokens == made.usage.prompt_tokens > 0)


def chats() -> None:
    answer = create(messages=CAPITAL, **GREEDY)
    checks.equal("content", answer.choices[0].message.content, ANSWER)
    checks.equal("role", answer.choices[0].message.role, "assistant")
    checks.equal("finish_reason", answer.choices[0].finish_reason, "stop")
    checks.equal("object", answer.object, "chat.completion")
    checks.equal("model", answer.model, MODEL)
    checks.true("id", answer.id.startswith("chatcmpl-"))
    usage = answer.usage
    checks.equal("total", usage.total_tokens, usage.prompt_tokens + usage.completion_tokens)
    checks.true("cached", usage.prompt_tokens_details.cached_tokens >= 0)
    for n in (1, 2, 4, 16):
        drawn = create(messages=CAPITAL, model=MODEL, n=n, temperature=1.2, seed=5, max_tokens=8)
        checks.equal("n", [choice.index for choice in drawn.choices], list(range(n)))
        again = create(messages=CAPITAL, model=MODEL, n=n, temperature=1.2, seed=5, max_tokens=8)
        checks.equal("seed", [c.message.content for c in again.choices], [c.message.content for c in drawn.choices])
    for most in (1, 2, 5):
        for name in ("max_tokens", "max_completion_tokens"):
            cut = create(messages=CAPITAL, **GREEDY, **{name: most})
            checks.equal(name, (cut.usage.completion_tokens, cut.choices[0].finish_reason), (most, "length"))
    for stop in (" of", [" of"], [" of", " is"]):
        stopped = create(messages=CAPITAL, **GREEDY, stop=stop).choices[0]
        checks.equal("stop", (stopped.message.content, stopped.finish_reason), ("The capital", "stop"))
    for messages in (
        [{"role": "system", "content": "Be short."}, *CAPITAL],
        [{"role": "developer", "content": "Be short."}, *CAPITAL],
        [{"role": "user", "content": [{"type": "text", "text": CAPITAL[0]["content"]}]}],
        [*CAPITAL, {"role": "assistant", "content": ANSWER}, *CAPITAL],
    ):
        checks.true("messages", create(messages=messages, **GREEDY, max_tokens=20).choices[0].message.content)
    for name, value in (
        ("top_p", 0.9), ("presence_penalty", 0.5), ("frequency_penalty", -0.5), ("user", "someone"),
        ("metadata", {"a": "b"}), ("store", False), ("logit_bias", {"5": -100}), ("parallel_tool_calls", True),
        ("service_tier", "auto"), ("safety_identifier", "x"),
    ):  # fmt: skip
        checks.true(name, create(messages=CAPITAL, **GREEDY, **{name: value}).choices)
    for name, value in (("top_k", 1), ("min_p", 0.1), ("repetition_penalty", 1.1), ("cache_salt", "a")):
        checks.true(name, create(messages=CAPITAL, **GREEDY, extra_body={name: value}).choices)


def streams() -> None:
    chunks = list(create(messages=CAPITAL, **GREEDY, stream=True, stream_options={"include_usage": True}))
    checks.equal("text", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), ANSWER)
    checks.equal("ids", len({chunk.id for chunk in chunks}), 1)
    checks.equal("role", chunks[0].choices[0].delta.role, "assistant")
    checks.equal("end", [c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
    checks.equal("usage", (chunks[-1].choices, chunks[-1].usage.completion_tokens > 0), ([], True))
    plain = list(create(messages=CAPITAL, **GREEDY, stream=True))
    checks.true("no usage", all(chunk.usage is None for chunk in plain))
    for n in (1, 3):
        texts = [""] * n
        for chunk in create(messages=CAPITAL, model=MODEL, n=n, seed=1, temperature=1.0, max_tokens=9, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        whole = create(messages=CAPITAL, model=MODEL, n=n, seed=1, temperature=1.0, max_tokens=9)
        checks.equal("stream", texts, [choice.message.content for choice in whole.choices])
    with create(messages=CAPITAL, **GREEDY, stream=True) as stream:
        checks.true("left early", next(iter(stream)).choices)
    with client.chat.completions.stream(messages=CAPITAL, **GREEDY) as events:
        kinds = [event.type for event in events]
        checks.equal("helper", events.get_final_completion().choices[0].message.content, ANSWER)
    checks.true("content.done", "content.done" in kinds)


def logprobs() -> None:
    for top in (0, 1, 5, 20):
        answer = create(messages=CAPITAL, **GREEDY, logprobs=True, top_logprobs=top).choices[0]
        tokens = answer.logprobs.content
        checks.equal("tokens", b"".join(bytes(t.bytes) for t in tokens).decode(), ANSWER)
        checks.true("top", all(len(t.top_logprobs) == top for t in tokens))
        checks.true("greedy", all(t.logprob <= 0 for t in tokens))
        if top:
            checks.true("first", all(t.top_logprobs[0].token == t.token for t in tokens if t.bytes))
    checks.equal("none", create(messages=CAPITAL, **GREEDY).choices[0].logprobs, None)


def tools() -> None:
    for choice in (openai.omit, "auto", "required", {"type": "function", "function": {"name": "get_weather"}}):
        answer = create(messages=WEATHER, **GREEDY, tools=[TOOL], tool_choice=choice).choices[0]
        (call,) = answer.message.tool_calls
        checks.equal("name", call.function.name, "get_weather")
        checks.equal("arguments", json.loads(call.function.arguments), {"city": "Paris"})
        checks.equal("finish_reason", answer.finish_reason, "tool_calls")
    said = create(messages=WEATHER, **GREEDY, tools=[TOOL], tool_choice="none").choices[0].message
    checks.true("none", not said.tool_calls)
    turns = [*WEATHER, answer.message, {"role": "tool", "tool_call_id": call.id, "content": RESULT}]
    checks.true("result", "21" in create(messages=turns, **GREEDY, tools=[TOOL]).choices[0].message.content)
    parts = [c.choices[0].delta for c in create(messages=WEATHER, **GREEDY, tools=[TOOL], stream=True) if c.choices]
    written = [made for part in parts for made in part.tool_calls or []]
    checks.equal("streamed", json.loads("".join(made.function.arguments for made in written)), {"city": "Paris"})
    checks.true("streamed id", written[0].id)


def forms() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2, 3]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema, "strict": True}}
    for stream in (False, True):
        answer = create(messages=CAPITAL, model=MODEL, response_format=form, max_tokens=64, stream=stream)
        text = (
            "".join(c.choices[0].delta.content or "" for c in answer) if stream else answer.choices[0].message.content
        )
        checks.true("schema", json.loads(text)["n"] in (1, 2, 3))
    checks.true("text", create(messages=CAPITAL, **GREEDY, response_format={"type": "text"}).choices)


def completions() -> None:
    complete: Any = client.completions.create
    answer = complete(prompt="Once upon a time", **GREEDY, max_tokens=8)
    checks.equal("object", (answer.object, answer.usage.completion_tokens), ("text_completion", 8))
    text = answer.choices[0].text
    echoed = complete(prompt="Once upon a time", **GREEDY, max_tokens=8, echo=True).choices[0].text
    checks.equal("echo", echoed, "Once upon a time" + text)
    several = complete(prompt=["Once upon a time", "The"], **GREEDY, max_tokens=8, n=2).choices
    checks.equal("several", ([c.index for c in several], several[0].text), ([0, 1, 2, 3], text))
    streamed = "".join(
        c.choices[0].text for c in complete(prompt="Once upon a time", **GREEDY, max_tokens=8, stream=True)
    )
    checks.equal("stream", streamed, text)
    shown = complete(prompt="Once upon a time", **GREEDY, max_tokens=8, logprobs=2).choices[0].logprobs
    checks.equal("logprobs", ("".join(shown.tokens), len(shown.top_logprobs)), (text, 8))
    checks.true("best_of", complete(prompt="Once", model=MODEL, max_tokens=4, best_of=3, temperature=1.0).choices)


def responses() -> None:
    ask: Any = client.responses.create
    answer = ask(input=CAPITAL[0]["content"], **GREEDY)
    checks.equal("text", (answer.output_text, answer.status), (ANSWER, "completed"))
    checks.equal("again", client.responses.retrieve(answer.id).output_text, ANSWER)
    kinds = []
    text = ""
    for event in ask(input=CAPITAL, **GREEDY, stream=True):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    checks.equal("stream", (text, kinds[0], kinds[-1]), (ANSWER, "response.created", "response.completed"))
    tool = {
        "type": "function",
        "name": "get_weather",
        "description": TOOL["function"]["description"],
        "parameters": PARAMETERS,
    }  # type: ignore[index]
    called = ask(input=WEATHER, **GREEDY, tools=[tool])
    made = called.output[0]
    checks.equal("call", (made.type, json.loads(made.arguments)), ("function_call", {"city": "Paris"}))
    output = {"type": "function_call_output", "call_id": made.call_id, "output": RESULT}
    after = ask(input=[output], previous_response_id=called.id, **GREEDY, tools=[tool])
    checks.true("result", "21" in after.output_text)
    client.responses.delete(answer.id)
    checks.raises("deleted", openai.NotFoundError, lambda: client.responses.retrieve(answer.id))


def refusals() -> None:
    bad = openai.BadRequestError
    for field, value in (
        ("temperature", -1), ("top_p", 2), ("n", 0), ("n", 17), ("max_tokens", 0), ("presence_penalty", 9), ("seed", "x"),
        ("stop", ["x"] * 17), ("top_logprobs", 3), ("logit_bias", {"x": 1}), ("response_format", {"type": "xml"}),
        ("modalities", ["audio"]), ("reasoning_effort", "huge"), ("tools", [{}] * 129),
    ):  # fmt: skip
        error = checks.raises(field, bad, lambda: create(messages=CAPITAL, model=MODEL, **{field: value}))  # noqa: B023
        checks.true(f"{field} is named", field in (error.param or "") or field in error.message)
    error = checks.raises("unknown", bad, lambda: create(messages=CAPITAL, model=MODEL, extra_body={"temprature": 1}))
    checks.equal("code", error.code, "unknown_parameter")
    long = [{"role": "user", "content": "word " * 5000}]
    for stream in (False, True):
        error = checks.raises("context", bad, lambda: create(messages=long, model=MODEL, stream=stream))  # noqa: B023
        checks.equal("code", error.code, "context_length_exceeded")
    checks.raises("model", openai.NotFoundError, lambda: create(messages=CAPITAL, model="gpt-none"))


def in_background() -> None:
    response = client.responses.create(model=MODEL, input=CAPITAL[0]["content"], temperature=0, background=True)
    checks.equal("status", (response.status, response.background), ("in_progress", True))
    for _ in range(300):
        response = client.responses.retrieve(response.id)
        if response.status != "in_progress":
            break
        time.sleep(0.1)
    checks.equal("background", (response.status, response.output_text), ("completed", ANSWER))
    next_one = client.responses.create(
        model=MODEL, input="Again.", previous_response_id=response.id, max_output_tokens=8
    )
    checks.true("continued", next_one.usage is not None and next_one.usage.input_tokens > 20)
    long = client.responses.create(model=MODEL, input="Tell me a story", max_output_tokens=1000, background=True)
    checks.equal("cancelled", client.responses.cancel(long.id).status, "cancelled")


def batches() -> None:
    asked = [{"model": MODEL, "messages": CAPITAL, "temperature": 0}, {"model": MODEL, "messages": []}]
    lines = [
        json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body})
        for i, body in enumerate(asked)
    ]
    file = client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")
    checks.equal("name", file.filename, "requests.jsonl")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    for _ in range(300):
        batch = client.batches.retrieve(batch.id)
        if batch.status == "completed":
            break
        time.sleep(0.1)
    checks.equal("counts", (batch.request_counts.completed, batch.request_counts.failed), (1, 1))  # type: ignore[union-attr]
    answer = json.loads(client.files.content(str(batch.output_file_id)).text)
    checks.equal("batch", answer["response"]["body"]["choices"][0]["message"]["content"], ANSWER)
    checks.true("listed", batch.id in [each.id for each in client.batches.list()])
    checks.true("deleted", client.files.delete(file.id).deleted)


async def at_once() -> None:
    asking = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0)
    call: Any = asking.chat.completions.create
    answers = await asyncio.gather(*(call(messages=CAPITAL, **GREEDY) for _ in range(24)))
    for answer in answers:
        checks.equal("at once", answer.choices[0].message.content, ANSWER)


checks.true("models", MODEL in [model.id for model in client.models.list()])
checks.equal("model", client.models.retrieve(MODEL).id, MODEL)
for part in (
    chats,
    streams,
    logprobs,
    tools,
    forms,
    completions,
    embeddings,
    responses,
    in_background,
    batches,
    refusals,
):
    part()
asyncio.run(at_once())
finish(checks, f"openai {openai.__version__}", 100)
