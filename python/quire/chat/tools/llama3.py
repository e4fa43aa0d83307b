"""Llama 3.x: a bare JSON object that begins the answer, ``<|python_tag|>``, or ``<function=name>{...}</function>``."""

from __future__ import annotations

from quire.chat.tools.calls import (
    Call,
    Steps,
    ToolFormat,
    Tools,
    call_of_json,
    checked_arguments,
    checked_name,
    name_of,
)
from quire.chat.tools.literals import python_calls
from quire.chat.tools.scanner import Malformed, Scanner
from quire.chat.tools.values import arguments_text

_ENDS = ("<|eom_id|>", "<|eot_id|>")
_INTERPRETERS = ("python", "ipython", "code_interpreter")


class Llama3(ToolFormat):
    """Several bare objects are separated by semicolons."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return self._bare(scan)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == "<function=":
            name = yield from name_of(scan)
            yield from scan.literal(">")
            arguments = checked_arguments((yield from scan.json()))
            yield from scan.space()
            yield from scan.end("</function>")
            yield Call(name, arguments)
            return
        yield from scan.space()
        if (yield from scan.next_of("{")) is not None:
            yield from self._bare(scan)
            return
        text, _ = yield from scan.until(*_ENDS)
        yield from _python_tag(text, tools)

    def _bare(self, scan: Scanner) -> Steps:
        while True:
            yield from scan.space()
            if (yield from scan.next_of("{")) is None:
                raise Malformed
            yield call_of_json((yield from scan.json()), bare=True)
            if (yield from scan.optional("; ", ";")) is None:
                return


def _python_tag(text: str, tools: Tools) -> list[Call]:
    """Built-in tools are called as ``name.call(argument="...")``; other text is code for an interpreter."""
    try:
        calls = [
            Call(checked_name(name.removesuffix(".call")), arguments_text(values))
            for name, values in python_calls(text)
            if name.endswith(".call") or name in tools.properties
        ]
        if calls:
            return calls
    except Malformed:
        pass
    for name in _INTERPRETERS:
        if name in tools.properties and text.strip():
            key = next(iter(tools.properties[name]), "code")
            return [Call(name, arguments_text({key: text}))]
    raise Malformed


FORMAT = Llama3(
    name="llama3",
    starts=("<|python_tag|>", "<function="),
    marks=_ENDS,
)
