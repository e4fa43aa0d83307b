"""How a wire format of tool calls is written, for grammars that make a model write it.

The formats themselves, with their readers, are in ``quire.chat.tools``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["JSON_CALL", "CallSyntax", "Notation"]

JSON_CALL = '{"name": "{name}", "arguments": {arguments}}'
"""A call that is a JSON object."""


class Notation(Enum):
    """What arguments are written in."""

    JSON = "json"
    PYTHON = "python"
    """``key=value``, as Python's literals or JSON."""
    MARKED = "marked"
    """``key:value``, strings between marks."""


@dataclass(frozen=True)
class CallSyntax:
    """Calls are ``opening``, ``call`` with ``separator`` between them, ``closing``.

    In ``call``, ``{name}`` and ``{arguments}`` stand for the two, ``{number}`` for the call's number, ``{id}`` for nine
    letters and digits, ``{id_member}`` for a member of a JSON object with such, or nothing; everywhere, ``{space}`` for
    white space, or nothing.  ``separator`` None: there is one call only.  ``trigger``: the beginning of ``opening``, or
    of each ``call``, that tells calls from other text wherever it stands; empty where calls are the whole answer.
    ``content``: what stands before and behind an answer that is text; ``joint``: between such text and calls behind it.
    ``reasoning``: what stands before and behind messages of reasoning, where that is no business of tags.  ``hint``:
    only templates that have this text write so.  ``argument``: how each argument is written where they are not one JSON
    object; in it ``{key}`` stands for its name, with ``escapes`` in the place of some of its signs, ``{value}`` for its
    text, ``{is_text}`` for whether that is one of a string, and ``{type}`` for the name of its type.  ``value_start``:
    what such a text must not begin with.  ``lead``: what may stand before ``opening`` where there is no text.
    ``notation``: of all arguments together; ``string_mark``: on both sides of its strings; ``end``: what never stands
    in them.
    """

    call: str
    opening: str = ""
    closing: str = ""
    separator: str | None = None
    trigger: str = ""
    content: tuple[str, str] | None = None
    joint: str | None = None
    reasoning: tuple[str, str] | None = None
    hint: str = ""
    argument: str = ""
    value_start: str = ""
    lead: str = ""
    notation: Notation = Notation.JSON
    string_mark: str = ""
    end: str = ""
    escapes: tuple[tuple[str, str], ...] = ()

    def escaped(self, key: str) -> str:
        """An argument's name as it is written."""
        for sign, escape in self.escapes:
            key = key.replace(sign, escape)
        return key
