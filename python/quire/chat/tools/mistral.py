"""Mistral: ``[TOOL_CALLS]`` before a JSON list (to 2024), or before a name and arguments, once for each call."""

from __future__ import annotations

import re
import secrets
import string
from dataclasses import dataclass

from quire.chat.tools.calls import Call, Steps, ToolFormat, Tools, checked_arguments, json_list, name_of
from quire.chat.tools.scanner import Scanner

_ID = re.compile(r"[A-Za-z0-9_-]*")
_ID_CHARACTERS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class Mistral(ToolFormat):
    """``name[CALL_ID]id[ARGS]{...}``, where the marks between may be absent."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.space()
        if (yield from scan.next_of("[", "{")) is not None:
            yield from (yield from json_list(scan))
            return
        name = yield from name_of(scan)
        id = ""
        if (yield from scan.optional("[CALL_ID]")) is not None:
            id = yield from scan.run(_ID)
        yield from scan.optional("[ARGS]")
        arguments = checked_arguments((yield from scan.json()))
        yield Call(name, arguments, id[:128] or None)

    def new_id(self) -> str | None:
        """Nine letters and digits, which Mistral's templates insist on."""
        return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


MISTRAL = Mistral(
    name="mistral",
    starts=("[TOOL_CALLS]",),
    marks=("[ARGS]", "[CALL_ID]"),
    hints=(("[TOOL_CALLS]",),),
)
