"""Qwen3-Coder, Step 3.5, Nemotron 3: ``<function=name>`` with a ``<parameter=key>`` for each argument."""

from __future__ import annotations

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import Malformed, Scanner, Wait
from quire.chat.tools.values import arguments_text, typed_value


class Qwen3Coder(ToolFormat):
    """Values are text between line ends; the tools' schemas say what they are.  ``<tool_call>`` around it may be
    absent."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == "<function=":
            yield (yield from _function(scan, tools))
            return
        yield from scan.space()
        yield from scan.literal("<function=")
        calls = [(yield from _function(scan, tools))]
        yield from scan.space()
        while (yield from scan.optional("<function=")) is not None:
            calls.append((yield from _function(scan, tools)))
            yield from scan.space()
        yield from scan.end("</tool_call>")
        yield from calls


def _function(scan: Scanner, tools: Tools) -> Wait[Call]:
    name = yield from name_of(scan)
    yield from scan.literal(">")
    schemas = tools.properties.get(name, {})
    values: dict[str, object] = {}
    while True:
        yield from scan.space()
        if (yield from scan.literal("<parameter=", "</function>")) == "</function>":
            return Call(name, arguments_text(values))
        key = yield from name_of(scan)
        yield from scan.literal(">")
        text, end = yield from scan.until("</parameter>")
        if not end or key in values:
            raise Malformed
        values[key] = typed_value(text.removeprefix("\n").removesuffix("\n"), schemas.get(key))


FORMAT = Qwen3Coder(
    name="qwen3_coder",
    starts=("<tool_call>", "<function="),
    marks=("</tool_call>",),
)
