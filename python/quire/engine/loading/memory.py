"""Determine the memory that this process may still use, within the limits of its control groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..._native.core import Device
    from ...params.engine_options import EngineConfig

__all__ = ["available_bytes", "memory_at_hand"]

_NO_LIMIT = 1 << 60


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be used without swapping; None on systems other than Linux.

    Droppable pages of files count as available, as in ``MemAvailable`` of proc(5).  Control groups of version 1 or 2
    may allow less.  ``root``: the folder with ``proc`` and ``sys``.
    """
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith("MemAvailable:")), None)
    if found is None:
        return None
    return min([int(found.split()[1]) * 1024, *_left_in_groups(root)])


def memory_at_hand(config: EngineConfig, device: Device) -> int:
    """Return the bytes that a model may use on a device: those of the options, else those that are left."""
    if config.memory_bytes is not None:
        return config.memory_bytes
    # The CPU device reports the memory of the machine, not what is left of it.
    left = available_bytes() if device.kind == "cpu" else None
    return device.memory_free_bytes if left is None else left


def _left_in_groups(root: Path) -> list[int]:
    """Return the bytes that each control group around this process still allows."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    left: list[int] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            left += _chain(root / "sys/fs/cgroup", path, _version_2)
        elif "memory" in controllers.split(","):
            left += _chain(root / "sys/fs/cgroup/memory", path, _version_1)
    return left


def _chain(top: Path, path: str, read: Callable[[Path], int]) -> list[int]:
    """Read a group and its parents.  In a container, the path may be the host's and its own group is the top."""
    inner = top.joinpath(*[part for part in path.split("/") if part not in ("", "..")])
    folders = [inner, *inner.parents]
    left = []
    for folder in folders[: folders.index(top) + 1]:
        try:
            left.append(read(folder))
        except (OSError, ValueError):  # no such group here, or no limit of its own ("max")
            continue
    return left


def _version_2(folder: Path) -> int:
    limit = int((folder / "memory.max").read_text(encoding="ascii"))
    return _left(limit, folder / "memory.current", folder / "memory.stat", ("active_file", "inactive_file"))


def _version_1(folder: Path) -> int:
    limit = int((folder / "memory.limit_in_bytes").read_text(encoding="ascii"))
    names = ("total_active_file", "total_inactive_file")
    return _left(limit, folder / "memory.usage_in_bytes", folder / "memory.stat", names)


def _left(limit: int, usage: Path, stat: Path, droppable: tuple[str, ...]) -> int:
    if limit >= _NO_LIMIT:
        return _NO_LIMIT
    figures = dict(line.split() for line in stat.read_text(encoding="ascii").splitlines())
    taken = int(usage.read_text(encoding="ascii")) - sum(int(figures.get(name, 0)) for name in droppable)
    return max(0, limit - max(0, taken))
