"""Hunyuan 3: GLM's tags with a suffix in every name, calls together in ``<tool_calls>``."""

from __future__ import annotations

from dataclasses import dataclass

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Steps, Tools
from quire.chat.tools.glm import ArgumentTags
from quire.chat.tools.scanner import Scanner

_SUFFIX = ":opensource"


@dataclass(frozen=True)
class Hunyuan(ArgumentTags):
    """Parses one block of calls."""

    suffix: str = _SUFFIX

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == f"<tool_call{_SUFFIX}>":
            yield (yield from self.call(scan, tools))
            return
        yield from scan.space()
        yield from scan.literal(f"<tool_call{_SUFFIX}>")
        yield (yield from self.call(scan, tools))
        yield from scan.space()
        while (yield from scan.optional(f"<tool_call{_SUFFIX}>")) is not None:
            yield (yield from self.call(scan, tools))
            yield from scan.space()
        yield from scan.end(f"</tool_calls{_SUFFIX}>")

    @property
    def closers(self) -> tuple[str, ...]:
        return (*super().closers, f"</tool_calls{_SUFFIX}>")


FORMAT = Hunyuan(
    name="hunyuan",
    starts=(f"<tool_calls{_SUFFIX}>", f"<tool_call{_SUFFIX}>"),
    marks=(f"</tool_calls{_SUFFIX}>",),
    hints=(("<tool_sep", "<arg_key", ":opensource"),),
    syntaxes=(
        CallSyntax(
            "<tool_call:opensource>{name}<tool_sep:opensource>{space}{arguments}</tool_call:opensource>",
            "<tool_calls:opensource>{space}",
            "{space}</tool_calls:opensource>",
            separator="{space}",
            trigger="<tool_calls:opensource>",
            argument="<arg_key:opensource>{key}</arg_key:opensource>{space}"
            "<arg_value:opensource>{value}</arg_value:opensource>{space}",
        ),
    ),
)
