"""Arguments that are easily lost in transmission, each set with the schemas that a client declares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TEXT = {"type": "string"}
ANY: dict[str, Any] = {}
DEFINITIONS = {
    "Zip": {"type": "string", "pattern": "^[0-9]{5}$"},
    "Alias": {"$ref": "#/$defs/Zip"},
    "Maybe": {"anyOf": [{"$ref": "#/$defs/Zip"}, {"type": "null"}]},
    "Count": {"type": "integer", "minimum": 0},
}


@dataclass(frozen=True)
class Nasty:
    """The arguments of a call.  ``properties`` are their schemas, which may refer to ``DEFINITIONS``."""

    label: str
    arguments: dict[str, Any]
    properties: dict[str, Any]

    @property
    def tools(self) -> list[dict[str, Any]]:
        """Return the tools in the request."""
        parameters = {"type": "object", "properties": self.properties, "required": [], "$defs": DEFINITIONS}
        other = {"type": "object", "properties": {"zone": {"type": "string", "description": "Where."}}, "required": []}
        return [
            {"type": "function", "function": {"name": "do_it", "description": "Does it.", "parameters": parameters}},
            {"type": "function", "function": {"name": "clock", "description": "Tells.", "parameters": other}},
        ]


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "A value.", **schema}


def named(*keys: str) -> list[Nasty]:
    """Return a text under each name."""
    return [Nasty(f"name {key!r}", {key: "x y"}, {key: _described(TEXT)}) for key in keys]


def text(label: str, value: str, schema: dict[str, Any] = TEXT) -> Nasty:
    """Return a text next to another argument, which must be preserved too."""
    return Nasty(
        label,
        {"content": value, "path": "a.txt"},
        {"content": _described(schema), "path": _described(TEXT)},
    )


CODER_CALL = (
    "<tool_call>\n<function=write>\n<parameter=path>\na.txt\n</parameter>\n<parameter=text>\nHi.\n</parameter>\n"
    "</function>\n</tool_call>"
)
GLM_CALL = "<tool_call>write<arg_key>path</arg_key><arg_value>a.txt</arg_value></tool_call>"
INVOKE_CALL = '<minimax:tool_call>\n<invoke name="write">\n<parameter name="path">a.txt</parameter>\n</invoke>\n</minimax:tool_call>'
JSON_CALL = '<tool_call>\n{"name": "write", "arguments": {"path": "a.txt"}}\n</tool_call>'

SETS = [
    *named("城市", "Ärger", "переменная", "日本語 キー", "$filter", "@timestamp", "2fa", "first name"),
    *named("ids[]", "a/b", "a.b-c", "price (EUR)", "user:id", "a=b", "a,b", "it's", 'a"b', "{x}", "a>b", "🗼"),
    text("closers", "In </parameter> and </arg_value>, </param>, </tool_call> and </function> it ends."),
    text("a closer on its own line", "one\n</parameter>\ntwo\n"),
    text("an opener", "See <parameter=path> and <arg_key>, <tool_call>, <invoke name="),
    text("a call of Qwen3-Coder", f"# Format\n\n{CODER_CALL}\n\nThat is all.\n"),
    text("a call of GLM", f"# Format\n\n{GLM_CALL}\n\nThat is all.\n"),
    text("a call of MiniMax", f"# Format\n\n{INVOKE_CALL}\n\nThat is all.\n"),
    text("a call of Hermes", f"# Format\n\n{JSON_CALL}\n\nThat is all.\n"),
    text("closers in a string", 'END = "</parameter></function></tool_call>"\nprint(END)\n'),
    text("CRLF", "one\r\ntwo\r\n"),
    text("line ends around", "\n\none\n\n"),
    text("blanks around", "  one\t "),
    text("nothing", ""),
    text("a line end", "\n"),
    text("leading zeros", "02134"),
    text("digits by reference", "12345", {"$ref": "#/$defs/Zip"}),
    text("digits by a reference to a reference", "12345", {"$ref": "#/$defs/Alias"}),
    text("digits by allOf", "12345", {"allOf": [{"$ref": "#/$defs/Zip"}, {"description": "A code."}]}),
    text("digits that may be null", "02134", {"$ref": "#/$defs/Maybe"}),
    text("zeros without a type", "0171234567", ANY),
    text("a fraction without a type", ".5", ANY),
    text("words that are values", "None"),
    text("a JSON text", '{"a": [1, "b"], "c": null}'),
    text("a text in quotes", '"quoted"'),
    text("code", 'def f(x: str = \'a\\n\') -> dict:\n\treturn {"k": f"{x!r}"}\n'),
    text("XML", '<?xml version="1.0"?>\n<a b="c">\n  <![CDATA[<x> & ]]>\n</a>\n'),
    text("shell", "echo \"it's\" | sed 's/\\\\n/\\n/g' && exit $?\n"),
    text("signs of other scripts", "\u202eabc\u202c \u200b \U0001f5fc é ﷺ"),
    Nasty(
        "containers",
        {"rows": [{"a b": "it's", "c": ['"', "}", "]", ","]}, [], {}], "at": {"x": {"y": [None, True, "null"]}}},
        {"rows": _described({"type": "array"}), "at": _described({"type": "object"})},
    ),
    Nasty(
        "numbers",
        {"a": 0, "b": -1.5, "c": 1e21, "d": 12345678901234567890, "e": True, "f": None, "g": 7},
        {
            **{key: _described({"type": "number"}) for key in "abc"},
            "d": _described({"type": "integer"}),
            "e": _described({"type": "boolean"}),
            "f": _described({"type": ["string", "null"]}),
            "g": _described({"$ref": "#/$defs/Count"}),
        },
    ),
    Nasty("a long text", {"content": "x < y && y > z;\n" * 400}, {"content": _described(TEXT)}),
]
