"""Nemotron Nano v2: a JSON list between ``<TOOLCALL>`` tags."""

from __future__ import annotations

from quire.chat.tools.call_syntax import JSON_CALL, CallSyntax
from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="nemotron",
    starts=("<TOOLCALL>",),
    ends=("</TOOLCALL>",),
    hints=(("<TOOLCALL>",),),
    syntaxes=(CallSyntax(JSON_CALL, "<TOOLCALL>[", "]</TOOLCALL>", separator=", ", trigger="<TOOLCALL>"),),
)
