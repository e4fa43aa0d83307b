"""Models by name, for commands: the file that a name means, fetched with a progress bar where it is not here."""

from __future__ import annotations

from pathlib import Path

from ..hub.locate import locate
from ..hub.names import HubName
from .progress import progress_bar
from .text import note, one_line, size_text

__all__ = ["fetched", "located", "machine_memory_bytes"]


def located(name: str) -> Path:
    """The file or folder of a model."""
    return locate(name, fetched)


def fetched(name: HubName) -> Path:
    """Fetch a model, and say so.  LoadError, CapacityError or UnsupportedError where that is not possible."""
    from ..hub.download import fetch, is_offline

    if not is_offline():
        note(f"fetching {one_line(str(name))}")
    with progress_bar("fetching") as advance:
        path, choice = fetch(name, machine_memory_bytes(), advance)
    parts = f" in {len(choice.files)} files" if len(choice.files) > 1 else ""
    note(f"{one_line(choice.files[0].path)} is here: {size_text(choice.size_bytes)}{parts}")
    return path


def machine_memory_bytes() -> int | None:
    """What the machine has, or this process's container; None where the system does not tell."""
    from ..system import machine_memory_bytes as whole_memory_bytes

    memory = whole_memory_bytes()
    if memory is None:
        return None
    try:
        return min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return memory
