"""Calls follow their tools' schemas in wire formats that write arguments one by one.

Oracles: the parsers of the formats (tests/chat/test_chat_tools.py) on random walks through the grammars, and
``jsonschema`` on what they parse.
"""

from __future__ import annotations

import json

import pytest
from grammar_texts import allows_source
from quire.chat import AnswerFormat, parse_answer
from quire.chat.tools import tool_format
from quire.chat.tools.call_syntax import Notation
from quire.errors import RequestError, UnsupportedError
from quire.grammar import ToolUse, answer_source
from test_structured_tools import CALL_SYNTAXES, CLOCK, ONE_BY_ONE, VARIANTS, layout, tool, walk

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


@pytest.mark.python_only  # llguidance computes its masks
@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_arguments_one_by_one_follow_their_schemas(name, control):
    """The parser gives every text the type that makes it valid."""
    form = AnswerFormat(tools=tool_format(name))
    source = answer_source(layout(name), None, ToolUse([PAPER], "required", False))
    end = CALL_SYNTAXES[name][0].argument.partition("{value}")[2].partition("{")[0]
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
        ({"properties": {"a": {"enum": ["x", 1]}}}, "cannot be held to enum"),
        ({"properties": {"a": {"enum": ["x", "<y>"]}}}, "cannot be held to enum"),
        ({"properties": {"a": {"maxLength": 3}}}, "cannot be held to maxLength"),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 3}]}}}, "held to anyOf"),
        ({"properties": {"a\nb": {"type": "null"}}}, r"'a\\nb'"),
        ({"properties": {"a": False}, "required": ["a"]}, "'a' allows no value"),
        ({"properties": {}, "minProperties": 1}, "'minProperties'"),
        ({"properties": {"a": {"type": "array", "items": {"const": "<"}}}}, "'<' .*'a'"),
        ({"properties": {"a": {"type": "object", "allOf": [{"not": {"const": 1}}]}}}, "'not' at #/properties/a"),
    ],
)  # fmt: skip
def test_strict_tools_refuse_keywords_that_texts_cannot_follow(parameters, reason):
    bad = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    for choice in ("auto", "required"):
        with pytest.raises(UnsupportedError, match=reason + r".*\(parameters of the tool f\)"):
            answer_source(layout("glm"), None, ToolUse([bad], choice))
    if "a\nb" in parameters["properties"]:
        return
    loose = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    source = answer_source(layout("glm"), None, ToolUse([loose], "required"))
    assert source is not None
    assert all(note.startswith("f.json_schema#/") for note in source.notes)
    assert source.notes


@pytest.mark.parametrize("name", ["glm", "qwen3_coder", "gemma"])
def test_texts_follow_patterns(name):
    """A format is an annotation if the grammar of texts has no such format."""
    properties = {
        "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]+$", "maxLength": 5},
        "day": {"type": "string", "format": "date"},
        "größe": {"anyOf": [{"$ref": "#/$defs/size"}, {"type": "null"}]},
        "first name": {"type": "string"},
    }
    made = tool("f", properties, strict=True)
    made["function"]["parameters"] |= {"required": ["code"], "$defs": {"size": {"enum": [1, 2], "type": "integer"}}}
    source = answer_source(layout(name, len(CALL_SYNTAXES[name]) - 1), None, ToolUse([made], "required", False))
    assert source.notes == ("f.json_schema#/properties/day/format",)
    whole = {
        "glm": "<tool_call>f\n{}</tool_call>",
        "qwen3_coder": "<tool_call>\n<function=f>\n{}</function>\n</tool_call>",
        "gemma": "<|tool_call>call:f{{{}}}<tool_call|>",
    }[name]
    each = {
        "glm": "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n",
        "qwen3_coder": "<parameter={}>\n{}\n</parameter>\n",
        "gemma": "{}:{}",
    }[name]

    def written(**arguments: object) -> str:
        shown = {
            key: f'<|"|>{value}<|"|>' if name == "gemma" and isinstance(value, str) else value
            for key, value in sorted(arguments.items())
        }
        return whole.format(("," if name == "gemma" else "").join(each.format(*item) for item in shown.items()))

    assert allows_source(source, written(code="AB12"))
    assert not allows_source(source, written(code="ab12"))
    assert not allows_source(source, written(code="AB1234"))
    assert allows_source(source, written(code="AB1", **{"größe": 2}))
    assert not allows_source(source, written(code="AB1", **{"größe": 3}))


