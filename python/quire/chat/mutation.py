"""Lists and dicts that a template may change: those that it made itself, never a conversation's.

Published templates queue the ids of calls with ``append`` and ``pop``.  These changes last for one rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from quire.chat.budget import charge
from quire.chat.filters import names, operand
from quire.chat.text_costs import PIECE_BYTES, pieces

__all__ = ["changing", "given_data", "may_change"]

LIST_METHODS = names("append clear extend insert pop remove reverse")
DICT_METHODS = names("clear pop popitem setdefault update")
SLOT_BYTES = 16


class _Given:
    """The containers of a conversation, collected when a template first changes one."""

    def __init__(self, data: Iterable[object]) -> None:
        self._data = list(data)
        self._ids: frozenset[int] | None = None

    def has(self, value: object) -> bool:
        if self._ids is None:
            self._ids = frozenset(map(id, _containers(self._data)))
        return id(value) in self._ids


_given: ContextVar[_Given | None] = ContextVar("quire_template_data", default=None)


@contextmanager
def given_data(data: Iterable[object]) -> Iterator[None]:
    """Set the data of a rendering, which must outlive it."""
    token = _given.set(_Given(data))
    try:
        yield
    finally:
        _given.reset(token)


def _containers(data: list[object]) -> Iterator[object]:
    stack = list(data)
    while stack:
        value = stack.pop()
        if isinstance(value, (list, dict)):
            yield value
            stack.extend(value.values() if isinstance(value, dict) else value)


def may_change(value: object, method: str) -> bool:
    """Return whether a template may call a method that changes the value."""
    known = LIST_METHODS if type(value) is list else DICT_METHODS if type(value) is dict else ()
    given = _given.get()
    return method in known and given is not None and not given.has(value)


def changing(owner: list[Any] | dict[Any, Any], method: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Charge for a call that changes a container; return its arguments."""
    charge(SLOT_BYTES if method in ("append", "pop", "popitem") else SLOT_BYTES * (1 + len(owner)))
    if method == "remove":
        operand([owner, args])
    elif method == "extend":
        args = tuple(map(pieces, args))
    elif isinstance(owner, dict):
        if method == "update":
            args = tuple(
                arg if isinstance(arg, dict) else [tuple(pieces(pair)) for pair in pieces(arg)] for arg in args
            )
            charge(PIECE_BYTES * sum(map(len, args)))
            operand(list(args))
        else:
            operand(args[:1])
            charge(PIECE_BYTES)
    return args
