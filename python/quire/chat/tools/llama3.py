"""Llama 3.x: a bare JSON object that begins the answer, ``<|python_tag|>``, or ``<function=name>{...}</function>``."""

from __future__ import annotations

from quire.chat.tools.arguments import started_arguments
from quire.chat.tools.call_reader import CallReader, python_calls
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, Unfinished, checked_name, name_of, pending
from quire.chat.tools.json_calls import call_of_json, json_arguments, json_value
from quire.chat.tools.scanner import CutOff, Malformed, Scanner
from quire.chat.tools.values import arguments_text

_ENDS = ("<|eom_id|>", "<|eot_id|>")
_INTERPRETERS = ("python", "ipython", "code_interpreter")


class Llama3(ToolFormat):
    """Parses calls; several bare objects are separated by semicolons."""

    def begin(self, scan: Scanner, tools: Tools) -> Steps | None:
        return self._bare(scan, tools)

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == "<function=":
            name = yield from name_of(scan)
            yield from scan.literal(">")
            call = yield from json_arguments(scan, name)
            with pending([call]):
                yield from scan.space()
                yield from scan.end("</function>")
            yield call
            return
        yield from scan.space()
        if (yield from scan.next_of("{")) is not None:
            yield from self._bare(scan, tools)
            return
        try:
            text, _ = yield from scan.until(*_ENDS)
        except CutOff as cut:
            raise Unfinished(_started_python_tag(cut.text, tools)) from None
        yield from _python_tag(text, tools)

    @property
    def closers(self) -> tuple[str, ...]:
        return ("</function>", *_ENDS)

    def _bare(self, scan: Scanner, tools: Tools) -> Steps:
        while True:
            yield from scan.space()
            if (yield from scan.next_of("{")) is None:
                raise Malformed
            yield call_of_json((yield from json_value(scan, bare_names=tools.properties)), bare=True)
            if (yield from scan.optional("; ", ";")) is None:
                return


def _python_tag(text: str, tools: Tools) -> list[Call]:
    """Read a call of a built-in tool, ``name.call(argument="...")``; other text is code for an interpreter."""
    try:
        calls = [
            Call(checked_name(name.removesuffix(".call")), arguments_text(values))
            for name, values in python_calls(text, tools.properties)
            if name.endswith(".call") or name in tools.properties
        ]
        if calls:
            return calls
    except Malformed:
        pass
    if text.strip():
        name, key = _interpreter(tools)
        return [Call(name, arguments_text({key: text}))]
    raise Malformed


def _interpreter(tools: Tools) -> tuple[str, str]:
    """Return the tool that takes code, and its argument.  Malformed if there is none."""
    for name in _INTERPRETERS:
        if name in tools.properties:
            return name, next(iter(tools.properties[name]), "code")
    raise Malformed


def _started_python_tag(text: str, tools: Tools) -> list[Call]:
    reader = CallReader(text, tools.properties)
    try:
        last = reader.read_beginning()
        named = [name for name, _ in reader.found] + ([] if last is None else [last.name])
        if all(name.endswith(".call") or name in tools.properties for name in named):
            calls = [Call(checked_name(name.removesuffix(".call")), arguments_text(v)) for name, v in reader.found]
            if last is not None:
                arguments = started_arguments(last.arguments, last.begun)
                calls.append(Call(checked_name(last.name.removesuffix(".call")), arguments))
            return calls
    except Malformed:
        pass
    name, key = _interpreter(tools)
    return [Call(name, started_arguments({}, (key, text)))]


FORMAT = Llama3(
    name="llama3",
    starts=("<|python_tag|>", "<function="),
    marks=_ENDS,
    hints=(("<|python_tag|>",), ("<|start_header_id|>", '"parameters"')),
    syntaxes=(CallSyntax('{"name": "{name}", "parameters": {arguments}}', separator="; "),),
)
