"""Qwen3-Coder, Step 3.5, Nemotron 3: ``<function=name>`` with a ``<parameter=key>`` for each argument."""

from __future__ import annotations

from dataclasses import dataclass

from quire.chat.tools.arguments import ArgumentList, Lines
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of, pending
from quire.chat.tools.scanner import Scanner, Wait
from quire.chat.tools.value_ends import ValueTags

__all__ = ["FORMAT", "FunctionTags"]

_FUNCTION, _FUNCTION_END, _PARAMETER = "<function=", "</function>", "<parameter="


@dataclass(frozen=True)
class FunctionTags(ToolFormat):
    """Parses values that are text between ``lines`` and take their types from the tools' schemas.

    The tag around a call, which ends with ``end``, may be absent.
    """

    end: str = "</tool_call>"
    lines: Lines = Lines.EITHER

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _FUNCTION:
            yield (yield from self._function(scan, tools))
            return
        yield from scan.space()
        yield from scan.literal(_FUNCTION)
        calls: list[Call] = []
        with pending(calls):
            calls.append((yield from self._function(scan, tools)))
            yield from scan.space()
            while (yield from scan.optional(_FUNCTION)) is not None:
                calls.append((yield from self._function(scan, tools)))
                yield from scan.space()
            while (yield from scan.optional(_FUNCTION_END)) is not None:  # a superfluous one
                yield from scan.space()
            yield from scan.end(self.end)
        yield from calls

    @property
    def visible(self) -> tuple[str, ...]:
        return (*self.starts, self.end, *self.marks)

    @property
    def closers(self) -> tuple[str, ...]:
        return (self.end, _FUNCTION_END)

    def _function(self, scan: Scanner, tools: Tools) -> Wait[Call]:
        name = yield from name_of(scan)
        yield from scan.literal(">")
        tags = ValueTags(
            _PARAMETER, "</parameter>", _PARAMETER, _FUNCTION_END, key_end=">", ends=(self.end,), starts=self.starts
        )
        arguments = ArgumentList(tools, name, tags, self.lines)
        with arguments.pending():
            while True:
                yield from scan.space()
                if (yield from scan.literal(_PARAMETER, _FUNCTION_END)) == _FUNCTION_END:
                    return arguments.call
                key = yield from arguments.key(scan, ">")
                yield from arguments.take(scan, key)


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
