"""Which interpreters Quire's native modules run in: the main one of a process, with its global lock.

They keep types and caches for the process, and so does NumPy, so that a sub-interpreter is refused; and they count on
the lock, so that Python without it is refused.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["check_interpreter"]


def check_interpreter() -> None:
    """ImportError, which says what to do, where the interpreter is none that Quire runs in."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "[quire] Python must have its global lock but runs without: start it with PYTHON_GIL=1, or use a build with"
            " the lock"
        )
    if not _is_main():
        raise ImportError(
            "[quire] the interpreter must be the main one of its process but is a sub-interpreter: use threads, which"
            " share a model, or processes"
        )


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # since 3.13, and before
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return _number(module.get_current()) == _number(module.get_main())
    return True


def _number(found: Any) -> int:
    """The interpreter's number; since 3.13 it comes with the way that the interpreter was made."""
    return int(found[0] if isinstance(found, tuple) else found)