NAMES = (
    "城市", "Ärger", "日本語 キー", "$filter", "@timestamp", "2fa", "first name", "ids[]", "a/b", "price (EUR)", "user:id",
    "a=b", "a,b", "it's", 'a"b', "{x}", "{value}", "a>b", "a&amp;b", "🗼",
)  # fmt: skip
NAMED_ANYHOW = tool("note", {name: {"type": "integer", "minimum": 0, "maximum": 9} for name in NAMES}, strict=True)


@pytest.mark.python_only  # llguidance computes its masks
@pytest.mark.parametrize(("name", "variant"), VARIANTS)
def test_arguments_may_have_any_name(name, variant):
    """A forced call has all of them, and is parsed back."""
    form = AnswerFormat(tools=tool_format(name))
    source = answer_source(layout(name, variant), None, ToolUse([NAMED_ANYHOW], "required", False))
    # Some walks reason until they are cut.
    text = next(text for seed in range(12) if (text := walk(source, False, seed)) is not None)
    (made,) = parse_answer(text, form, [NAMED_ANYHOW]).tool_calls
    assert json.loads(made.function.arguments).keys() == set(NAMES)


@pytest.mark.parametrize("name", ["qwen3_coder", "lfm2"])
def test_loose_tools_have_arguments_of_any_name(name):
    loose = tool("note", {"first name": {"type": "string"}, "城市": {"type": "string"}})
    source = answer_source(layout(name), None, ToolUse([loose, CLOCK], "auto"))
    text = {
        "qwen3_coder": "<tool_call>\n<function=note>\n<parameter=first name>\nx\n</parameter>\n<parameter=城市>\ny\n"
        "</parameter>\n</function>\n</tool_call>",
        "lfm2": '<|tool_call_start|>[note(first name="x", 城市="y")]<|tool_call_end|>',
    }[name]
    assert allows_source(source, text)
    (made,) = parse_answer(text, AnswerFormat(tools=tool_format(name)), [loose]).tool_calls
    assert json.loads(made.function.arguments) == {"first name": "x", "城市": "y"}


def test_loose_tools_beside_strict_ones_take_any_text():
    loose = tool("weather", {"city": {"type": "string", "pattern": "x"}})
    source = answer_source(layout("qwen3_coder"), None, ToolUse([loose, CLOCK], "auto"))
    made = "<tool_call>\n<function=weather>\n{}</function>\n</tool_call>"
    assert allows_source(source, made.format("<parameter=city>\nParis\nor <b>\n</parameter>\n"))
    assert allows_source(source, made.format(""))


# Notations


NOTATED = [(name, i) for name, i in VARIANTS if CALL_SYNTAXES[name][i].notation is not Notation.JSON]
BOOK = tool(
    "book",
    {
        "title": {"type": "string"}, "kind": {"enum": ["a b", "c", None, 3, True]}, "code": {"$ref": "#/$defs/code"},
        "note": {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]}, "any": {"description": "x"},
        "pages": {"type": "array", "items": {"type": ["integer", "string"]}, "minItems": 1, "maxItems": 2},
        "more": {
            "type": "object", "additionalProperties": False, "required": ["y"],
            "properties": {"x": {"type": "number"}, "y": {"type": ["boolean", "null"]}},
        },
        "map": {"type": "object", "additionalProperties": {"type": "integer", "minimum": -2}},
        "size": {"type": "number"},
    },
    strict=True,
)  # fmt: skip
BOOK["function"]["parameters"]["required"] = ["kind", "code", "more"]
BOOK["function"]["parameters"]["$defs"] = {"code": {"type": "string", "minLength": 2, "maxLength": 3}}


@pytest.mark.python_only  # llguidance computes its masks
@pytest.mark.parametrize("control", [False, True], ids=["text", "control tokens"])
@pytest.mark.parametrize(("name", "variant"), NOTATED)
def test_arguments_in_notations_follow_their_schemas(name, variant, control):
    form = AnswerFormat(tools=tool_format(name))
    syntax = CALL_SYNTAXES[name][variant]
    source = answer_source(layout(name, variant), None, ToolUse([BOOK], "required", False))
    n_done, seen = 0, set()
    for seed in range(32):
        text = walk(source, control, seed, end=syntax.string_mark or "'")
        if text is None:
            continue
        (made,) = parse_answer(text, form, [BOOK]).tool_calls
        arguments = json.loads(made.function.arguments)
        jsonschema.validate(arguments, BOOK["function"]["parameters"])
        seen |= arguments.keys()
        n_done += 1
    assert n_done >= 12
    assert seen == BOOK["function"]["parameters"]["properties"].keys()


