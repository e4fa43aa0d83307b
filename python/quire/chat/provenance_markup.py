"""Text marked as safe for HTML.

Published templates write ``tojson | safe`` and add their own text, which Jinja then escapes.
"""

from __future__ import annotations

import operator

from markupsafe import Markup, escape

from quire.chat.provenance import TemplateText, is_own, mask_of, mixed, own

__all__ = ["added", "safe"]


class TemplateMarkup(Markup):
    """Markup that tracks the template's characters.  The results of Markup's own methods have none."""

    __slots__ = ("_mask",)
    _mask: bytes

    def __new__(cls, text: str = "", mask: bytes = b"") -> TemplateMarkup:
        made = super().__new__(cls, str.__str__(text))
        made._mask = mask if len(mask) == len(made) else bytes(len(made))
        return made

    def __repr__(self) -> str:
        return f"Markup({str.__repr__(self)})"

    def __str__(self) -> str:
        return mixed(str.__str__(self), self._mask)


def safe(text: TemplateText) -> Markup:
    """Return ``text | safe``."""
    return TemplateMarkup(text, mask_of(text))


def added(left: str, right: str) -> str:
    """Return ``left + right``, where one or both may be markup."""
    made: str = operator.add(left, right)
    knows = isinstance(left, (TemplateText, TemplateMarkup)) or isinstance(right, (TemplateText, TemplateMarkup))
    if not isinstance(made, Markup) or not knows:
        return made
    return TemplateMarkup(str.__str__(made), _escaped_mask(left) + _escaped_mask(right))


def _escaped_mask(text: str) -> bytes:
    """Return the mask of a text after escaping."""
    if isinstance(text, TemplateMarkup):
        return text._mask
    if isinstance(text, Markup):
        return bytes(len(text))
    escaped = str.__str__(escape(text))
    if len(escaped) == len(text):
        return mask_of(text)
    return mask_of(own(escaped)) if is_own(text) else bytes(len(escaped))
