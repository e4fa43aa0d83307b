"""Functionary v3.2: ``>>>`` and a recipient before each part; the prompt has the first ``>>>`` already."""

from __future__ import annotations

from quire.chat.tools.arguments import started_arguments
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Kind, Steps, ToolFormat, Tools, Unfinished, name_of, stream
from quire.chat.tools.json_calls import json_arguments
from quire.chat.tools.scanner import CutOff, Scanner
from quire.chat.tools.values import arguments_text

_MARK = ">>>"


class Functionary(ToolFormat):
    """Parses parts by their recipient: ``all`` gets content, ``python`` code, and other tools JSON objects."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _parts(scan)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from _parts(scan)


def _parts(scan: Scanner) -> Steps:
    yield from scan.optional(_MARK)
    while True:
        recipient = yield from name_of(scan)
        yield from scan.literal("\n")
        if recipient == "all":
            if not (yield from stream(scan, Kind.CONTENT, _MARK)):
                return
            continue
        if recipient == "python" and (yield from scan.next_of("{")) is None:
            try:
                code, mark = yield from scan.until(_MARK)
            except CutOff as cut:
                raise Unfinished([Call(recipient, started_arguments({}, ("code", cut.text)))]) from None
            yield Call(recipient, arguments_text({"code": code}))
        else:
            yield (yield from json_arguments(scan, recipient))
            yield from scan.space()
            mark = (yield from scan.optional(_MARK)) or ""
        if not mark:
            return


FORMAT = Functionary(
    name="functionary",
    starts=(_MARK,),
    frames_content=True,
    hints=((">>>all\n",), (">>>all\\n",)),
    syntaxes=(CallSyntax("{name}\n{arguments}", separator="{space}>>>", content=("all\n", ""), joint=">>>"),),
)