def test_values_as_python_literals():
    """The grammar allows some of the values that the schema allows, and none that it refuses."""
    source = answer_source(layout("lfm2"), None, ToolUse([BOOK], "required"))
    made = "<|tool_call_start|>[book({})]<|tool_call_end|>"
    good = "kind='a b', code=\"xy\", pages=['a', 1], more={\"y\": true}, size=-1.5"
    assert allows_source(source, made.format(good))
    assert allows_source(
        source, made.format("title='It', kind=None, code='xyz', any=[1, {\"a\": 2}], more={\"y\": null}")
    )
    for bad in (
        good.replace("'a b'", "'d'"), good.replace("xy", "x"), good.replace("['a', 1]", "[]"),
        good.replace("true", "1"), good.replace("size", "size2"), good.replace("kind='a b', ", ""),
        good.replace("-1.5", "None"), good + ",", "title='<|tool_call_end|>', " + good, "note='abcd', " + good,
    ):  # fmt: skip
        assert not allows_source(source, made.format(bad)), bad


@pytest.mark.parametrize("name", sorted({name for name, _ in NOTATED}))
def test_keywords_that_notations_cannot_follow_are_refused(name):
    for parameters, reason in [
        ({"properties": {"a\nb": {}}}, r"'a\\nb'"),
        ({"properties": {"a": False}, "required": ["a"]}, "'a' allows no value"),
        ({"properties": {"a": {"enum": ["<"]}}}, "'<'"),
        ({"properties": {"a": {"type": "array", "minItems": 2, "maxItems": 0}}}, "minItems 2 .*maxItems 0"),
        ({"properties": {"a": {"type": "array", "items": False}}}, "allows no value"),
    ]:
        bad = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
        with pytest.raises(UnsupportedError, match=reason + r".*\(parameters of the tool f\)"):
            answer_source(layout(name), None, ToolUse([bad], "required"))


def test_values_with_bare_keys_and_marks():
    """The notation of Gemma 4's template."""
    source = answer_source(layout("gemma", 1), None, ToolUse([BOOK], "required"))
    made = "<|tool_call>call:book{{{}}}<tool_call|>"
    good = 'any:{a:[<|"|>x<y<|"|>,null]},code:<|"|>xy<|"|>,kind:<|"|>a b<|"|>,map:{a:3},more:{x:1.5,y:true},pages:[1]'
    assert allows_source(source, made.format(good))
    for bad in (
        good.replace("a b", "d"), good.replace("xy", "x"), good.replace("[1]", "[]"), good.replace("y:true", "y:1"),
        good.replace("1.5", "None"), good.replace("a:3", "a:-3"), good.replace("code", "note"), good + ",",
        good.replace(",y:true", ""), good.replace("more", "size:null,more"), good.replace("x<y", "<tool_call|>"),
    ):  # fmt: skip
        assert not allows_source(source, made.format(bad)), bad


@pytest.mark.parametrize("name", ["gemma", "lfm2"])
def test_definitions_that_contain_themselves(name):
    tree = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 3}, {"type": "boolean"}]}
    made = tool("grow", {"a": {"$ref": "#/$defs/tree"}}, strict=True)
    made["function"]["parameters"]["$defs"] = {"tree": tree}
    source = answer_source(layout(name, len(CALL_SYNTAXES[name]) - 1), None, ToolUse([made], "required", False))
    text = "<|tool_call>call:grow{{a:{}}}<tool_call|>" if name == "gemma" else (
        "<|tool_call_start|>[grow(a={})]<|tool_call_end|>"
    )  # fmt: skip
    comma = "," if name == "gemma" else ", "
    assert allows_source(source, text.format(f"[true{comma}[[[[[false]]]]]]"))
    assert not allows_source(source, text.format("[true,[[[[[1]]]]]]"))
    wide = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": i} for i in range(1, 40)]}
    made["function"]["parameters"]["$defs"] = {"tree": wide}
    if name == "lfm2":
        with pytest.raises(RequestError, match="262144 bytes"):
            answer_source(layout(name), None, ToolUse([made], "required"))


def test_loose_tools_beside_strict_ones_take_any_value():
    loose = tool("weather", {"city": {"type": "string", "pattern": "x"}})
    source = answer_source(layout("lfm2"), None, ToolUse([loose, CLOCK], "auto"))
    made = "Well, <|tool_call_start|>[weather({})]<|tool_call_end|>"
    assert allows_source(source, made.format('city=["Paris", {"a": [null]}]'))
    assert allows_source(source, made.format(""))
