"""The budget of one rendering: time, bytes made, bytes put out.

Templates come with model files, and so from strangers.  Every operation of the sandbox that can make a big value, and
every turn of a loop, asks here first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from jinja2.utils import Namespace

from quire.errors import CapacityError

__all__ = ["Limits", "Shape", "afford", "charge", "charge_output", "compiling", "measure", "rendering", "tick", "walk"]


@dataclass(frozen=True)
class Limits:
    """Limits of one rendering.

    Attributes:
        time_s: Processor time of this thread.  Wall time has no limit, because a busy machine may stop the thread.
        made_bytes: All strings and lists that the template makes, together.
        per_input_byte: Added to ``made_bytes`` for each byte of the conversation.
        peak_bytes: Memory that one operation may need while it runs.
        output_bytes: The size of the prompt.
    """

    time_s: float = 1.0
    made_bytes: int = 48 << 20
    per_input_byte: int = 32
    peak_bytes: int = 96 << 20
    output_bytes: int = 16 << 20


MAX_MADE_BYTES = 160 << 20
MAX_NODES = 200_000
MAX_DEPTH = 64
MAX_WRITTEN_BYTES = 256 << 20


class _Budget:
    def __init__(self, limits: Limits, input_bytes: int) -> None:
        self.deadline = time.monotonic() + limits.time_s
        self.cpu_deadline = time.thread_time() + limits.time_s
        self.made = min(limits.made_bytes + limits.per_input_byte * input_bytes, MAX_MADE_BYTES)
        self.peak = limits.peak_bytes
        self.output = limits.output_bytes + input_bytes

    def is_over(self) -> bool:
        """Return whether the time is used up."""
        # The wall clock is quicker to read, and processor time never passes it.
        return time.monotonic() > self.deadline and time.thread_time() > self.cpu_deadline


# Jinja folds constants while it compiles.  Constants beyond this budget are computed by the rendering instead.
_COMPILING = Limits(time_s=0.5, made_bytes=1 << 20, peak_bytes=1 << 20)
_current: ContextVar[_Budget | None] = ContextVar("quire_template_budget", default=None)


@contextmanager
def rendering(limits: Limits, input_bytes: int) -> Iterator[None]:
    """Set the budget for the code inside."""
    token = _current.set(_Budget(limits, input_bytes))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def compiling() -> Iterator[None]:
    """Set the budget for folding constants inside."""
    with rendering(_COMPILING, 0):
        yield


def _budget() -> _Budget:
    return _current.get() or _Budget(_COMPILING, 0)


def tick(n_bytes: int = 0) -> None:
    """Count a step of the template.  CapacityError if the time is used up."""
    budget = _budget()
    if budget.is_over():
        raise CapacityError("[chat template] rendering exceeds its time limit")
    if n_bytes:
        _take(budget, n_bytes)


def charge(n_bytes: int) -> None:
    """Charge for bytes about to be made.  CapacityError if there are too many."""
    tick(n_bytes)


def afford(n_bytes: int) -> None:
    """Check the bytes that an operation needs while it runs.  CapacityError if there are too many."""
    budget = _budget()
    tick()
    if n_bytes > budget.peak:
        raise CapacityError("[chat template] an operation exceeds its memory limit")


def _take(budget: _Budget, n_bytes: int) -> None:
    budget.made -= n_bytes
    if budget.made < 0:
        raise CapacityError("[chat template] rendering exceeds its memory limit")


def charge_output(n_bytes: int) -> None:
    """Charge for bytes put out.  CapacityError if there are too many."""
    budget = _budget()
    tick()
    budget.output -= n_bytes
    if budget.output < 0:
        raise CapacityError("[chat template] the prompt exceeds its size limit")


def size_of(text: str) -> int:
    """Return an upper bound of a string's size in bytes, from its length alone."""
    return 64 + (len(text) if text.isascii() else 4 * len(text))


@dataclass(frozen=True)
class Shape:
    """The size in bytes, the number of parts and the depth of a nested value when written out."""

    size: int
    n_parts: int
    depth: int


def walk(value: object) -> int:
    """Return the size of a nested value when written out; shared parts count each time.

    CapacityError if it is too big or too deep: comparing, hashing or printing it could take for ever.
    """
    return measure(value).size


def measure(value: object) -> Shape:
    """Return the size like ``walk``, with the number of parts and the depth."""
    n_parts = size = deepest = 0
    stack: list[tuple[object, int]] = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        n_parts += 1
        deepest = max(deepest, depth)
        if isinstance(item, str):
            size += size_of(item)
        else:
            size += 32
            parts = _parts(item)
            if n_parts + len(stack) + len(parts) > MAX_NODES:
                depth = MAX_DEPTH
            elif parts:
                stack.extend((part, depth + 1) for part in parts)
        if depth >= MAX_DEPTH or size > MAX_WRITTEN_BYTES:
            raise CapacityError("[chat template] a nested value is too big to be written out")
    return Shape(size, n_parts, deepest)


def _parts(value: object) -> Collection[object]:
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, (dict, ItemsView)):
        pairs: Collection[tuple[object, object]] = value.items() if isinstance(value, dict) else value
        return [part for pair in pairs for part in pair] if 2 * len(pairs) <= MAX_NODES else range(2 * MAX_NODES)
    if isinstance(value, (list, tuple, set, frozenset, KeysView, ValuesView)):
        return value
    return ()
