"""Calls in Python's notation: ``[f(a=1), g()]`` as the whole answer (Llama 4, Gemma 3, Olmo 3), or in a fence."""

from __future__ import annotations

from quire.chat.tools.arguments import started_arguments
from quire.chat.tools.call_reader import CallReader, python_calls
from quire.chat.tools.call_syntax import CallSyntax, Notation
from quire.chat.tools.calls import NAME_RUN, Call, Steps, ToolFormat, Tools, Unfinished, checked_name
from quire.chat.tools.scanner import CutOff, Malformed, Scanner, Wait
from quire.chat.tools.value_ends import read_to_end
from quire.chat.tools.values import arguments_text

__all__ = ["FORMAT", "calls_of_python", "started_python_calls", "take_python_calls"]

_FENCE = "```tool_code\n"
_ENDS = ("<|python_end|>", "<|eot|>", "</function_calls>")


def calls_of_python(text: str, tools: Tools) -> list[Call]:
    """Return the calls that a text consists of.  Raises Malformed, or GoesOn if more text may complete it."""
    return [Call(checked_name(name), arguments_text(values)) for name, values in python_calls(text, tools.properties)]


def started_python_calls(text: str, tools: Tools) -> list[Call]:
    """Return the calls at the beginning of which a text may be.  Raises Malformed."""
    if not text.strip():
        return []
    reader = CallReader(text, tools.properties)
    last = reader.read_beginning()
    calls = [Call(checked_name(name), arguments_text(values)) for name, values in reader.found]
    if last is not None:
        calls.append(Call(checked_name(last.name), started_arguments(last.arguments, last.begun)))
    return calls


def take_python_calls(scan: Scanner, tools: Tools, *ends: str, before: str = "") -> Wait[list[Call]]:
    """Take the calls up to one of ``ends``.  ``before`` is their text that was taken already."""
    try:
        return (yield from read_to_end(scan, lambda text: calls_of_python(before + _without_print(text), tools), *ends))
    except CutOff as cut:
        raise Unfinished(started_python_calls(before + _without_print(cut.text), tools)) from None


def _without_print(text: str) -> str:
    """Unwrap a call inside ``print()``, as Gemma 3 writes it."""
    inner = text.strip()
    return inner.removeprefix("print(").removesuffix(")") if inner.startswith("print(") else text


class Pythonic(ToolFormat):
    """Parses calls without evaluating them: only literals are arguments."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return _list(scan, tools)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from (yield from take_python_calls(scan, tools, *(("```",) if start == _FENCE else _ENDS)))

    @property
    def closers(self) -> tuple[str, ...]:
        return _ENDS


def _list(scan: Scanner, tools: Tools) -> Steps:
    yield from scan.space()
    yield from scan.literal("[")
    try:
        name = yield from scan.run(NAME_RUN)
    except CutOff as cut:
        if any(name.startswith(cut.text) for name in tools.properties):
            raise
        raise Malformed from None
    if (yield from scan.next_of("(")) is None or not name:
        raise Malformed
    try:
        calls = yield from take_python_calls(scan, tools, *_ENDS, before="[" + name)
    except CutOff:
        if name in tools.properties:
            raise
        raise Malformed from None
    yield from calls


FORMAT = Pythonic(
    name="pythonic",
    starts=("<|python_start|>", "<function_calls>", _FENCE),
    marks=_ENDS,
    hints=(("<|python_start|>",), ("```tool_code",), ("<function_calls>", "<functions>", "<|im_start|>")),
    syntaxes=(
        CallSyntax(
            "<function_calls>{name}({arguments})</function_calls>",
            separator="{space}",
            trigger="<function_calls>",
            hint="<function_calls>",
            notation=Notation.PYTHON,
        ),
        CallSyntax("{name}({arguments})", "[", "]", separator=", ", notation=Notation.PYTHON),
    ),
)
