"""GLM 4.5 and later, Ling 3, Laguna: a name, then ``<arg_key>`` and ``<arg_value>`` in turn, in ``<tool_call>``."""

from __future__ import annotations

from dataclasses import dataclass

from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import Scanner, Wait
from quire.chat.tools.value_ends import ValueTags

__all__ = ["FORMAT", "ArgumentTags"]


@dataclass(frozen=True)
class ArgumentTags(ToolFormat):
    """Parses argument tags whose names have a ``suffix``.  Texts are verbatim, other values are JSON."""

    suffix: str = ""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield (yield from self.call(scan, tools))

    def call(self, scan: Scanner, tools: Tools) -> Wait[Call]:
        """Take the call after ``<tool_call>``."""
        tail = self.suffix + ">"
        yield from scan.space()
        name = yield from name_of(scan)
        key_end, last = "</arg_key" + tail, "</tool_call" + tail
        tags = ValueTags(
            "<arg_value" + tail,
            "</arg_value" + tail,
            "<arg_key" + tail,
            last,
            key_end=key_end,
            ends=self.closers,
            starts=self.starts,
        )
        arguments = ArgumentList(tools, name, tags)
        with arguments.pending():
            yield from scan.optional("<tool_sep" + tail)
            yield from scan.space()
            while (yield from scan.optional("<arg_key" + tail)) is not None:
                key = yield from arguments.key(scan, key_end)
                yield from scan.space()
                yield from scan.literal("<arg_value" + tail)
                yield from arguments.take(scan, key if key in arguments.schema.members else key.strip())
                yield from scan.space()
            # The end of the text does not count: an answer that breaks off may lack arguments.
            yield from scan.literal(last)
        return arguments.call

    @property
    def closers(self) -> tuple[str, ...]:
        return (f"</tool_call{self.suffix}>",)

    @property
    def visible(self) -> tuple[str, ...]:
        names = ("tool_call", "/tool_call", "tool_sep", "arg_key", "/arg_key", "arg_value", "/arg_value")
        return (*self.starts, *self.marks, *(f"<{name}{self.suffix}>" for name in names))


FORMAT = ArgumentTags(
    name="glm",
    starts=("<tool_call>",),
    hints=(("<tool_call>", "<arg_key>"),),
    syntaxes=(
        CallSyntax(
            "<tool_call>{name}{space}{arguments}</tool_call>",
            separator="{space}",
            trigger="<tool_call>",
            argument="<arg_key>{key}</arg_key>{space}<arg_value>{value}</arg_value>{space}",
        ),
    ),
)
