"""MiniCPM 5: ``<function name="..."><param name="...">value</param></function>``."""

from __future__ import annotations

from quire.call_syntax import CallSyntax
from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.calls import Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import Scanner


class MiniCpm(ToolFormat):
    """Texts with signs of XML stand in CDATA sections."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        name = yield from name_of(scan)
        yield from scan.literal('">')
        arguments = ArgumentList(tools, name)
        with arguments.pending():
            while True:
                yield from scan.space()
                if (yield from scan.literal('<param name="', "</function>")) == "</function>":
                    break
                key = yield from name_of(scan)
                yield from scan.literal('">')
                if (yield from scan.optional("<![CDATA[")) is not None:
                    yield from arguments.take(scan, key, "]]>", as_text=True)
                    yield from scan.literal("</param>")
                else:
                    yield from arguments.take(scan, key, "</param>")
        yield arguments.call


FORMAT = MiniCpm(
    name="minicpm",
    starts=('<function name="',),
    hints=(("<function name=", "<param name="),),
    syntaxes=(
        CallSyntax(
            '<function name="{name}">{arguments}</function>',
            separator="{space}",
            trigger='<function name="',
            argument='<param name="{key}">{value}</param>{space}',
            value_start="<![CDATA[",
        ),
    ),
)
