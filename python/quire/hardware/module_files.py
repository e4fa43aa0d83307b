"""Where backend modules lie: in the package, in folders that users name, and in wheels of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from .kinds import Kind

__all__ = ["ModuleFile", "module_files", "module_folders"]

GROUP = "quire.modules"  # of entry points: the module's name, and the folder beside the wheel's metadata
PACKAGE, GIVEN = "quire", "QUIRE_MODULE_PATH"
_NAME = re.compile(r"libggml-([a-z0-9]+)[^/]*\.(so|dylib)")


@dataclass(frozen=True)
class ModuleFile:
    """A file that may be a module.

    ``module``: ``"vulkan"`` of ``libggml-vulkan.so``.  ``source``: what brought it.  ``refusal``: why it is nothing for
    this Quire, before anybody looks into it.  ``advice``: what to do when it cannot be used.
    """

    path: Path
    module: str
    source: str
    refusal: str = ""
    advice: str = ""


def module_folders() -> list[tuple[Path, str]]:
    """Folders and whose they are: beside ggml in the package, and those of ``QUIRE_MODULE_PATH``."""
    given = [folder for folder in os.environ.get(GIVEN, "").split(os.pathsep) if folder]
    return [
        (Path(__file__).parent.parent / "lib", PACKAGE),
        *((Path(folder).expanduser().absolute(), GIVEN) for folder in given),
    ]


def module_files(kind: Kind | None = None) -> list[ModuleFile]:
    """The modules of a kind, or all but the CPU's; each file once.

    The package's come first, then those that the user names, then those of wheels.
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
        # Those two are what modules are linked to, of builds that do not rename them.
        if match is not None and match[1] not in ("cpu", "base"):
            yield path, match[1]


def _of_wheels() -> Iterator[ModuleFile]:
    """What installed wheels say that they have.  None of their code runs: an entry point's value is a folder's name."""
    from .._native import __version__

    for entry in metadata.entry_points(group=GROUP):
        if entry.dist is None:
            continue
        name, version = entry.dist.name, entry.dist.version
        refusal = f"is of {name} {version}, and this is quire {__version__}" if version != __version__ else ""
        advice = f"pip install --force-reinstall {name}=={__version__}, or pip uninstall {name}"
        folder = Path(str(entry.dist.locate_file(entry.value)))
        modules = list(_modules_in(folder)) if entry.value.isidentifier() else []  # a folder beside the metadata
        if not modules:
            modules, refusal = [(folder, entry.name)], refusal or f"must be a folder with a module of {name} but is not"
        for path, module in modules:
            yield ModuleFile(path, module, f"{name} {version}", refusal, advice)
