"""Models that were open when a process forked: in the child their threads are gone, so that they answer nothing.

A child has the memory of its parent and only the thread that forked.  Whoever asked such a model would wait for ever.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from ..errors import RequestError

__all__ = ["forbid_in_children"]

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def forbid_in_children(llm: object) -> None:
    """In processes that fork from now on, have every use of a model (``LLMBase``) raise at once."""
    _open.add(llm)


class _Forked:
    """In the place of a part of a model that has no threads any more: any use raises."""

    def __init__(self, name: str, **kept: Any) -> None:
        self.__dict__.update(kept, _name=name)

    def __getattr__(self, attribute: str) -> Any:
        raise RequestError(
            f"[engine] {self._name} was opened before this process forked, and its threads stayed behind: open it in "
            "this process, or start processes by spawn (multiprocessing.set_start_method('spawn'); gunicorn without "
            "--preload)"
        )


def _after_fork() -> None:
    """Runs in the child.  What had threads is kept for ever: giving it back would wait for them."""
    for llm in list(_open):
        parts = llm.__dict__
        _leak(parts["_engine"])
        llm._close_engine.detach()
        name = f"the model {llm.model_name!r}"
        tokenizer = parts["_prompts"]._tokenizer  # it has no threads
        _leak(parts["_prompts"])
        parts["_engine"] = _Forked(name)
        parts["_prompts"] = _Forked(name, tokenizer=tokenizer)
        parts["_texts"] = _Forked(name)
        parts["_close_engine"] = _nothing
    _open.clear()


def _nothing() -> None:
    """There is nothing to close in a child."""


def _leak(value: object) -> None:
    """Keep an object until the process ends, the end of the interpreter included."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
