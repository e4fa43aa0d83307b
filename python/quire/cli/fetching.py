"""Models by name, for commands: the file that a name means, fetched with a progress bar where it is not here."""

from __future__ import annotations

from pathlib import Path

from ..hub.locate import found_model
from ..hub.names import HubName
from .progress import progress_bar
from .text import note, one_line, size_text

__all__ = ["fetched", "located"]


def located(name: str) -> Path:
    """The file or folder of a model."""
    return found_model(name, fetched)


def fetched(name: HubName) -> Path:
    """Fetch a model, and say so.  LoadError, CapacityError or UnsupportedError where that is not possible."""
    from ..hub.download import fetch, is_offline, usable_memory_bytes

    if not is_offline():
        note(f"downloading {one_line(str(name))}")
    with progress_bar("downloading") as advance:
        path, choice = fetch(name, usable_memory_bytes(), advance)
    parts = f" in {len(choice.files)} files" if len(choice.files) > 1 else ""
    note(f"{one_line(choice.files[0].path)} is here: {size_text(choice.size_bytes)}{parts}")
    return path
