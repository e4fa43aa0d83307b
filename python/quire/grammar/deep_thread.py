"""Threads that may follow grammars by recursion, behind everything else."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..system import lower_thread_priority

__all__ = ["STACK_BYTES", "be_patient", "start_deep_thread"]

# Grammars may be chains of thousands of rules, which are followed by recursion.
STACK_BYTES = 64 * 1024 * 1024
# Added to niceness: the model's threads come first, but compiling still gets a third of a core that both want.
PATIENT = 3
_STACK_LOCK = threading.Lock()


def start_deep_thread(target: Callable[..., None], arguments: tuple[object, ...], name: str) -> threading.Thread:
    """A thread that may follow grammars by recursion."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    with _STACK_LOCK:  # the size is the process's
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return thread


def be_patient() -> None:
    """Put the thread that calls behind the others, where the system has priorities of threads."""
    lower_thread_priority(PATIENT)
