"""Resolve names such as ``qwen3:0.6b`` to model files and the options of their presets."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import LoadError
from ...params.engine_options import EngineConfig

if TYPE_CHECKING:
    from ...hub.names import HubName

__all__ = ["NamedModel", "model_path", "named_model"]

_LOG = logging.getLogger("quire")


@dataclass(frozen=True)
class NamedModel:
    """The model and settings that a name stands for.

    ``options``: defaults for fields of ``EngineConfig``.  ``path`` None: the package's model.
    """

    path: Path | None
    options: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    system: str | None = None
    template: str | None = None

    def completed(self, config: EngineConfig) -> EngineConfig:
        """Return a caller's options, with the preset's for those that have their default."""
        usual = {entry.name: entry.default for entry in fields(EngineConfig)}
        own = {name: value for name, value in self.options.items() if getattr(config, name) == usual[name]}
        return replace(config, **own) if own else config


def named_model(model: str | os.PathLike[str] | None, call: str = "LLM", *, projector: bool = True) -> NamedModel:
    """Return the model of a name or a path.  Models of a hub are downloaded if needed, with a progress bar.

    A path object is never a name.  LoadError, with suggestions, if it is neither.  ``call``: the caller's name for
    TypeErrors.  ``projector``: download the encoder of images, too.
    """
    if model is None:
        return NamedModel(None)
    if not isinstance(model, str | os.PathLike):
        raise TypeError(
            f"{call}(): model is {model!r:.80}, give a name, a path, or None for the small model in the package"
        )
    if not isinstance(model, str):
        return NamedModel(Path(model))
    if not model.strip():
        raise LoadError("[loader] model is an empty name: give a name or a path, or None for the model in the package")
    from ...hub.locate import preset_of
    from ...hub.preset_options import options_of_preset

    preset = preset_of(model)
    if preset is None:
        return NamedModel(model_path(model, projector=projector))
    return NamedModel(
        model_path(preset.model, projector=projector),
        options_of_preset(preset),
        preset.sampling,
        preset.system,
        preset.template,
    )


def model_path(name: str, *, projector: bool = False) -> Path:
    """Return the file or folder of a name or a path, downloaded if needed."""
    from ...hub.locate import found_model
    from ...hub.names import is_adapter_folder

    path = found_model(name, partial(_fetched, projector=projector))
    if path.is_dir() and is_adapter_folder(path):
        raise LoadError(
            f"[loader] folder {path} is a LoRA adapter: open its base model with adapters=[...] (--lora on the command "
            "line)"
        )
    return path


def _fetched(name: HubName, *, projector: bool) -> Path:
    from ...hub.download import fetch, is_offline, usable_memory_bytes

    if not is_offline():
        _LOG.warning("[hub] downloading %s", name)
    return fetch(name, usable_memory_bytes(), shows_bars=True, projector=projector)[0]
