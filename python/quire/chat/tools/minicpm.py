"""MiniCPM 5: ``<function name="..."><param name="...">value</param></function>``."""

from __future__ import annotations

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import Malformed, Scanner
from quire.chat.tools.values import arguments_text, typed_value


class MiniCpm(ToolFormat):
    """Texts with signs of XML stand in CDATA sections."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        name = yield from name_of(scan)
        yield from scan.literal('">')
        schemas = tools.properties.get(name, {})
        values: dict[str, object] = {}
        while True:
            yield from scan.space()
            if (yield from scan.literal('<param name="', "</function>")) == "</function>":
                break
            key = yield from name_of(scan)
            yield from scan.literal('">')
            if key in values:
                raise Malformed
            if (yield from scan.optional("<![CDATA[")) is not None:
                text, end = yield from scan.until("]]>")
                yield from scan.literal("</param>")
                values[key] = text
            else:
                text, end = yield from scan.until("</param>")
                values[key] = typed_value(text, schemas.get(key))
            if not end:
                raise Malformed
        yield Call(name, arguments_text(values))


FORMAT = MiniCpm(
    name="minicpm",
    starts=('<function name="',),
)
