"""Names of models in messages."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["shown_name"]

# A folder is read through a temporary file of this name, which means nothing to the user.
_MADE = re.compile(r"\.(.+)\.gguf\.[^.]+\.part")


def shown_name(path: Path) -> str:
    """Return the name of a model's file, or of the folder that it stands for."""
    found = _MADE.fullmatch(path.name)
    return path.name if found is None else found[1]
