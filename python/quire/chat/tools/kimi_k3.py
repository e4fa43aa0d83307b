"""Kimi K3: tags of three marks, ``<|open|>name attributes<|sep|>`` to ``<|close|>name<|sep|>``, around everything."""

from __future__ import annotations

from quire.chat.tools.arguments import ArgumentList
from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, checked_name
from quire.chat.tools.scanner import Malformed, Scanner, Wait
from quire.chat.tools.value_ends import ValueTags

_OPEN, _CLOSE, _SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"


def _close(tag: str) -> str:
    return _CLOSE + tag + _SEPARATOR


_TAGS = ValueTags(
    f"{_OPEN}argument ",
    _close("argument"),
    f"{_OPEN}argument ",
    _close("call"),
    ends=(_close("tools"), _close("message")),
    starts=(f"{_OPEN}call ",),
)


class KimiK3(ToolFormat):
    """Parses the response and the calls, which are parts of a message; the marks between them are dropped."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start != f"{_OPEN}tools{_SEPARATOR}":
            return
        begin = f"{_OPEN}call "
        yield from scan.literal(begin)
        while True:
            yield (yield from _call(scan, tools))
            if (yield from scan.optional(begin)) is None:
                yield from scan.end(_close("tools"))
                return


def _call(scan: Scanner, tools: Tools) -> Wait[Call]:
    name = checked_name((yield from _attributes(scan)).get("tool"))
    arguments = ArgumentList(tools, name, _TAGS)
    with arguments.pending():
        while (yield from scan.literal(_TAGS.following, _TAGS.last)) != _TAGS.last:
            attributes = yield from _attributes(scan)
            key, kind = attributes.get("key"), attributes.get("type")
            if key is None:
                raise Malformed
            as_text = None if kind is None else kind == "string"
            yield from arguments.take(scan, key, as_text)
    return arguments.call


def _attributes(scan: Scanner) -> Wait[dict[str, str]]:
    """Take ``key="value" ...`` and the separator."""
    found: dict[str, str] = {}
    while True:
        key, end = yield from scan.until('="', _SEPARATOR)
        if end == _SEPARATOR and not key.strip():
            return found
        value, quote = yield from scan.until('"')
        if end != '="' or not quote:
            raise Malformed
        for escape, sign in (("&quot;", '"'), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
            value = value.replace(escape, sign)
        found[key.strip()] = value


FORMAT = KimiK3(
    name="kimi_k3",
    starts=(
        f"{_OPEN}response{_SEPARATOR}",
        f"{_OPEN}tools{_SEPARATOR}",
        _close("response"),
        _close("message"),
    ),
    marks=(_OPEN, _CLOSE, _SEPARATOR),
    frames_content=True,
    hints=(("<|open|>", "<|close|>", "<|sep|>"),),
    syntaxes=(
        CallSyntax(
            '<|open|>call tool="{name}" index="{number}"<|sep|>{arguments}<|close|>call<|sep|>',
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|><|close|>message<|sep|>",
            separator="",
            content=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
            joint="<|close|>response<|sep|>",
            argument='<|open|>argument key="{key}" type="{type}"<|sep|>{value}<|close|>argument<|sep|>',
            lead="<|open|>response<|sep|><|close|>response<|sep|>",
            escapes=(("&", "&amp;"), ('"', "&quot;")),
        ),
    ),
)
