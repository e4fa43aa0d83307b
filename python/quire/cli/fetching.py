"""Find models by name for commands, and download missing ones with a progress bar."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from ..hub.locate import found_model
from ..hub.names import HubName
from .progress import progress_bar
from .text import note, one_line, size_text

__all__ = ["fetched", "located"]


def located(name: str, *, projector: bool = True) -> Path:
    """Return the file or folder of a model, downloading it, with its encoder (``projector``), if necessary."""
    return found_model(name, partial(fetched, projector=projector))


def fetched(name: HubName, *, projector: bool = True) -> Path:
    """Download a model and report it.  Raises LoadError, CapacityError or UnsupportedError."""
    from ..hub.download import fetch, is_offline, usable_memory_bytes

    if not is_offline():
        note(f"downloading {one_line(str(name))}")
    with progress_bar("downloading") as advance:
        path, choice = fetch(name, usable_memory_bytes(), advance, projector=projector)
    parts = f" in {len(choice.files)} files" if len(choice.files) > 1 else ""
    encoder = choice.projector
    more = "" if encoder is None else f", with {one_line(encoder.path)}: {size_text(encoder.size_bytes)}"
    note(f"{one_line(choice.files[0].path)} downloaded: {size_text(choice.size_bytes)}{parts}{more}")
    return path
