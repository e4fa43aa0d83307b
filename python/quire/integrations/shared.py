"""What the integrations share: how a model is opened, which options there are, which package is absent."""

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
"""A model that is open, or where one lies: a GGUF file or a checkpoint folder; None is the small one in the package."""

_ENGINE = frozenset(entry.name for entry in fields(EngineConfig))


def absent(module: str, package: str, error: ImportError) -> ImportError:
    """What to raise where a framework cannot be imported: it names the package to install."""
    return ImportError(
        f"[integrations] quire.integrations.{module} must have {package} (pip install {package}) but {error}"
    )


def engine_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of ``quire.LLM``, and the others."""
    ours = {name: value for name, value in options.items() if name in _ENGINE}
    return ours, {name: value for name, value in options.items() if name not in _ENGINE}


def opened(model: Model, engine: Mapping[str, Any]) -> LLM:
    """The model, opened with options of ``quire.LLM`` unless it is open.  TypeError for options of an open one."""
    if not isinstance(model, LLM):
        return LLM(model, **engine)
    if engine:
        raise TypeError(f"[integrations] options of a model that is open must be left out but are {', '.join(engine)}")
    return model


def awaited(llm: LLM) -> AsyncLLM:
    """The same model for event loops."""
    from ..engine.async_llm import AsyncLLM

    return AsyncLLM.sharing(llm)


def check_options(options: Mapping[str, Any]) -> None:
    """Check keywords of ``LLM.chat`` before it is called.  TypeError for an unknown one, RequestError for its value."""
    request, _ = chat_call(LLM.chat, options)  # type: ignore[arg-type]
    request.keywords.sampling_params(None, {})


def single(place: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, where they ask for one answer.  RequestError otherwise: what takes them has room for one."""
    if options.get("n", 1) != 1:
        raise RequestError(f"[{place}] n must be 1 here but is {options['n']!r:.80}")
    return options
