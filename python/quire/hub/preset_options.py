"""Convert a preset's engine options to fields of ``EngineConfig``."""

from __future__ import annotations

from typing import Any

from ..errors import RequestError
from ..params.engine_options import EngineConfig, engine_options
from ..params.engine_rules import (
    Adapters,
    KeyValues,
    NamedPaths,
    Overrides,
    Shares,
    read_adapters,
    read_key_values,
    read_named_paths,
    read_overrides,
    read_shares,
)
from .registry import Preset

__all__ = ["options_of_preset"]


def options_of_preset(preset: Preset) -> dict[str, Any]:
    """Return a preset's options as fields of ``EngineConfig``.  RequestError for unknown names."""
    names = {
        flag.removeprefix("--"): name for name, option in engine_options().items() for flag in option.flags.split()
    }
    names |= {"gpu-layers": "n_gpu_layers", "n-gpu-layers": "n_gpu_layers"}
    found: dict[str, Any] = {}
    for key, value in preset.options.items():
        name = names.get(key.replace("_", "-"))
        if name is None:
            raise RequestError(f"[registry] unknown engine option {key!r:.80} in a preset")
        rule = engine_options()[name].rule
        texts = [value] if isinstance(value, str) else value
        if isinstance(rule, Adapters):
            found[name] = read_adapters(texts)
        elif isinstance(rule, NamedPaths):
            found[name] = read_named_paths(texts)
        elif isinstance(rule, Overrides):
            found[name] = read_overrides(texts)
        elif isinstance(rule, KeyValues):
            found[name] = read_key_values(texts)
        else:
            found[name] = read_shares(texts[0]) if isinstance(rule, Shares) else value
    EngineConfig(**found)
    return found
