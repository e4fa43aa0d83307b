"""Copy the package that this Python imports, with its entry points, into a folder for another Python's PYTHONPATH.

    python ci/lend_package.py FOLDER

The folder contains nothing else, so the other Python keeps its own packages.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import quire

ROOT = Path(__file__).resolve().parent.parent


def lend(folder: Path) -> None:
    """Write the package and its metadata into a folder."""
    assert quire.__file__ is not None
    source = Path(quire.__file__).resolve().parent
    shutil.copytree(source, folder / "quire", ignore=shutil.ignore_patterns("__pycache__"))
    about = folder / "quire_llm-0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: quire-llm\nVersion: 0\n", encoding="utf-8")
    about.joinpath("entry_points.txt").write_text(entry_points(), encoding="utf-8")


def entry_points() -> str:
    """Return the entry points of the installed package, or those of pyproject.toml if it is not installed."""
    try:
        found = distribution("quire-llm").read_text("entry_points.txt")
    except PackageNotFoundError:
        found = None
    if found is not None:
        return found
    lines, shown = [], False
    for line in (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            shown = line.startswith("[project.entry-points.")
            lines += [line.replace("project.entry-points.", "")] if shown else []
        elif shown:
            lines.append(line.replace('"', ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    lend(Path(sys.argv[1]))
