"""Apertus: a list of ``{name: arguments}`` between ``<|tools_prefix|>`` and ``<|tools_suffix|>``."""

from __future__ import annotations

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, Unfinished, checked_name, pending
from quire.chat.tools.json_calls import checked_arguments, items, members, started_list, started_object
from quire.chat.tools.scanner import CutOff, Malformed, Scanner


class Apertus(ToolFormat):
    """Parses calls that are objects with one member."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        try:
            raw = yield from scan.json()
        except CutOff as cut:
            raise Unfinished(_started_calls(cut.text)) from None
        if not raw.startswith("["):
            raise Malformed
        calls = [call for item in items(raw) for call in _calls(item)]
        if not calls:
            raise Malformed
        with pending(calls):
            yield from scan.space()
            yield from scan.end("<|tools_suffix|>")
        yield from calls

    @property
    def closers(self) -> tuple[str, ...]:
        return ("<|tools_suffix|>",)


def _calls(item: str) -> list[Call]:
    if not item.startswith("{"):
        raise Malformed
    return [Call(checked_name(name), checked_arguments(value)) for name, value in members(item).items()]


def _started_calls(raw: str) -> list[Call]:
    whole, rest = started_list(raw)
    calls = [call for item in whole for call in _calls(item)]
    if rest.startswith("{"):
        started = started_object(rest)
        calls += [Call(checked_name(name), checked_arguments(value)) for name, value in started.members.items()]
        if started.key is not None:
            calls.append(Call(checked_name(started.key), started.rest))
    return calls


FORMAT = Apertus(
    name="apertus",
    starts=("<|tools_prefix|>",),
    marks=("<|tools_suffix|>",),
    hints=(("<|tools_prefix|>",),),
    syntaxes=(
        CallSyntax(
            '{"{name}": {arguments}}',
            "<|tools_prefix|>[",
            "]<|tools_suffix|>",
            separator=", ",
            trigger="<|tools_prefix|>",
        ),
    ),
)
