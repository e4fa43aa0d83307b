"""MiniCPM 5: ``<function name="..."><param name="...">value</param></function>``."""

from __future__ import annotations

from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import Scanner
from quire.chat.tools.value_ends import ValueTags

_START, _PARAMETER, _END, _CDATA = '<function name="', '<param name="', "</function>", "<![CDATA["
_TAGS = ValueTags(_PARAMETER, "</param>", _PARAMETER, _END, key_end='"', starts=(_START,))
_IN_CDATA = ValueTags(_CDATA, "]]></param>", _PARAMETER, _END, key_end='"', starts=(_START,))


class MiniCpm(ToolFormat):
    """Parses calls in which texts with XML characters are CDATA sections."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        name = yield from name_of(scan)
        yield from scan.literal('">')
        arguments = ArgumentList(tools, name, _TAGS)
        with arguments.pending():
            while True:
                yield from scan.space()
                if (yield from scan.literal(_PARAMETER, _END)) == _END:
                    break
                key = yield from arguments.key(scan, '">')
                if (yield from scan.optional(_CDATA)) is not None:
                    yield from arguments.take(scan, key, as_text=True, tags=_IN_CDATA)
                else:
                    yield from arguments.take(scan, key)
        yield arguments.call

    @property
    def closers(self) -> tuple[str, ...]:
        return (_END,)


FORMAT = MiniCpm(
    name="minicpm",
    starts=(_START,),
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
