"""Calls in Python's notation: ``[f(a=1), g()]`` as the whole answer (Llama 4, Gemma 3, Olmo 3), or in a fence."""

from __future__ import annotations

from quire.chat.tools.calls import NAME_RUN, Call, Steps, ToolFormat, Tools, checked_name
from quire.chat.tools.literals import python_calls
from quire.chat.tools.scanner import Malformed, Scanner
from quire.chat.tools.values import arguments_text

__all__ = ["FORMAT", "calls_of_python"]

_ENDS = ("<|python_end|>", "<|eot|>", "</function_calls>")


def calls_of_python(text: str) -> list[Call]:
    """The calls that a text consists of.  Raises Malformed."""
    return [Call(checked_name(name), arguments_text(values)) for name, values in python_calls(text)]


class Pythonic(ToolFormat):
    """Read, never evaluated: only literals are arguments."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _list(scan)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start != "```tool_code\n":
            text, _ = yield from scan.until(*_ENDS)
            yield from calls_of_python(text)
            return
        text, _ = yield from scan.until("```")
        text = text.strip()
        if text.startswith("print(") and text.endswith(")"):
            text = text[len("print(") : -1]
        yield from calls_of_python(text)


def _list(scan: Scanner) -> Steps:
    yield from scan.space()
    yield from scan.literal("[")
    name = yield from scan.run(NAME_RUN)
    if (yield from scan.next_of("(")) is None or not name:
        raise Malformed
    text, _ = yield from scan.until(*_ENDS)
    yield from calls_of_python("[" + name + text)


FORMAT = Pythonic(
    name="pythonic",
    starts=("<|python_start|>", "<function_calls>", "```tool_code\n"),
    marks=_ENDS,
)
