"""Nemotron Nano v2: a JSON list between ``<TOOLCALL>`` tags."""

from __future__ import annotations

from quire.chat.tools.tagged_json import TaggedJson

FORMAT = TaggedJson(
    name="nemotron",
    starts=("<TOOLCALL>",),
    ends=("</TOOLCALL>",),
)
