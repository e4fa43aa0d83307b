"""Calls as ``<invoke name="...">`` with a ``<parameter name="...">`` for each argument, used by several formats."""

from __future__ import annotations

from dataclasses import dataclass

from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import Scanner, Wait
from quire.chat.tools.value_ends import ValueTags

__all__ = ["InvokeXml", "read_invocations"]

_WIRE_SAYS_TEXT = {"": None, ' string="true"': True, ' string="false"': False}


@dataclass(frozen=True)
class InvokeXml(ToolFormat):
    """Parses such calls.  ``ends`` has the end of each of ``starts``; ``prefix`` is part of the tags' names."""

    ends: tuple[str, ...] = ()
    prefix: str = ""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from read_invocations(scan, tools, self.prefix, self.ends[self.starts.index(start)], self.starts)

    @property
    def visible(self) -> tuple[str, ...]:
        return self.starts + self.ends + self.marks

    @property
    def closers(self) -> tuple[str, ...]:
        return (*self.ends, f"</{self.prefix}invoke>")


def read_invocations(scan: Scanner, tools: Tools, prefix: str, end: str, starts: tuple[str, ...]) -> Steps:
    """Read one or more calls up to ``end``, which ``starts`` may follow."""
    begin, parameter = f'<{prefix}invoke name="', f'<{prefix}parameter name="'
    tags = ValueTags(
        parameter,
        f"</{prefix}parameter>",
        parameter,
        f"</{prefix}invoke>",
        key_end='"',
        ends=(end,),
        starts=(begin, *starts),
    )
    yield from scan.space()
    yield from scan.literal(begin)
    while True:
        yield (yield from _invocation(scan, tools, tags))
        yield from scan.space()
        if (yield from scan.optional(begin)) is None:
            yield from scan.end(end)
            return


def _invocation(scan: Scanner, tools: Tools, tags: ValueTags) -> Wait[Call]:
    name = yield from name_of(scan)
    yield from scan.literal('">')
    arguments = ArgumentList(tools, name, tags)
    with arguments.pending():
        while True:
            yield from scan.space()
            if (yield from scan.literal(tags.following, tags.last)) == tags.last:
                return arguments.call
            key = yield from arguments.key(scan, '"')
            as_text = _WIRE_SAYS_TEXT[(yield from scan.optional(' string="true"', ' string="false"')) or ""]
            yield from scan.literal(">")
            yield from arguments.take(scan, key, as_text)
