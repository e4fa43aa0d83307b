"""Keeping what users wrote apart from what the template wrote, through any template.

A control token begins with a character such as ``<``.  Before rendering, each such character in the conversation is
exchanged for a *mark*, a private-use character that occurs nowhere else.  Templates may strip, cut, join, search or
serialize the text: a mark is one character like the one it stands for and goes where that would have gone.  After
rendering, marks are turned back, and their places are known: a control token that begins there was written by a user.

Templates look for tags such as ``</think>`` in what the assistant said.  Characters that begin such a tag, a string
that the template's source has, stay as they are, unless the tag holds, or begins, a control token: a template that
looks for control tokens in the conversation finds none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from quire.chat.messages import Json
from quire.errors import LoadError

__all__ = ["Marks"]

MAX_TAGS = 256  # each is looked for at each place of a conversation where one may begin
PRIVATE_USE = range(0xE000, 0xF8FF)


class Marks:
    """The exchange for one vocabulary and one template."""

    def __init__(self, control_tokens: Iterable[str], tags: Iterable[str]) -> None:
        """``tags``: strings in the template's source that it may look for."""
        controls = sorted({token for token in control_tokens if token}, key=len, reverse=True)
        firsts = sorted({token[0] for token in controls if not (token[0].isalnum() or token[0].isspace())})
        # Tokens that begin like a word are exchanged only where all of them is there.
        words = [token for token in controls if token[0].isalnum() or token[0].isspace()]
        kept = sorted(
            {
                tag
                for tag in tags
                if len(tag) > 1 and any(first in tag for first in firsts)
                if not any(token in tag or token.startswith(tag) for token in controls)
            },
            key=len,
            reverse=True,
        )
        if len(kept) > MAX_TAGS:
            raise LoadError(f"[chat template] the source must have at most {MAX_TAGS} tags but has {len(kept)}")
        self._originals = [*firsts, *sorted({word[0] for word in words})]
        choices = [f"(?P<kept>{'|'.join(map(re.escape, kept))})"] if kept else []
        choices += [f"(?P<mark>{'|'.join(map(re.escape, [*words, *firsts]))})"] if controls else []
        self._pattern = re.compile("|".join(choices)) if controls else None
        self._firsts = frozenset(self._originals)

    def begin(self, source: str, values: Iterable[Json]) -> Marking:
        """The marks for one rendering of a template's ``source`` over ``values``."""
        taken = set(re.findall("[\ue000-\uf8ff]", source))
        if self._pattern is not None:
            _private_characters(values, taken)
        free = (chr(code) for code in PRIVATE_USE if chr(code) not in taken)
        return Marking(self._pattern, dict(zip(self._originals, free, strict=False)))


class Marking:
    """The marks of one rendering."""

    def __init__(self, pattern: re.Pattern[str] | None, mark_of: dict[str, str]) -> None:
        self._pattern = pattern
        self._mark_of = mark_of
        self._original_of = {mark: original for original, mark in mark_of.items()}
        self._split = re.compile(f"([{''.join(self._original_of)}])") if mark_of else None

    def mark(self, value: Json) -> Json:
        """A copy of ``value`` with marks in its strings and keys."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, list):
            return [self.mark(item) for item in value]
        if isinstance(value, dict):
            return {self._mark_text(key): self.mark(item) for key, item in value.items()}
        return value

    def _mark_text(self, text: str) -> str:
        assert self._pattern is not None

        def exchange(match: re.Match[str]) -> str:
            found = match[0]
            return found if match.lastgroup == "kept" else self._mark_of[found[0]] + found[1:]

        return self._pattern.sub(exchange, text)

    def segments(self, rendered: str) -> list[tuple[str, bool]]:
        """(text, is_template) pairs: False where a user wrote what could begin a control token."""
        if self._split is None:
            return [(rendered, True)] if rendered else []
        found = []
        for i, part in enumerate(self._split.split(rendered)):
            if part:
                found.append((self._original_of[part], False) if i % 2 else (part, True))
        return found


def _private_characters(values: Iterable[Json], taken: set[str]) -> None:
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, str):
            if not value.isascii():
                taken.update(re.findall("[\ue000-\uf8ff]", value))
        elif isinstance(value, list):
            stack.extend(value)
        elif isinstance(value, dict):
            stack.extend(value)
            stack.extend(value.values())
