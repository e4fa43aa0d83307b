"""Shared by the integrations: opening a model, sorting options, and reporting missing packages."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeAlias

from ..engine import LLM, AsyncLLM
from ..engine.core import chat_call
from ..errors import RequestError
from ..params.engine_options import EngineConfig

__all__ = ["Model", "absent", "awaited", "check_options", "engine_options", "opened", "single"]

Model: TypeAlias = "LLM | str | os.PathLike[str] | None"
"""An open model, or the GGUF file or checkpoint folder to open; None is the small model in the package."""

_ENGINE = frozenset(entry.name for entry in fields(EngineConfig))


def absent(module: str, package: str, error: ImportError) -> ImportError:
    """Return the error for a framework that cannot be imported; it names the package to install."""
    return ImportError(f"[integrations] quire.integrations.{module} needs {package}: pip install {package} ({error})")


def engine_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split options into those of ``quire.LLM`` and others."""
    ours = {name: value for name, value in options.items() if name in _ENGINE}
    return ours, {name: value for name, value in options.items() if name not in _ENGINE}


def opened(model: Model, engine: Mapping[str, Any]) -> LLM:
    """Return the model, opened with options of ``quire.LLM`` if needed.  TypeError for options of an open one."""
    if not isinstance(model, LLM):
        return LLM(model, **engine)
    if engine:
        raise TypeError(f"[integrations] the model is already open: leave out {', '.join(engine)}")
    return model


def awaited(llm: LLM) -> AsyncLLM:
    """Return the model for event loops."""
    from ..engine.async_llm import AsyncLLM

    return AsyncLLM.sharing(llm)


def check_options(options: Mapping[str, Any]) -> None:
    """Check keywords of ``LLM.chat`` before it is called.  TypeError for an unknown one, RequestError for its value."""
    request, _ = chat_call(LLM.chat, options)  # type: ignore[arg-type]
    request.keywords.sampling_params(None, {})


def single(place: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call that can give one answer only.  RequestError if they ask for several."""
    if options.get("n", 1) != 1:
        raise RequestError(f"[{place}] n={options['n']!r:.80} is not supported here: only one answer")
    return options
