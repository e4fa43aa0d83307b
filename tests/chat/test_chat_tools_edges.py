"""Calls that deviate from their template: superfluous marks, line ends, types, quotes.

Oracle: the meaning of the answer, judged by hand.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from quire.chat import AnswerFormat, AnswerParser, parse_answer
from quire.chat.reply import joined
from quire.chat.tools import tool_format
from quire.chat.tools.schemas import ValueSchema

pytestmark = pytest.mark.python_only


def tool(properties: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": properties, **more}
    return [{"type": "function", "function": {"name": "do_it", "description": "d", "parameters": parameters}}]


def read(name: str, text: str, tools: list[dict[str, Any]]) -> tuple[list[Any], str | None]:
    """Return the arguments of the calls and the content, equal whole, by characters, and cut after the end."""
    form = AnswerFormat(None, tool_format(name))
    found = []
    for pieces, cut in (([text], False), (list(text), False), ([text], True)):
        parser = AnswerParser(form, tools)
        message = joined([*map(parser.feed, pieces), parser.finish(cut)])
        found.append(([json.loads(call.function.arguments or "{}") for call in message.tool_calls], message.content))
    assert found[0] == found[1]
    assert found[2][0][:-1] == found[0][0][:-1]
    return found[0]


CITY = {"city": {"type": "string"}}
CODER = "<function=do_it>\n<parameter=city>\nParis\n</parameter>\n</function>"
OBJECT = '{"name": "do_it", "arguments": {"city": "Paris"}}'
GLM = "<tool_call>do_it<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"
INVOKE = '<invoke name="do_it"><parameter name="city">Paris</parameter></invoke>'
GEMMA = '<|tool_call>call:do_it{city:<|"|>Paris<|"|>}<tool_call|>'
PYTHON = "<|tool_call_start|>[do_it(city='Paris')]<|tool_call_end|>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", f"{CODER}\n</tool_call>"),
        ("qwen3_coder", f"<tool_call>\n<tool_call>\n{CODER}\n</tool_call>"),
        ("qwen3_coder", f"<tool_call>\n{CODER}\n</tool_call>\n</tool_call>\n"),
        ("qwen3_coder", f"<tool_call>\n{CODER}\n</function>\n</tool_call>"),
        ("seed_oss", f"<seed:tool_call>\n<seed:tool_call>{CODER}</seed:tool_call></seed:tool_call>"),
        ("hermes", f"<tool_call>\n<tool_call>\n{OBJECT}\n</tool_call>"),
        ("hermes", f"<tool_call>\n{OBJECT}\n</tool_call>\n</tool_call>"),
        ("hermes", f"<tool_call>\n{OBJECT}\n<tool_call>"),
        ("hermes", f"<tool_call>\n{OBJECT}}}\n</tool_call>"),
        ("hermes", f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n"),
        ("nemotron", f"<TOOLCALL>[{OBJECT}]</TOOLCALL></TOOLCALL>"),
        ("glm", f"<tool_call>{GLM}</tool_call>"),
        ("minimax", f"<minimax:tool_call><minimax:tool_call>{INVOKE}</minimax:tool_call></minimax:tool_call>"),
        ("gemma", f"<|tool_call>{GEMMA}<tool_call|>"),
        ("lfm2", f"<|tool_call_start|>{PYTHON}<|tool_call_end|>"),
        ("mistral", '[TOOL_CALLS][TOOL_CALLS]do_it[ARGS]{"city": "Paris"}'),
    ],
)
def test_superfluous_marks_beside_a_call_are_dropped(name: str, text: str) -> None:
    assert read(name, text, tool(CITY)) == ([{"city": "Paris"}], None)


def test_a_mark_in_the_place_of_an_end_does_not_lose_the_next_call() -> None:
    text = f"<tool_call>\n{OBJECT}\n<tool_call>\n{OBJECT}\n</tool_call>"
    assert read("hermes", text, tool(CITY)) == ([{"city": "Paris"}] * 2, None)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("a </tool_call> b", "a </tool_call> b"),
        ("<tool_call>\n", "<tool_call>\n"),
        (f"<tool_call>\n{OBJECT}\n</tool_call>\nDone </tool_call>.", "\nDone </tool_call>."),
        (f"<tool_call> it is:\n<tool_call>\n{OBJECT}\n</tool_call>", "<tool_call> it is:"),
    ],
)
def test_marks_within_text_are_text(text: str, content: str) -> None:
    assert read("hermes", text, tool(CITY))[1] == content


# Values


def coder(value: str, key: str = "text", behind: str = "") -> str:
    return f"<tool_call>\n<function=do_it>\n<parameter={key}>{value}</parameter>\n</function>\n</tool_call>{behind}"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("\na\r\nb\r\n\n", "a\r\nb\r\n"),
        ("\r\nParis\r\n", "Paris"),
        ("\r\na\r\n\r\n", "a\r\n"),
        ("\n\n\n", "\n"),
        ("\n\n", ""),
        ("\n", ""),
        ("Paris", "Paris"),
        ("\n  a \n", "  a "),
        ("\nEND = '</parameter></function></tool_call>'\n", "END = '</parameter></function></tool_call>'"),
        ("\na\n</parameter>\n</function>\n</tool_call>\nb\n", "a\n</parameter>\n</function>\n</tool_call>\nb"),
        (f"\n# Calls\n\n<tool_call>\n{CODER}\n</tool_call>\n\nSo.\n", f"# Calls\n\n<tool_call>\n{CODER}\n</tool_call>\n\nSo."),
        ("\n<parameter=x> opens, \n</parameter> closes\n", "<parameter=x> opens, \n</parameter> closes"),
        ("\n<parameter=x>\n<parameter=y>\n", "<parameter=x>\n<parameter=y>"),
    ],
)  # fmt: skip
def test_texts_are_kept_as_they_are(written: str, value: str) -> None:
    tools = tool({"text": {"type": "string"}, "more": {"type": "string"}})
    assert read("qwen3_coder", coder(written), tools) == ([{"text": value}], None)
    two = coder(written) + "\n" + coder("\nx\n", "more")
    assert read("qwen3_coder", two, tools) == ([{"text": value}, {"more": "x"}], None)


def test_text_after_a_call_is_text() -> None:
    tools = tool({"text": {"type": "string"}})
    for behind in ("\nDone.", " Done.", "\n\n<tool_response>\n1\n</tool_response>\nSo it is."):
        assert read("qwen3_coder", coder("\nx\n", behind=behind), tools) == ([{"text": "x"}], behind)
        message = parse_answer(
            coder("\nx\n", behind=behind), AnswerFormat(None, tool_format("qwen3_coder")), tools, cut=True
        )
        assert message.tool_calls[0].function.arguments == '{"text": "x"}'
        assert (message.content or "").strip() == behind.strip()


def test_line_ends_that_are_not_the_formats() -> None:
    for name, text in [
        ("seed_oss", "<seed:tool_call><function=do_it><parameter=city>a\r\n</parameter></function></seed:tool_call>"),
        ("glm", "<tool_call>do_it<arg_key>city</arg_key><arg_value>a\r\n</arg_value></tool_call>"),
        ("minimax", f"<minimax:tool_call>{INVOKE.replace('Paris', 'a' + chr(13) + chr(10))}</minimax:tool_call>"),
        ("gemma", GEMMA.replace("Paris", "a\r\n")),
        ("lfm2", PYTHON.replace("Paris", "a\r\n")),
    ]:
        assert read(name, text, tool(CITY)) == ([{"city": "a\r\n"}], None)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ('{a:<|"|>x<|"|>}', {"a": "x"}),
        ('{"a":"it\'s","b":[\'c\', "d\\n"]}', {"a": "it's", "b": ["c", "d\n"]}),
        ('{<|"|>a b<|"|>:[{"c d":null}],城市:{x:"y"}}', {"a b": [{"c d": None}], "城市": {"x": "y"}}),
        ('[<|"|>a<|"|>,"b",c d,1.5,true]', ["a", "b", "c d", 1.5, True]),
        ('["<tool_call|>","\\ud83d\\uddfc"]', ["<tool_call|>", "🗼"]),
        ('<|"|>a <tool_call|> b "c"<|"|>', 'a <tool_call|> b "c"'),
        ("Paris at night", "Paris at night"),
        ("007", "007"),
        (".5", ".5"),
        ("-1.5e3", -1500.0),
    ],
)
def test_values_of_gemma(written: str, value: object) -> None:
    text = f"<|tool_call>call:do_it{{data:{written}}}<tool_call|>"
    assert read("gemma", text, tool({"data": {}})) == ([{"data": value}], None)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("007", "007"),
        (".5", 0.5),
        ("-0", 0),
        ("[1, {'a b': None}]", [1, {"a b": None}]),
        ('"\\ud83d\\uddfc"', "🗼"),
        ("'see <|tool_call_end|>'", "see <|tool_call_end|>"),
        ("'it's \"so\"'", 'it\'s "so"'),
    ],
)
def test_values_in_pythons_notation(written: str, value: object) -> None:
    text = f"<|tool_call_start|>[do_it(data={written}, 城市=1)]<|tool_call_end|>"
    assert read("lfm2", text, tool({"data": {}})) == ([{"data": value, "城市": 1}], None)


# Types


ZIP = {"type": "string", "pattern": "^[0-9]{5}$"}
DEFINITIONS = {"Zip": ZIP, "Count": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}, "a/b~c": ZIP}


@pytest.mark.parametrize(
    ("schema", "written", "value"),
    [
        ({"$ref": "#/$defs/Zip"}, "12345", "12345"),
        ({"$ref": "#/$defs/Zip"}, "None", "None"),
        ({"$ref": "#/$defs/a~1b~0c"}, "12345", "12345"),
        ({"$ref": "#/$defs/Count"}, "12345", 12345),
        ({"$ref": "#/$defs/Loop"}, "12345", 12345),
        ({"$ref": "#/properties/other"}, "12345", "12345"),
        ({"$ref": "https://example.org/x"}, "12345", 12345),
        ({"allOf": [{"$ref": "#/$defs/Zip"}, {"title": "x"}]}, "12345", "12345"),
        ({"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]}, "12345", "12345"),
        ({"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]}, "null", None),
        ({"oneOf": [{"$ref": "#/$defs/Zip"}, {"$ref": "#/$defs/Count"}]}, "12345", 12345),
        ({"oneOf": [{"$ref": "#/$defs/Zip"}, {"$ref": "#/$defs/Count"}]}, "02134", "02134"),
        ({"type": ["string", "integer"], "allOf": [{"$ref": "#/$defs/Zip"}]}, "12345", "12345"),
        ({"type": "string", "nullable": True}, "null", None),
        ({"pattern": "^[0-9]+$"}, "12345", "12345"),
        ({"enum": ["1", 2]}, "1", "1"),
        ({"enum": ["1", 2]}, "2", 2),
        ({"type": "integer"}, "007", "007"),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, "5.", "5."),
        ({}, "0171234567", "0171234567"),
        ({}, "+5", "+5"),
        ({}, "[007]", "[007]"),
        ({}, "{'a': None}", {"a": None}),
        ({}, "true", True),
    ],
)
def test_types_come_from_resolved_schemas(schema: Any, written: str, value: object) -> None:
    tools = tool({"text": schema, "other": {"type": "string"}}, **{"$defs": DEFINITIONS})
    (found,), content = read("qwen3_coder", coder(f"\n{written}\n"), tools)
    assert (found, type(found["text"]), content) == ({"text": value}, type(value), None)


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/Args", "$defs": {"Args": {"properties": {"text": {"$ref": "#/$defs/Zip"}}}, "Zip": ZIP}},
        {"allOf": [{"properties": {"n": {}}}, {"properties": {"text": ZIP}}]},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^t": ZIP}},
        {"$ref": "#/definitions/A", "definitions": {"A": {"anyOf": [{"properties": {"text": ZIP}}]}}},
    ],
)
def test_schemas_of_all_arguments_are_resolved(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "do_it", "parameters": parameters}}]
    assert read("qwen3_coder", coder("\n12345\n"), tools) == ([{"text": "12345"}], None)


def test_invalid_schemas_allow_everything() -> None:
    for schema in (None, True, 5, {"type": 5}, {"enum": 5}, {"allOf": {}}, {"$ref": "#/x/y"}, {"$ref": 5}):
        assert ValueSchema.of(schema).types is None
    wide = {"allOf": [{"$ref": "#"}] * 50}
    assert ValueSchema.of(wide).types is None


@pytest.mark.parametrize(
    ("name", "begin", "again"),
    [
        ("qwen3_coder", "", coder("x") + " x"),
        ("qwen3_coder", "<function=do_it><parameter=text>", "</parameter>\n"),
        ("qwen3_coder", "<function=do_it><parameter=text>", "<parameter=text>"),
        ("gemma", '<|tool_call>call:do_it{a:<|"|>', "<tool_call|>"),
        ("lfm2", "", "<|tool_call_start|>[do_it(a='x<|tool_call_end|>"),
        ("glm", "", "<tool_call>do_it<arg_key>text</arg_key><arg_value>"),
        ("minicpm", "", '<function name="do_it"><param name="text"><![CDATA['),
    ],
)
def test_finding_ends_takes_linear_work(name: str, begin: str, again: str) -> None:
    """Quadratic work would take minutes here instead of a second."""
    start_s = time.process_time()
    message = parse_answer(
        begin + again * 8000, AnswerFormat(None, tool_format(name)), tool({"text": {"type": "string"}})
    )
    assert message.tool_calls or message.content
    assert time.process_time() - start_s < 30


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('""', "{}"),  # a tool without parameters, by GLM, Claude and others
        ('" "', "{}"),
        ("null", "{}"),
        (r'"{\"city\": \"Paris\"}"', '{"city": "Paris"}'),  # Granite 4
        ('"plain"', None),
        ('"[1]"', None),
    ],
)
def test_arguments_in_json_strings(arguments: str, expected: str | None) -> None:
    text = f'<tool_call>\n{{"name": "do_it", "arguments": {arguments}}}\n</tool_call>'
    calls, content = read("hermes", text, tool({"city": {"type": "string"}}))
    if expected is None:
        assert (calls, content) == ([], text)
    else:
        assert (calls, content) == ([json.loads(expected)], None)
