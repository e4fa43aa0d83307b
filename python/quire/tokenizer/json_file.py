"""JSON files of tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quire.errors import LoadError

__all__ = ["read_object"]


def read_object(path: Path) -> dict[str, Any]:
    """Return the object that a file holds.  LoadError if it cannot be read or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LoadError(f"[tokenizer] cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise LoadError(f"[tokenizer] {path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise LoadError(f"[tokenizer] {path} holds {type(value).__name__}: expected an object")
    return value
