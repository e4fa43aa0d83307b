"""Conversations in every order and shape in which clients send them.

Each text of the system, a user or a tool is a unique word, so that a prompt shows whether and how often it is there.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]


def says(role: str, text: Any, **more: Any) -> Message:
    return {"role": role, "content": text, **more}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


def call(name: str = "callone", arguments: Any = '{"city": "Paris"}', id: Any = "call00001", **more: Any) -> Message:
    made: Message = {"type": "function", "function": {"name": name, "arguments": arguments}, **more}
    return made if id is None else {"id": id, **made}


def calls(*made: Message, content: Any = None, **more: Any) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(made), **more}


def result(text: Any = "resultone", id: Any = "call00001", **more: Any) -> Message:
    made: Message = {"role": "tool", "content": text, **more}
    return made if id is None else {**made, "tool_call_id": id}


def with_arguments(arguments: Any) -> list[Message]:
    return [USER, calls(call(arguments=arguments)), result()]


def with_id(id: Any) -> list[Message]:
    return [USER, calls(call(id=id)), result(id=id)]


SYSTEM, LATER = says("system", "systemone"), says("system", "systemtwo")
USER, AGAIN = says("user", "userone"), says("user", "usertwo")
ANSWER = says("assistant", "answerone")
CALLED = [USER, calls(call()), result()]
TWO = calls(call(), call("calltwo", "{}", "call00002"))
RESULTS = [result(), result("resulttwo", "call00002")]
UNLINKED = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "callone", "arguments": "{}"}}]}

HISTORIES: dict[str, list[Message]] = {
    # System messages.
    "two leading": [SYSTEM, LATER, USER],
    "three leading": [SYSTEM, LATER, says("developer", "developerone"), USER],
    "at the end": [SYSTEM, USER, LATER],
    "at the end alone": [USER, LATER],
    "between turns": [SYSTEM, USER, ANSWER, LATER, AGAIN],
    "behind an answer": [USER, ANSWER, LATER],
    "two in the middle": [SYSTEM, USER, LATER, says("system", "systemthree"), ANSWER, AGAIN],
    "behind a result": [SYSTEM, *CALLED, LATER],
    "between call and result": [USER, CALLED[1], LATER, CALLED[2]],
    "before results": [SYSTEM, USER, LATER, *CALLED[1:], AGAIN],
    "alone": [SYSTEM],
    "two alone": [SYSTEM, LATER],
    "and an answer": [SYSTEM, ANSWER],
    "developer": [says("developer", "developerone"), USER],
    "developer in the middle": [SYSTEM, USER, says("developer", "developerone"), ANSWER, AGAIN],
    "system and developer": [SYSTEM, says("developer", "developerone"), USER],
    "developer of parts": [says("developer", parts("developerone", "developertwo")), USER],
    "system of parts": [says("system", parts("systemone", "systemtwo", "systemthree")), USER],
    "systems of parts": [says("system", parts("systemone")), says("system", parts("systemtwo", "systemthree")), USER],
    "parts in the middle": [SYSTEM, USER, says("system", parts("systemtwo", "systemthree"))],
    "empty system": [says("system", ""), USER],
    # The order of turns.
    "two of the user": [USER, AGAIN],
    "three of the user": [SYSTEM, USER, AGAIN, says("user", parts("userthree", "userfour"))],
    "two answers": [USER, ANSWER, says("assistant", "answertwo"), AGAIN],
    "answer first": [ANSWER, USER],
    "answer first, of the system": [SYSTEM, ANSWER, USER],
    "answer last": [USER, ANSWER],
    "answers last": [SYSTEM, USER, ANSWER, says("assistant", "answertwo")],
    "only an answer": [ANSWER],
    "user of parts": [says("user", parts("userone", "usertwo")), says("assistant", parts("answerone")), says("user", parts("userthree"))],
    "empty texts": [says("user", "userone"), says("assistant", ""), says("user", "usertwo")],
    "no parts": [says("user", "userone"), says("assistant", []), AGAIN],
    # Fields of answers besides their text.
    "null content": [USER, says("assistant", None), AGAIN],
    "refusal": [USER, {"role": "assistant", "content": None, "refusal": "answerone"}, AGAIN],
    "refused part": [USER, says("assistant", [{"type": "refusal", "refusal": "answerone"}]), AGAIN],
    "no calls": [USER, says("assistant", "answerone", tool_calls=[], refusal=None, name=None), AGAIN],
    "reasoning": [USER, says("assistant", "answerone", reasoning_content="thought"), AGAIN],
    "reasoning alone": [USER, says("assistant", None, reasoning_content="thought"), AGAIN],
    "empty reasoning": [USER, calls(call(), reasoning_content=""), result(), AGAIN],
    # Arguments of calls.
    **{f"arguments {arguments!r}": with_arguments(arguments) for arguments in (
        "", " ", "null", None, "{}", {}, '{"city": "Par', '{"city": ', '{"a": [1, {"b": "x', "{", "city", "[1, 2]", "3", [1],
        '"{\\"city\\": \\"Paris\\"}"', {"a": {"b": [None, True, 1.5]}, "": "x"}, '{"a": NaN}', 7,
    )},
    "no arguments": [USER, calls({"id": "call00001", "type": "function", "function": {"name": "callone"}}), result()],
    # Ids of calls.
    **{f"id {id!r}": with_id(id) for id in (
        "call_abcdefghijklmnopqrstuvwx", "toolu_01A09q90qw90lq917835lq9", "functions.callone:0", "", None, 1, "x" * 200,
        "chatcmpl-tool-0123456789abcdef",
    )},
    "no type": [USER, UNLINKED, result(id=None)],
    "the same id twice": [USER, calls(call()), result(), calls(call("calltwo")), result("resulttwo"), AGAIN],
    # Calls and results.
    "two calls": [SYSTEM, USER, TWO, *RESULTS],
    "two calls, results in another order": [USER, TWO, *reversed(RESULTS), AGAIN],
    "two calls, one result": [USER, TWO, result(), AGAIN],
    "five calls": [USER, calls(*(call(f"call{i}x", "{}", f"call0000{i}") for i in range(5))), *(result(f"result{i}x", f"call0000{i}") for i in range(5))],
    "text beside calls": [USER, calls(call(), content="beside"), result()],
    "empty text beside calls": [USER, calls(call(), content=""), result(), ANSWER, AGAIN],
    "parts beside calls": [USER, calls(call(), content=parts("beside")), result()],
    "no content beside calls": [USER, {"role": "assistant", "tool_calls": [call()]}, result()],
    "text beside results": [*CALLED, AGAIN],
    "text beside results of parts": [*CALLED[:2], result(parts("resultone", "resulttwo")), says("user", parts("usertwo"))],
    "calls in a row": [USER, calls(call()), result(), calls(call("calltwo", "{}", "call00002")), RESULTS[1], ANSWER, AGAIN],
    "call without result": [USER, calls(call()), AGAIN],
    "call at the end": [USER, calls(call())],
    "result without call": [USER, result()],
    "result first": [result(), AGAIN],
    "result of another call": [USER, calls(call()), result(id="call00009")],
    "named result": [*CALLED[:2], result(name="callone")],
    "null result": [*CALLED[:2], result(None)],
    "empty result": [*CALLED[:2], result("")],
    "result as an object": [*CALLED[:2], result({"a": "resultone"})],
    "result as a list": [*CALLED[:2], result(["resultone"])],
    "function of old": [USER, {"role": "assistant", "content": None, "function_call": {"name": "callone", "arguments": "{}"}}, {"role": "function", "name": "callone", "content": "resultone"}],
    "an agent's": [SYSTEM, USER, *(m for i in range(9) for m in (calls(call(id=f"call0001{i}")), result(f"result{i}x", f"call0001{i}"))), AGAIN],
    "long": [SYSTEM, *(m for i in range(40) for m in (says("user", f"user{i:03d}"), says("assistant", f"answer{i:03d}"))), USER],
}  # fmt: skip


def tool(function: Message) -> list[Message]:
    return [{"type": "function", "function": function}]


def argument(schema: Any) -> Message:
    return {"name": "lookup", "parameters": {"type": "object", "properties": {"place": schema}}}


TOOLS: dict[str, list[Message]] = {
    "name alone": tool({"name": "lookup"}),
    "nulls": tool({"name": "lookup", "description": None, "parameters": None, "strict": None}),
    "no description": tool(argument({"type": "string"})),
    "empty description": tool({**argument({"type": "string"}), "description": ""}),
    "no parameters": tool({"name": "lookup", "description": "Looks."}),
    "empty parameters": tool({"name": "lookup", "parameters": {}}),
    "no properties": tool({"name": "lookup", "parameters": {"type": "object"}}),
    "properties only": tool({"name": "lookup", "parameters": {"properties": {"place": {"type": "string"}}}}),
    "null required": tool({"name": "lookup", "parameters": {"type": "object", "properties": {}, "required": None}}),
    "any argument": tool(argument({})),
    "true": tool(argument(True)),
    "described": tool(argument({"description": "Where."})),
    "types": tool(argument({"type": ["string", "null"]})),
    "anyOf": tool(argument({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Place"})),
    "oneOf": tool(argument({"oneOf": [{"type": "object", "properties": {"a": {}}}, {"const": 1}]})),
    "enum": tool(argument({"enum": ["here", "there"]})),
    "ref": tool({"name": "lookup", "parameters": {"type": "object", "properties": {"place": {"$ref": "#/$defs/P"}}, "$defs": {"P": {"type": "string"}}}}),
    "array": tool(argument({"type": "array"})),
    "array of any": tool(argument({"type": "array", "items": {}})),
    "array of objects": tool(argument({"type": "array", "items": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}})),
    "object": tool(argument({"type": "object"})),
    "free object": tool(argument({"type": "object", "additionalProperties": {"type": "string"}})),
    "no additional": tool({"name": "lookup", "description": "Looks.", "strict": True, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}),
    "numbers": tool(argument({"type": "integer", "minimum": 0, "exclusiveMaximum": 2**63, "default": 1})),
    "no type of tool": [{"function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}],
    "several": [*tool({"name": "lookup"}), *tool({"name": "other", "description": "Does.", "parameters": {"type": "object", "properties": {"x": {}}}})],
}  # fmt: skip


def demanded(history: list[Message]) -> list[str]:
    """Return the texts that a prompt must contain exactly once."""
    found = []
    for message in history:
        if message["role"] == "assistant":
            continue
        content = message["content"]
        if isinstance(content, str) and content:
            found.append(content)
        elif isinstance(content, list):
            found += [part["text"] if isinstance(part, dict) else part for part in content]
        elif isinstance(content, dict):
            found += list(content.values())
    return found
