"""Results of ``quire devices --check``, stored by device, driver and version."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..files.whole_file import WholeFile
from ..system import loaded_files

if TYPE_CHECKING:
    from .._native.core import Device

__all__ = ["Verdict", "any_passed", "identity_of", "keep_verdict", "verdict_of"]

# Driver libraries, loaded along with a module.
_DRIVER = re.compile(r"/lib(cuda|nvidia|vulkan_|amdhip|hsa|ze_|igc|OpenCL|GLX_nvidia)[^/]*\.so")


@dataclass(frozen=True)
class Verdict:
    """The result of a check; ``reason`` says what disagreed, or how much was compared if all agreed."""

    passed: bool
    reason: str
    device: str
    description: str


def verdicts_folder() -> Path:
    """Return ``quire/devices`` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache") / "quire" / "devices"


def identity_of(device: Device) -> str:
    """Return a hash of the device, its driver's libraries, and the versions of Quire and ggml."""
    from .._native import __version__
    from .._native.core import module_version

    parts = [device.backend, device.description, str(device.memory_total_bytes), __version__, module_version()]
    return hashlib.blake2b("\n".join([*parts, *_drivers()]).encode(), digest_size=16).hexdigest()


def _drivers() -> list[str]:
    """Return path, size and time of each driver library in this process; most paths include a version."""
    found = []
    for path in filter(_DRIVER.search, loaded_files()):
        try:
            state = os.stat(path)
        except OSError:
            continue
        found.append(f"{path} {state.st_size} {state.st_mtime_ns}")
    return found


def verdict_of(device: Device) -> Verdict | None:
    """Return the result of the last check of this device, None if it was never checked."""
    if device.kind == "cpu":
        return None
    try:
        fields = json.loads((verdicts_folder() / f"{identity_of(device)}.json").read_text(encoding="utf-8"))
        verdict = Verdict(**fields)
    except (OSError, ValueError, TypeError):
        return None
    return verdict if isinstance(verdict.passed, bool) else None


def any_passed() -> bool:
    """Return True if any device has passed a check, with any version; needs no module."""
    try:
        found = [path.read_text(encoding="utf-8") for path in verdicts_folder().glob("*.json")]
    except (OSError, ValueError):
        return False
    return any('"passed": true' in text for text in found)


def keep_verdict(device: Device, verdict: Verdict) -> Path:
    """Store a result atomically; return the file's path."""
    folder = verdicts_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{identity_of(device)}.json"
    with WholeFile(path, "devices") as file:
        file.write(json.dumps(asdict(verdict)).encode())
    return path
