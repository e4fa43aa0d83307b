"""Mistral: ``[TOOL_CALLS]`` before a JSON list (to 2024), or before a name and arguments, once for each call."""

from __future__ import annotations

import os
import re

from quire.chat.tools.call_syntax import CallSyntax
from quire.chat.tools.calls import Steps, ToolFormat, Tools, name_of
from quire.chat.tools.json_calls import json_arguments, json_list
from quire.chat.tools.scanner import Malformed, Scanner

_ID = re.compile(r"[A-Za-z0-9_-]*")
_MAX_ID_CHARACTERS = 128


class Mistral(ToolFormat):
    """Parses ``name[CALL_ID]id[ARGS]{...}``, in which the marks may be absent."""

    def read(self, scan: Scanner, start: str, tools: Tools) -> Steps:
        yield from scan.space()
        if (yield from scan.next_of(start)) is not None:
            raise Malformed  # a superfluous one
        if (yield from scan.next_of("[", "{")) is not None:
            yield from (yield from json_list(scan))
            return
        name = yield from name_of(scan)
        id = ""
        if (yield from scan.optional("[CALL_ID]")) is not None:
            id = yield from scan.run(_ID)
            if len(id) > _MAX_ID_CHARACTERS:
                raise Malformed
        yield from scan.optional("[ARGS]")
        yield (yield from json_arguments(scan, name, id or None))

    def new_id(self) -> str | None:
        """Return nine letters and digits, which Mistral's templates require."""
        return os.urandom(5).hex()[:9]


FORMAT = Mistral(
    name="mistral",
    starts=("[TOOL_CALLS]",),
    marks=("[ARGS]", "[CALL_ID]"),
    hints=(("[TOOL_CALLS]",),),
    syntaxes=(
        CallSyntax(
            "[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{arguments}",
            separator="",
            trigger="[TOOL_CALLS]",
            hint="[CALL_ID]",
        ),
        CallSyntax("[TOOL_CALLS]{name}[ARGS]{arguments}", separator="", trigger="[TOOL_CALLS]", hint="[ARGS]"),
        CallSyntax(
            '{"name": "{name}", "arguments": {arguments}{id_member}}',
            "[TOOL_CALLS][",
            "]",
            separator=", ",
            trigger="[TOOL_CALLS]",
        ),
    ),
)
