"""Calls that are forced to their schemas in wire formats that write arguments one by one.

Oracles: the readers of the formats (tests/test_chat_tools.py) over random walks through the grammars, and
``jsonschema`` over what they read.
"""

from __future__ import annotations

import json

import pytest
from grammar_texts import allows_source
from quire.chat import AnswerFormat, parse_answer
from quire.chat.tools import tool_format
from quire.errors import UnsupportedError
from quire.grammar import CALL_SYNTAXES, ToolUse, answer_source
from test_structured_tools import CLOCK, ONE_BY_ONE, layout, tool, walk

jsonschema = pytest.importorskip("jsonschema")

PAPER = tool(
    "paper",
    {
        "title": {"type": "string"}, "kind": {"enum": ["a b", "c"]}, "year": {"$ref": "#/$defs/year"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {"description": "x"},
        "pages": {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 2},
        "more": {"type": "object", "properties": {"x": {}, "y": {"type": ["string", "null"], "pattern": "^a"}}},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "code": {"type": "string", "minLength": 2, "maxLength": 3}, "draft": {"type": ["boolean", "null"]},
    },
    strict=True,
)  # fmt: skip
PAPER["function"]["parameters"]["required"] = ["title", "kind", "year", "code"]
PAPER["function"]["parameters"]["$defs"] = {"year": {"type": "integer", "minimum": 1900, "maximum": 2100}}


@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_arguments_one_by_one_are_of_their_schemas(name, control):
    """The reader gives every text the type that makes it valid."""
    form = AnswerFormat(tools=tool_format(name))
    source = answer_source(layout(name), None, ToolUse([PAPER], "required", False))
    end = CALL_SYNTAXES[name][0].argument.partition("{value}")[2].partition("{space}")[0]
    n_done, seen = 0, set()
    for seed in range(24):
        text = walk(source, control, seed, end=end)
        if text is None:
            continue
        (made,) = parse_answer(text, form, [PAPER]).tool_calls
        arguments = json.loads(made.function.arguments)
        jsonschema.validate(arguments, PAPER["function"]["parameters"])
        seen |= arguments.keys()
        n_done += 1
    assert n_done >= 6
    assert seen == PAPER["function"]["parameters"]["properties"].keys()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "x+"}}}, "'a', a text, cannot be held to pattern, type"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, "cannot be held to format, type"),
        ({"properties": {"a": {"enum": ["x", 1]}}}, "cannot be held to enum"),
        ({"properties": {"a": {"enum": ["x", "<y>"]}}}, "cannot be held to enum"),
        ({"properties": {"a": {"maxLength": 3}}}, "cannot be held to maxLength"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 3}]}}}, "held to anyOf"),
        ({"properties": {"a b": {"type": "null"}}}, "the name of an argument must be of"),
        ({"properties": {"a": False}}, "'a' must allow a value"),
        ({"properties": {}, "required": ["a"]}, "must be among properties but 'a'"),
        ({"properties": {}, "minProperties": 1}, "'minProperties' cannot be enforced on arguments written one by one"),
        ({"properties": {"a": {"type": "array", "items": {"const": "<"}}}}, "'a' must not contain '<'"),
        ({"properties": {"a": {"type": "object", "allOf": [{}]}}}, "'allOf' in the argument 'a'"),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}, "must lead to \\$defs"),
    ],
)  # fmt: skip
def test_what_texts_cannot_keep_is_refused(parameters, reason):
    bad = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    with pytest.raises(UnsupportedError, match=reason + r".*\(parameters of the tool f\)"):
        answer_source(layout("glm"), None, ToolUse([bad], "required"))


def test_loose_tools_beside_strict_ones_take_any_text():
    loose = tool("weather", {"city": {"type": "string", "pattern": "x"}})
    source = answer_source(layout("qwen3_coder"), None, ToolUse([loose, CLOCK], "auto"))
    made = "<tool_call>\n<function=weather>\n{}</function>\n</tool_call>"
    assert allows_source(source, made.format("<parameter=city>\nParis\nor <b>\n</parameter>\n"))
    assert allows_source(source, made.format(""))
