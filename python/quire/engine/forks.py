"""Make models that were open when a process forked raise in the child, which lacks their threads.

A child has its parent's memory but only the thread that forked.  A request to such a model would hang forever.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from ..errors import RequestError

__all__ = ["forbid_in_children"]

_open: weakref.WeakSet[Any] = weakref.WeakSet()


def forbid_in_children(llm: object) -> None:
    """Make every use of a model (``LLMBase``) raise at once in processes forked from now on."""
    _open.add(llm)


class _Forked:
    """A stand-in for a part of a model whose threads are gone; any use raises."""

    def __init__(self, name: str, **kept: Any) -> None:
        self.__dict__.update(kept, _name=name)

    def __getattr__(self, attribute: str) -> Any:
        raise RequestError(
            f"[engine] {self._name} was opened before this process forked, and its threads stayed behind: open it in "
            "this process, or start processes by spawn (multiprocessing.set_start_method('spawn'); gunicorn without "
            "--preload)"
        )


def _after_fork() -> None:
    """Replace the parts of open models in the child.

    Objects that had threads are never freed, as their destructors would wait for the threads.
    """
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
    """Do nothing: a child has nothing to close."""


def _leak(value: object) -> None:
    """Keep an object until the process ends, even while the interpreter shuts down."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
