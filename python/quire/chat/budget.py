"""What one rendering may cost: time, bytes made, bytes put out.

Templates come with model files, and so from strangers.  Every operation of the sandbox that can make a big value, and
every turn of a loop, asks here first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from quire.errors import CapacityError

__all__ = ["Limits", "charge", "charge_output", "rendering", "tick", "walk"]


@dataclass(frozen=True)
class Limits:
    """Limits of one rendering.

    ``time_s``: seconds.  ``made_bytes``: all strings and lists that the template makes, together; ``per_input_byte``
    is added for each byte of the conversation.  ``output_bytes``: the prompt.
    """

    time_s: float = 1.0
    made_bytes: int = 48 << 20
    per_input_byte: int = 32
    output_bytes: int = 16 << 20


MAX_MADE_BYTES = 160 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64


class _Budget:
    def __init__(self, limits: Limits, input_bytes: int) -> None:
        self.deadline = time.monotonic() + limits.time_s
        self.made = min(limits.made_bytes + limits.per_input_byte * input_bytes, MAX_MADE_BYTES)
        self.output = limits.output_bytes + input_bytes


# Outside of a rendering (constants folded while compiling) little is allowed.
_COMPILING = Limits(time_s=1e9, made_bytes=1 << 16)
_current: ContextVar[_Budget | None] = ContextVar("quire_template_budget", default=None)


@contextmanager
def rendering(limits: Limits, input_bytes: int) -> Iterator[None]:
    """The budget of what runs inside."""
    token = _current.set(_Budget(limits, input_bytes))
    try:
        yield
    finally:
        _current.reset(token)


def _budget() -> _Budget:
    return _current.get() or _Budget(_COMPILING, 0)


def tick(n_bytes: int = 0) -> None:
    """A step of the template.  Raises CapacityError when the time is up."""
    budget = _budget()
    if time.monotonic() > budget.deadline:
        raise CapacityError("[chat template] rendering must end within its time limit but does not")
    if n_bytes:
        _take(budget, n_bytes)


def charge(n_bytes: int) -> None:
    """Bytes about to be made.  Raises CapacityError when there are too many."""
    tick(n_bytes)


def _take(budget: _Budget, n_bytes: int) -> None:
    budget.made -= n_bytes
    if budget.made < 0:
        raise CapacityError("[chat template] rendering must stay within its memory limit but does not")


def charge_output(n_bytes: int) -> None:
    """Bytes put out.  Raises CapacityError when there are too many."""
    budget = _budget()
    tick()
    budget.output -= n_bytes
    if budget.output < 0:
        raise CapacityError("[chat template] the prompt must stay within its size limit but does not")


def size_of(text: str) -> int:
    """Upper bound of the bytes that a string takes, from its length alone."""
    return 64 + (len(text) if text.isascii() else 4 * len(text))


def walk(value: object) -> int:
    """The size of a nested value written out, where parts that are there twice count twice.

    Raises CapacityError for one that is too big or too deep: comparing or printing it could take for ever.
    """
    left = MAX_NODES
    size = 0
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        left -= 1
        if left < 0 or depth > MAX_DEPTH:
            raise CapacityError("[chat template] a nested value must be written out in reasonable space but is too big")
        if isinstance(item, str):
            size += size_of(item)
        elif isinstance(item, dict):
            stack.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, (list, tuple, set, frozenset)):
            if len(item) > left:
                left = 0
            else:
                stack.extend((part, depth + 1) for part in item)
        else:
            size += 32
    return size
