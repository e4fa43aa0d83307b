"""The worker's part of loading and listing LoRA adapters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import QuireError

if TYPE_CHECKING:
    from ...engine.llm_base import LLMBase
    from .protocol import Open

__all__ = ["adapter_verbs", "adapters_of", "restore_adapters", "with_kept_adapters"]


def adapters_of(model: LLMBase) -> dict[str, Any]:
    """Return a model's adapters as fields of ``ModelInfo``."""
    found = model.adapters
    if found or model.takes_adapters:
        shown = [(Path(each.path).name, each.scale) for each in found]
        return {"adapters": shown, "loras": [each.name for each in found]}
    return {"adapters": [(Path(path).name, scale) for path, scale in model.config.adapters], "loras": []}


def adapter_verbs(model: LLMBase) -> Mapping[str, Callable[..., object]]:
    """Return the answers to questions that change adapters.

    Each has fields of ``ModelInfo`` (``info``), and ``Open.adapters`` to load them again (``kept``).
    """

    def answer() -> dict[str, Any]:
        kept = [(each.name, each.path, each.scale) for each in model.adapters]
        return {"info": adapters_of(model), "kept": kept}

    def load(path: str, name: str, replace: bool) -> object:
        model.load_adapter(path, name, replace=replace)
        return answer()

    def unload(name: str) -> object:
        model.unload_adapter(name)
        return answer()

    def scale(scales: dict[str, float]) -> object:
        model.scale_adapters(scales)
        return answer()

    return {"load_adapter": load, "unload_adapter": unload, "scale_adapters": scale}


def with_kept_adapters(opened: Open) -> dict[str, Any]:
    """Return the options of a model without the adapters that ``restore_adapters`` will load."""
    if opened.adapters is None:
        return opened.config
    return {name: value for name, value in opened.config.items() if name not in ("adapters", "lora_modules")}


def restore_adapters(model: LLMBase, opened: Open) -> None:
    """Load the adapters that clients have left; those whose files are gone are named on standard error."""
    for name, path, scale in opened.adapters or ():
        try:
            model.load_adapter(path, name, scale=scale)
        except QuireError as error:
            sys.stderr.write(f"quire: cannot load adapter {name!r:.80} again: {error}\n")
