"""The check for import cycles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "ci" / "check_cycles.py"

IMPORTS = {
    "plain": "from .second import thing\n",
    "of a module": "from . import second\n",
    "absolute": "import package.second\n",
    "for types": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package.second import Thing\n",
    "in a function": "def late():\n    from .second import thing\n",
}


def checked(folder: Path, files: dict[str, str]) -> tuple[int, str]:
    """Return the check's exit code and output for a package of these files."""
    package = folder / "package"
    for name, text in {"__init__.py": "", **files}.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, str(CHECK), str(folder)], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize("how", IMPORTS)
def test_every_kind_of_import_cycle_is_found(tmp_path: Path, how: str) -> None:
    files = {"first.py": IMPORTS[how], "second.py": "from .third import thing\n", "third.py": ""}
    assert checked(tmp_path, files) == (0, "")
    code, text = checked(tmp_path, {"third.py": "from . import first\n"})
    assert code == 1
    assert text.splitlines() == [
        "import cycle:",
        "  package.first imports package.second",
        "  package.second imports package.third",
        "  package.third imports package.first",
    ]


def test_a_circle_through_a_package_and_its_parent_is_found(tmp_path: Path) -> None:
    files = {"inner/__init__.py": "from ..outer import thing\n", "outer.py": "from .inner import thing\n"}
    code, text = checked(tmp_path, files)
    assert code == 1
    assert "package.inner imports package.outer" in text


def test_two_circles_are_both_named(tmp_path: Path) -> None:
    files = {f"{name}.py": f"from .{other} import x\n" for name, other in ("ab", "ba", "cd", "dc")}
    code, text = checked(tmp_path, files)
    assert code == 1
    assert text.count("import cycle:") == 2
