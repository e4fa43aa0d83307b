"""Find models by name for commands, and download missing ones with a progress bar."""

from __future__ import annotations

from pathlib import Path

from ..hub.locate import found_model
from ..hub.names import HubName
from .progress import progress_bar
from .text import note, one_line, size_text

__all__ = ["fetched", "located"]


def located(name: str) -> Path:
    """Return the file or folder of a model, downloading it if necessary."""
    return found_model(name, fetched)


def fetched(name: HubName) -> Path:
    """Download a model and report it.  Raises LoadError, CapacityError or UnsupportedError."""
    from ..hub.download import fetch, is_offline, usable_memory_bytes

    if not is_offline():
        note(f"downloading {one_line(str(name))}")
    with progress_bar("downloading") as advance:
        path, choice = fetch(name, usable_memory_bytes(), advance)
    parts = f" in {len(choice.files)} files" if len(choice.files) > 1 else ""
    note(f"{one_line(choice.files[0].path)} downloaded: {size_text(choice.size_bytes)}{parts}")
    return path
