"""The syntax of a tool-call format, for grammars that make a model write it.

The formats themselves, with their parsers, are in ``quire.chat.tools``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["JSON_CALL", "CallSyntax", "Notation"]

JSON_CALL = '{"name": "{name}", "arguments": {arguments}}'
"""A call that is a JSON object."""


class Notation(Enum):
    """The notation of arguments."""

    JSON = "json"
    PYTHON = "python"
    """``key=value``, as Python's literals or JSON."""
    MARKED = "marked"
    """``key:value``, strings between marks."""


@dataclass(frozen=True)
class CallSyntax:
    """Calls are ``opening``, one or more ``call`` with ``separator`` between them, and ``closing``.

    In ``call``, ``{name}`` and ``{arguments}`` are placeholders, ``{number}`` is the call's number, ``{id}`` nine
    letters and digits, and ``{id_member}`` an optional JSON member with such an id.  Everywhere, ``{space}`` is
    optional white space.

    Attributes:
        separator: None if there is only one call.
        trigger: The beginning of ``opening``, or of each ``call``, that marks calls anywhere in a text; empty if calls
            are the whole answer.
        content: The texts before and after an answer that is text.
        joint: The text between such an answer and calls after it.
        reasoning: The texts before and after messages of reasoning, if these are not tags.
        hint: Only templates with this text use the syntax.
        argument: The form of each argument if they are not one JSON object.  In it, ``{key}`` is the name, with some
            characters replaced by ``escapes``, ``{value}`` the text, ``{is_text}`` tells if that is a string, and
            ``{type}`` is the name of the type.
        value_start: A value's text cannot begin with this.
        lead: May precede ``opening`` if there is no text.
        notation: The notation of all arguments together.
        string_mark: Stands on both sides of strings.
        end: Never occurs in strings.
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
        """Return an argument's name as it is written."""
        for sign, escape in self.escapes:
            key = key.replace(sign, escape)
        return key
