"""Low-priority threads with a stack deep enough to follow grammars recursively."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ..system import lower_thread_priority

__all__ = ["STACK_BYTES", "be_patient", "start_deep_thread"]

# llguidance follows chains of rules by recursion, and a grammar may have thousands.
STACK_BYTES = 64 * 1024 * 1024
# Added to niceness: the model's threads come first, but compiling still gets a third of a core that both want.
PATIENT = 3
_STACK_LOCK = threading.Lock()


def start_deep_thread(target: Callable[..., None], arguments: tuple[object, ...], name: str) -> threading.Thread:
    """Start a thread whose stack is deep enough for grammars."""
    thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
    with _STACK_LOCK:  # the stack size is a setting of the process
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    return thread


def be_patient() -> None:
    """Lower the priority of the calling thread, on systems that have thread priorities."""
    lower_thread_priority(PATIENT)
