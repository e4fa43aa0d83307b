"""MiniMax M3: ``<invoke>`` with a tag for each argument, a mark before each tag; objects and lists are tags, too."""

from __future__ import annotations

from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, name_of
from quire.chat.tools.scanner import MAX_DEPTH, Malformed, Scanner, Wait
from quire.chat.tools.schemas import ValueSchema
from quire.chat.tools.value_ends import take_key
from quire.chat.tools.values import typed_value

_MARK = "]<]minimax[>["
_START, _END, _INVOKE = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>", f'{_MARK}<invoke name="'


class MiniMaxM3(ToolFormat):
    """Parses calls, which are all in one block."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.space()
        yield from scan.literal(_INVOKE)
        while True:
            yield (yield from _invocation(scan, tools))
            yield from scan.space()
            if (yield from scan.optional(_INVOKE)) is None:
                yield from scan.end(_END)
                return


def _invocation(scan: Scanner, tools: Tools) -> Wait[Call]:
    name = yield from name_of(scan)
    yield from scan.literal('">')
    arguments = ArgumentList(tools, name)
    with arguments.pending():
        while True:
            yield from scan.space()
            yield from scan.literal(f"{_MARK}<")
            if (yield from scan.optional("/invoke>")) is not None:
                return arguments.call
            key = yield from arguments.key(scan, ">")
            text = yield from arguments.text(scan, key, tags=_MARK)
            arguments.add(key, (yield from _value(scan, text, key, arguments.schema.member(key), 0)))


def _value(scan: Scanner, text: str, tag: str, schema: ValueSchema, depth: int) -> Wait[object]:
    """Take the value of a tag, whose text up to the next mark was taken."""
    if (yield from scan.optional(f"</{tag}>")) is not None:
        if not text and not schema.allows("string"):
            return [] if schema.allows("array") else {} if schema.allows("object") else text
        return typed_value(text, schema)
    if text.strip() or depth == MAX_DEPTH:
        raise Malformed
    parts: list[tuple[str, object]] = []
    while True:
        yield from scan.literal("<")
        inner = yield from take_key(scan, schema.members, ">")
        start, found = yield from scan.until(_MARK)
        if not found:
            raise Malformed
        parts.append((inner, (yield from _value(scan, start, inner, _part_of(schema, inner), depth + 1))))
        yield from scan.space()
        yield from scan.literal(_MARK)
        if (yield from scan.optional(f"</{tag}>")) is not None:
            return _joined(parts, schema)


def _part_of(schema: ValueSchema, tag: str) -> ValueSchema:
    """Return the schema of a tag within a value."""
    return schema.item if tag == "item" and tag not in schema.members else schema.member(tag)


def _joined(parts: list[tuple[str, object]], schema: ValueSchema) -> object:
    names = [name for name, _ in parts]
    if set(names) == {"item"} and (schema.allows("array") or not schema.allows("object")):
        return [value for _, value in parts]
    if len(set(names)) < len(names):
        raise Malformed
    return dict(parts)


FORMAT = MiniMaxM3(
    name="minimax_m3",
    starts=(_START,),
    marks=(_MARK, "<tool_call>", "</tool_call>", _END),
    hints=((_MARK,),),
    syntaxes=(
        CallSyntax(
            f'{_INVOKE}{{name}}">{{arguments}}{_MARK}</invoke>\n',
            f"{_START}\n",
            _END,
            separator="",
            trigger=_START,
            argument=f"{_MARK}<{{key}}>{{value}}{_MARK}</{{key}}>",
        ),
    ),
)
