"""What sentence-transformers says of a checkpoint: which vectors are an embedding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..checkpoint import read_json
from ..errors import LoadError, UnsupportedError

__all__ = ["pooling_type"]

# Values of GGUF's key by the modes of 1_Pooling/config.json.
_MODES = {"mean": 1, "mean_tokens": 1, "cls": 2, "cls_token": 2, "lasttoken": 3}
# Modules that leave a vector's direction as it is: embeddings are brought to length 1 on demand.
_WITHOUT_EFFECT = ("Normalize",)


def pooling_type(folder: Path) -> int | None:
    """GGUF's ``pooling_type`` from ``modules.json`` and the pooling's own file; None where there are no modules.

    LoadError for files that are malformed, UnsupportedError for a pooling or a module that is not known.
    """
    pooling = None
    for kind, path in _modules(folder):
        if kind == "Pooling":
            pooling = _mode(read_json(folder / path / "config.json"))
        elif kind != "Transformer" and kind not in _WITHOUT_EFFECT:
            raise UnsupportedError(
                f"[convert] modules.json must have Transformer, Pooling and Normalize but has '{kind}'"
            )
    return pooling


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The last name of each module's class, and its folder."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[convert] '{path}' must be JSON: {error}") from None
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise LoadError(f"[convert] '{path}' must hold a list of modules")
    found = [(str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))) for module in modules]
    for _, below in found:
        if Path(below).is_absolute() or ".." in Path(below).parts:
            raise LoadError(f"[convert] '{path}' must name folders below its own but names {below!r:.60}")
    return found


def _mode(config: Mapping[str, object]) -> int:
    wanted = [
        name.removeprefix("pooling_mode_") for name, on in config.items() if name.startswith("pooling_mode_") and on
    ]
    mode = config.get("pooling_mode")
    if isinstance(mode, str):
        wanted = [mode]
    if len(wanted) != 1 or wanted[0] not in _MODES:
        raise UnsupportedError(f"[convert] the pooling must be one of mean, cls, lasttoken but is {wanted}")
    return _MODES[wanted[0]]
