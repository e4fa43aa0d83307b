"""Check that Quire runs in the main interpreter of a process, with the GIL.

The native modules, like NumPy, keep types and caches for the process, so sub-interpreters are rejected.  They also rely
on the GIL.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

__all__ = ["check_interpreter"]


def check_interpreter() -> None:
    """Raise an ImportError that says what to do if Quire cannot run in this interpreter."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "[quire] Python runs without the GIL, which Quire needs: set PYTHON_GIL=1, or use a build with the GIL"
        )
    if not _is_main():
        raise ImportError("[quire] sub-interpreters are not supported: use threads, which share a model, or processes")


def _is_main() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # since 3.13, and before
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        return _number(module.get_current()) == _number(module.get_main())
    return True


def _number(found: Any) -> int:
    """Return the interpreter's number; since 3.13 it comes in a tuple."""
    return int(found[0] if isinstance(found, tuple) else found)
