"""Anthropic's API and OpenAI's responses, with the package's model.

Oracles: the same model in this process; the formats that these APIs' clients read.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from quire.engine import LLM
from quire.params.sampling import SamplingParams
from quire.server.routes.answers import arguments_object
from weather_tool import ABOUT, ASKED, PARAMETERS, WEATHER

GREEDY = SamplingParams(temperature=0.0, max_tokens=48)
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]
RESULT = '{"city": "Paris", "temp_c": 21, "sky": "sunny"}'


@pytest.fixture(scope="module")
def capital(llm: LLM) -> str:
    text = llm.chat(CAPITAL, GREEDY).message.content
    assert text
    return text


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def named_events(client: httpx.Client, path: str, **body: Any) -> list[Any]:
    """Return the data of server-sent events, whose type must equal their name."""
    events = []
    for block in client.post(path, json=body).text.strip().split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_messages(client: httpx.Client, llm: LLM, capital: str) -> None:
    body = {"model": "tiny-chat", "max_tokens": 48, "temperature": 0, "messages": CAPITAL}
    answer = post(client, "/v1/messages", **body)
    assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "end_turn")
    assert answer["content"] == [{"type": "text", "text": capital}]
    usage = answer["usage"]
    n_prompt = llm.chat(CAPITAL, GREEDY).n_prompt_tokens
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == n_prompt
    counted = post(client, "/v1/messages/count_tokens", model="tiny-chat", messages=CAPITAL)
    assert counted == {"input_tokens": n_prompt}
    events = named_events(client, "/v1/messages", **body, stream=True)
    assert [e["type"] for e in events[:2]] == ["message_start", "content_block_start"]
    assert [e["type"] for e in events[-3:]] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta") == capital
    assert events[-2]["usage"]["output_tokens"] == usage["output_tokens"]
    cut = post(client, "/v1/messages", **{**body, "stop_sequences": [" of"]})
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", " of")
    assert post(client, "/v1/messages", **{**body, "max_tokens": 1})["stop_reason"] == "max_tokens"


def test_messages_with_tools(client: httpx.Client) -> None:
    tool = {**ABOUT, "input_schema": PARAMETERS}
    body = {"model": "tiny-chat", "max_tokens": 64, "temperature": 0, "tools": [tool]}
    answer = post(client, "/v1/messages", **body, messages=ASKED)
    (used,) = answer["content"]
    assert (used["type"], used["name"], used["input"]) == ("tool_use", "get_weather", {"city": "Paris"})
    assert answer["stop_reason"] == "tool_use"
    events = named_events(client, "/v1/messages", **body, messages=ASKED, stream=True)
    written = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
    assert json.loads("".join(written)) == {"city": "Paris"}
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": [{"type": "text", "text": RESULT}]}
    turns = [*ASKED, {"role": "assistant", "content": answer["content"]}, {"role": "user", "content": [result]}]
    text = post(client, "/v1/messages", **body, messages=turns)["content"][0]["text"]
    assert "21" in text
    forced = {**body, "tool_choice": {"type": "any"}, "messages": CAPITAL}
    assert post(client, "/v1/messages", **forced)["stop_reason"] == "tool_use"


def test_a_truncated_call_is_a_prefix_of_the_whole(client: httpx.Client, llm: LLM) -> None:
    """On every route, complete and as a stream.  Oracle: the call in an answer that is not truncated."""
    whole = llm.chat(ASKED, SamplingParams(temperature=0.0, max_tokens=64), tools=[WEATHER])
    n_tokens = len(whole.token_ids) - 4
    plain = {"messages": ASKED, "temperature": 0, "max_tokens": n_tokens}
    body = {**plain, "tools": [WEATHER]}
    (choice,) = post(client, "/v1/chat/completions", **body)["choices"]
    (call,) = choice["message"]["tool_calls"]
    arguments = call["function"]["arguments"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", None)
    assert call["function"]["name"] == "get_weather"
    assert whole.message.tool_calls[0].function.arguments.startswith(arguments)
    assert arguments.startswith('{"city"')
    chunks = [json.loads(line) for line in stream_data(client, "/v1/chat/completions", **body)]
    deltas = [chunk["choices"][0] for chunk in chunks]
    assert not any(delta["delta"].get("content") for delta in deltas)
    calls = [call for delta in deltas for call in delta["delta"].get("tool_calls", [])]
    assert "".join(call["function"]["arguments"] for call in calls) == arguments
    assert deltas[-1]["finish_reason"] == "length"

    tool = {**ABOUT, "input_schema": PARAMETERS}
    answer = post(client, "/v1/messages", **plain, model="tiny-chat", tools=[tool])
    (used,) = answer["content"]
    assert (used["type"], used["name"], answer["stop_reason"]) == ("tool_use", "get_weather", "max_tokens")
    assert used["input"].items() <= {"city": "Paris"}.items()
    events = named_events(client, "/v1/messages", **plain, model="tiny-chat", tools=[tool], stream=True)
    assert [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"] == [arguments]

    tool = {"type": "function", **ABOUT, "parameters": PARAMETERS}
    cut = {"temperature": 0, "max_output_tokens": n_tokens, "tools": [tool], "input": ASKED}
    (item,) = post(client, "/v1/responses", **cut)["output"]
    assert (item["type"], item["status"], item["arguments"]) == ("function_call", "incomplete", arguments)

    options = {"temperature": 0, "num_predict": n_tokens}
    local = {"model": "tiny-chat", "messages": ASKED, "tools": [WEATHER], "options": options, "stream": False}
    message = post(client, "/api/chat", **local)["message"]
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"]["arguments"].items() <= {"city": "Paris"}.items()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": [1], "b": "x', {"a": [1]}),
        ('{"a": 12', {}),
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("[1]", {"arguments": [1]}),
        ("no JSON", {"arguments": "no JSON"}),
    ],
)
def test_arguments_as_an_object(text: str, expected: Any) -> None:
    assert arguments_object(text) == expected


def stream_data(client: httpx.Client, path: str, **body: Any) -> list[str]:
    """Return the data of server-sent events."""
    with client.stream("POST", path, json={**body, "stream": True}) as response:
        return [line[6:] for line in response.iter_lines() if line.startswith("data: {")]


def test_errors_of_messages_have_their_shape(client: httpx.Client) -> None:
    refused = client.post("/v1/messages", json={"model": "tiny-chat", "messages": CAPITAL})
    assert refused.status_code == 400
    assert refused.json()["type"] == "error"
    assert refused.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"messages": CAPITAL, "tool_choice": {"type": "some"}}, "tool_choice"),
        ({"messages": CAPITAL, "thinking": {"type": "some"}}, "thinking"),
        ({"messages": CAPITAL, "output_config": {"format": {"type": "regex"}}}, "output_config.format"),
        ({"messages": CAPITAL, "mcp_servers": [{}]}, "mcp_servers"),
    ],
)
def test_invalid_messages(client: httpx.Client, body: dict[str, Any], word: str) -> None:
    response = client.post("/v1/messages", json={"model": "tiny-chat", "max_tokens": 5, **body})
    assert response.status_code == 400
    assert word in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"messages": [{**CAPITAL[0], "prefix": True}]}, "messages[0].prefix"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "bold": True}]}]}, "content[0].bold"),
        ({"messages": CAPITAL, "system": [{"type": "text", "text": "x", "bold": True}]}, "system[0].bold"),
        ({"messages": CAPITAL, "tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, "defer_loading"),
        ({"messages": CAPITAL, "tool_choice": {"type": "auto", "disabled": True}}, "tool_choice"),
        # This model has no such levels and does not reason.
        ({"messages": CAPITAL, "output_config": {"effort": "low"}}, "output_config.effort"),
        ({"messages": CAPITAL, "output_config": {"speed": 1}}, "output_config.speed"),
        ({"messages": CAPITAL, "thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        ({"messages": CAPITAL, "thinking": {"type": "disabled"}}, "thinking"),
        ({"messages": CAPITAL, "context_management": {"edits": []}}, "context_management"),
        ({"messages": CAPITAL, "tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
    ],
)
def test_ignored_fields_are_named(client: httpx.Client, body: dict[str, Any], name: str) -> None:
    response = client.post("/v1/messages", json={"model": "tiny-chat", "max_tokens": 5, **body})
    assert response.status_code == 200, response.text
    assert name in response.headers["x-quire-ignored"]


def test_the_assistants_last_text_is_continued(client: httpx.Client, llm: LLM, capital: str) -> None:
    beginning, rest = capital[:11], capital[11:]
    for content in (beginning, [{"type": "text", "text": beginning[:4]}, {"type": "text", "text": beginning[4:]}]):
        messages = [*CAPITAL, {"role": "assistant", "content": content}]
        body = {"model": "tiny-chat", "messages": messages}
        answer = post(client, "/v1/messages", **body, max_tokens=48, temperature=0)
        assert answer["content"] == [{"type": "text", "text": rest}]
        usage = answer["usage"]
        counted = post(client, "/v1/messages/count_tokens", **body)["input_tokens"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]
    expected = llm.chat([*CAPITAL, {"role": "assistant", "content": beginning}], GREEDY, continue_final_message=True)
    assert (expected.message.content, expected.n_prompt_tokens) == (rest, counted)


def test_newer_fields_of_messages(client: httpx.Client, capital: str) -> None:
    cached = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "text", "text": CAPITAL[0]["content"], "citations": None, **cached}
    messages = [{"role": "user", "content": [block]}]
    more = {"model": "tiny-chat", "max_tokens": 64, "temperature": 0, "thinking": {"type": "adaptive"}, **cached}
    answer = post(client, "/v1/messages", messages=messages, **more)
    assert answer["content"] == [{"type": "text", "text": capital}]
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    form = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    answer = post(client, "/v1/messages", messages=messages, **more, **form)
    assert json.loads(answer["content"][0]["text"]) == {"a": 1}


def test_unknown_fields_of_an_input_are_named(client: httpx.Client) -> None:
    said = {"type": "message", "id": "a", "status": "completed", "role": "assistant"}
    said["content"] = [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}]  # type: ignore[assignment]
    asked = {"role": "user", "content": [{"type": "input_text", "text": "Is it?"}]}
    post(client, "/v1/responses", input=[asked, said, asked], max_output_tokens=1)
    for item, name in (
        ({**asked, "prefix": True}, "input[0].prefix"),
        ({"role": "user", "content": [{"type": "input_text", "text": "x", "bold": 1}]}, "input[0].content[0].bold"),
        ({"type": "function_call_output", "call_id": "a", "output": "x", "error": True}, "input[0].error"),
    ):
        response = client.post("/v1/responses", json={"input": [item], "max_output_tokens": 1})
        assert response.headers.get("x-quire-ignored") == repr(name), response.text
    tool = {"type": "function", "name": "f", "parameters": {}, "defer_loading": True}
    response = client.post("/v1/responses", json={"input": "x", "tools": [tool], "max_output_tokens": 1})
    assert response.headers["x-quire-ignored"] == "'tools[0].defer_loading'"


def test_responses(client: httpx.Client, capital: str) -> None:
    body = {"input": CAPITAL[0]["content"], "temperature": 0, "max_output_tokens": 48}
    answer = post(client, "/v1/responses", **body)
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == capital
    assert client.get(f"/v1/responses/{answer['id']}").json() == answer
    events = named_events(client, "/v1/responses", **body, stream=True)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta") == capital
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == capital
    cut = post(client, "/v1/responses", **{**body, "max_output_tokens": 2})
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})


def test_responses_continue_earlier_ones(client: httpx.Client, llm: LLM) -> None:
    tool = {"type": "function", **ABOUT, "parameters": PARAMETERS}
    body = {"temperature": 0, "max_output_tokens": 64, "tools": [tool]}
    first = post(client, "/v1/responses", **body, input=ASKED)
    (call,) = first["output"]
    assert (call["type"], json.loads(call["arguments"])) == ("function_call", {"city": "Paris"})
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    second = post(client, "/v1/responses", **body, input=[output], previous_response_id=first["id"])
    asked = llm.chat(ASKED, SamplingParams(temperature=0.0, max_tokens=64), tools=[WEATHER])
    turns = [*ASKED, asked.message.as_dict(), {"role": "tool", "content": RESULT}]
    expected = llm.chat(turns, SamplingParams(temperature=0.0, max_tokens=64), tools=[WEATHER])
    assert second["output"][0]["content"][0]["text"] == expected.message.content
    events = named_events(client, "/v1/responses", **body, input=ASKED, stream=True)
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.done" in kinds
    assert client.delete(f"/v1/responses/{first['id']}").json()["deleted"] is True
    gone = client.post("/v1/responses", json={**body, "input": "x", "previous_response_id": first["id"]})
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "previous_response_id")
    unkept = post(client, "/v1/responses", **body, input=ASKED, store=False)
    assert client.get(f"/v1/responses/{unkept['id']}").status_code == 404


def test_the_document_has_every_route(client: httpx.Client) -> None:
    from quire.server.app import ROUTES

    document = client.get("/openapi.json").json()
    assert {(m.upper(), path) for path, methods in document["paths"].items() for m in methods} == {
        (row.method, row.path) for row in ROUTES
    }
    text = json.dumps(document)
    names = {ref.split('"')[0] for ref in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])
    page = client.get("/docs").text
    assert all(row.path in page for row in ROUTES)
