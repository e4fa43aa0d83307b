"""The kernel set that tests of single kernels run, and that the bounds of their results depend on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from quire._native.kernels import KernelSet

__all__ = ["chosen", "threads_of", "using"]

_stack = [KernelSet()]


def chosen() -> KernelSet:
    """The best of this machine, unless a fixture chose another."""
    return _stack[-1]


def threads_of(kernels: str) -> int:
    """ggml's threads wait for each other without a pause: beside other jobs two take far longer than one."""
    return 1 if kernels == "stock" else 2


@contextmanager
def using(isa: str | None = None, *, deterministic: bool | None = None) -> Iterator[KernelSet]:
    """Choose another; what is None stays."""
    if deterministic is None:
        deterministic = chosen().is_deterministic
    _stack.append(KernelSet(isa or chosen().isa, deterministic=deterministic))
    try:
        yield chosen()
    finally:
        _stack.pop()
