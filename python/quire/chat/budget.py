"""What one rendering may cost: time, bytes made, bytes put out.

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

    ``time_s``: seconds of the processor, and at most four times that by the clock, since a busy machine is not the
    template's fault.  ``made_bytes``: all strings and lists that the template makes, together; ``per_input_byte`` is
    added for each byte of the conversation.  ``peak_bytes``: what one operation may need while it runs.
    ``output_bytes``: the prompt.
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
        self.last_deadline = self.deadline + 3 * limits.time_s
        self.cpu_deadline = time.thread_time() + limits.time_s
        self.made = min(limits.made_bytes + limits.per_input_byte * input_bytes, MAX_MADE_BYTES)
        self.peak = limits.peak_bytes
        self.output = limits.output_bytes + input_bytes

    def is_over(self) -> bool:
        """Whether the time is up."""
        now = time.monotonic()
        if now <= self.deadline:
            return False
        return now > self.last_deadline or time.thread_time() > self.cpu_deadline


# Jinja folds constants while it compiles; what is too much then is left for the rendering.
_COMPILING = Limits(time_s=0.5, made_bytes=1 << 20, peak_bytes=1 << 20)
_current: ContextVar[_Budget | None] = ContextVar("quire_template_budget", default=None)


@contextmanager
def rendering(limits: Limits, input_bytes: int) -> Iterator[None]:
    """The budget of what runs inside."""
    token = _current.set(_Budget(limits, input_bytes))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def compiling() -> Iterator[None]:
    """The budget of constants that are folded inside."""
    with rendering(_COMPILING, 0):
        yield


def _budget() -> _Budget:
    return _current.get() or _Budget(_COMPILING, 0)


def tick(n_bytes: int = 0) -> None:
    """A step of the template.  Raises CapacityError when the time is up."""
    budget = _budget()
    if budget.is_over():
        raise CapacityError("[chat template] rendering must end within its time limit but does not")
    if n_bytes:
        _take(budget, n_bytes)


def charge(n_bytes: int) -> None:
    """Bytes about to be made.  Raises CapacityError when there are too many."""
    tick(n_bytes)


def afford(n_bytes: int) -> None:
    """Bytes that an operation is about to need for itself.  Raises CapacityError when they are too many."""
    budget = _budget()
    tick()
    if n_bytes > budget.peak:
        raise CapacityError("[chat template] an operation must stay within its memory limit but does not")


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


@dataclass(frozen=True)
class Shape:
    """A nested value written out: its size in bytes, how many parts it has, how deep it is."""

    size: int
    n_parts: int
    depth: int


def walk(value: object) -> int:
    """The size of a nested value written out, where parts that are there twice count twice.

    Raises CapacityError for one that is too big or too deep: comparing, hashing or printing it could take for ever.
    """
    return measure(value).size


def measure(value: object) -> Shape:
    """``walk``, with the number of parts and the depth."""
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
            raise CapacityError("[chat template] a nested value must be written out in reasonable space but is too big")
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
