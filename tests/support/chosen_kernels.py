"""The kernel set that tests of single kernels use, on which the bounds of their results depend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire._native.kernels import KernelSet

__all__ = ["chosen", "threads_of", "using"]

_stack = [KernelSet()]


def chosen() -> KernelSet:
    """Return the best set of this machine, unless a fixture chose another."""
    return _stack[-1]


def threads_of(kernels: str) -> int:
    """Return 1 for ggml's kernels, whose threads busy-wait: next to other jobs, two take far longer than one."""
    return 1 if kernels == "stock" else 2


@contextmanager
def using(isa: str | None = None, *, deterministic: bool | None = None) -> Iterator[KernelSet]:
    """Choose another set; None keeps the current value."""
    if deterministic is None:
        deterministic = chosen().is_deterministic
    _stack.append(KernelSet(isa or chosen().isa, deterministic=deterministic))
    try:
        yield chosen()
    finally:
        _stack.pop()
