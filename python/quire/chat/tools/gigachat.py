"""GigaChat: a call is a JSON object, after ``<|function_call|>`` (3.1) or after the header of a separate turn (3)."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.calls import Steps, ToolFormat, Tools
from quire.chat.tools.json_calls import json_list
from quire.chat.tools.scanner import Scanner

_CALL, _TURN, _HEADER = "<|function_call|>", "<|message_sep|>", "function call<|role_sep|>"


class GigaChat(ToolFormat):
    """Parses a call, which may follow the mark that ends a turn; the mark is dropped."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        if start == _TURN:
            yield from scan.space()
            if (yield from scan.ended()):
                return
            yield from scan.literal(_HEADER)
        yield from (yield from json_list(scan))


FORMAT = GigaChat(
    name="gigachat",
    starts=(_CALL, _TURN),
    # In GigaChat 3's vocabulary, line ends are part of these tokens.
    marks=("<|role_sep|>", f"{_TURN}\n\n", "<|role_sep|>\n"),
    frames_content=True,
    hints=((_CALL, "<|role_sep|>"), ("function call", "<|role_sep|>")),
    syntaxes=(
        CallSyntax(f"{_CALL}{JSON_CALL}", trigger=_CALL, content=("", ""), hint=_CALL),
        CallSyntax(f"{_TURN}\n\n{_HEADER}\n{JSON_CALL}", trigger=f"{_TURN}\n\n", content=("", "")),
    ),
)
