"""Qwen3-Coder, Step 3.5, Nemotron 3: ``<function=name>`` with a ``<parameter=key>`` for each argument."""

from __future__ import annotations

from dataclasses import dataclass

from quire.call_syntax import CallSyntax
from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of, pending
from quire.chat.tools.scanner import Scanner, Wait

__all__ = ["FORMAT", "FunctionTags"]

_FUNCTION = "<function="


@dataclass(frozen=True)
class FunctionTags(ToolFormat):
    """Values are text between line ends; the tools' schemas say what they are.  The tag around it, which ends with
    ``end``, may be absent."""

    end: str = "</tool_call>"

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _FUNCTION:
            yield (yield from _function(scan, tools))
            return
        yield from scan.space()
        yield from scan.literal(_FUNCTION)
        calls: list[Call] = []
        with pending(calls):
            calls.append((yield from _function(scan, tools)))
            yield from scan.space()
            while (yield from scan.optional(_FUNCTION)) is not None:
                calls.append((yield from _function(scan, tools)))
                yield from scan.space()
            yield from scan.end(self.end)
        yield from calls

    @property
    def visible(self) -> tuple[str, ...]:
        return (*self.starts, self.end, *self.marks)


def _function(scan: Scanner, tools: Tools) -> Wait[Call]:
    name = yield from name_of(scan)
    yield from scan.literal(">")
    arguments = ArgumentList(tools, name)
    with arguments.pending():
        while True:
            yield from scan.space()
            if (yield from scan.literal("<parameter=", "</function>")) == "</function>":
                return arguments.call
            key = yield from name_of(scan)
            yield from scan.literal(">")
            yield from arguments.take(scan, key, "</parameter>", lines=True)


FORMAT = FunctionTags(
    name="qwen3_coder",
    starts=("<tool_call>", _FUNCTION),
    hints=(("<function=", "<parameter="),),
    syntaxes=(
        CallSyntax(
            "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
            separator="{space}",
            trigger="<tool_call>",
            argument="<parameter={key}>\n{value}\n</parameter>\n",
        ),
    ),
)
