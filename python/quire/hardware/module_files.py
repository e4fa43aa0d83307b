"""Find backend modules: in the package, in the folders of QUIRE_MODULE_PATH, and in wheels of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .kinds import Kind

__all__ = ["ModuleFile", "module_files", "module_folders"]

GROUP = "quire.modules"  # entry point group; each entry maps a module's name to a folder next to the wheel's metadata
PACKAGE, GIVEN = "quire", "QUIRE_MODULE_PATH"
_NAME = re.compile(r"libggml-([a-z0-9]+)[^/]*\.(so|dylib)")


@dataclass(frozen=True)
class ModuleFile:
    """A file that may be a module.

    Attributes:
        module: ``"vulkan"`` for ``libggml-vulkan.so``.
        source: Where it comes from: ``"quire"``, ``"QUIRE_MODULE_PATH"`` or the wheel's name and version.
        refusal: Why this Quire cannot use it, as far as known without opening the file; else "".
        advice: What to do if it cannot be used.
    """

    path: Path
    module: str
    source: str
    refusal: str = ""
    advice: str = ""


def module_folders() -> list[tuple[Path, str]]:
    """Return each folder with its source: the package's own, then those of ``QUIRE_MODULE_PATH``."""
    given = [folder for folder in os.environ.get(GIVEN, "").split(os.pathsep) if folder]
    return [
        (Path(__file__).parent.parent / "lib", PACKAGE),
        *((Path(folder).expanduser().absolute(), GIVEN) for folder in given),
    ]


def module_files(kind: Kind | None = None) -> list[ModuleFile]:
    """Return the modules of a kind, or all except the CPU's, each file once.

    The package's come first, then those of ``QUIRE_MODULE_PATH``, then those of wheels.
    """
    found: dict[Path, ModuleFile] = {}
    for folder, source in module_folders():
        for path, module in _modules_in(folder):
            found.setdefault(path.resolve(), ModuleFile(path, module, source))
    for file in _of_wheels():
        found.setdefault(file.path.resolve(), file)
    return [file for file in found.values() if kind is None or file.module == kind.module]


def _modules_in(folder: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.glob("libggml-*")):
        match = _NAME.fullmatch(path.name)
        # Builds that keep ggml's names have these two libraries beside the modules.
        if match is not None and match[1] not in ("cpu", "base"):
            yield path, match[1]


def _of_wheels() -> Iterator[ModuleFile]:
    """Yield the modules of installed wheels.  Runs none of their code: an entry point's value is a folder's name."""
    from .._native import __version__

    for entry in metadata.entry_points(group=GROUP):
        if entry.dist is None:
            continue
        name, version = entry.dist.name, entry.dist.version
        refusal = f"{name} {version} does not match quire {__version__}" if version != __version__ else ""
        advice = f"pip install --force-reinstall {name}=={__version__}, or pip uninstall {name}"
        folder = Path(str(entry.dist.locate_file(entry.value)))
        modules = list(_modules_in(folder)) if entry.value.isidentifier() else []  # a folder beside the metadata
        if not modules:
            modules, refusal = [(folder, entry.name)], refusal or f"no module of {name} in this folder"
        for path, module in modules:
            yield ModuleFile(path, module, f"{name} {version}", refusal, advice)
