"""The recipes of docs/: each runs without warnings, and all of them pass a strict type checker."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from served import environment

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "recipes"
RECIPES = sorted(FOLDER.glob("*.py")) if FOLDER.is_dir() else []
# Packages that recipes need besides Quire; without them, recipes are skipped by name (ci/clients installs them).
NEEDED = {"agent.py": ("langchain_core", "langgraph", "langgraph.checkpoint.sqlite")}
pytestmark = pytest.mark.python_only
# All recipes run in one process.  Two lines enclose the output of each.
PROGRAM = """
import runpy, sys
for path in list(sys.argv[1:]):
    print("begin", path)
    sys.argv = [path]
    runpy.run_path(path, run_name="__main__")
    print("end", path)
"""


def test_there_are_twelve() -> None:
    if not (ROOT / "docs").is_dir():
        pytest.skip("needs a checkout")
    assert len(RECIPES) >= 12
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    assert [path.name for path in RECIPES if f"recipes/{path.name}" not in page] == []


def is_absent(module: str) -> bool:
    parts = module.split(".")
    return any(importlib.util.find_spec(".".join(parts[:n])) is None for n in range(1, len(parts) + 1))


def run_all(recipes: list[Path], folder: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *map(str, recipes)]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    for path in recipes:
        shown = done.stdout.split(f"begin {path}\n")[1].split(f"end {path}\n")[0]
        assert shown.strip(), path


def test_every_recipe_runs(tmp_path: Path) -> None:
    if not RECIPES:
        pytest.skip("needs a checkout")
    run_all([path for path in RECIPES if path.name not in NEEDED], tmp_path)


@pytest.mark.parametrize("name", NEEDED)
def test_every_recipe_of_a_framework_runs(name: str, tmp_path: Path) -> None:
    if not RECIPES:
        pytest.skip("needs a checkout")
    absent = [module for module in NEEDED[name] if is_absent(module)]
    if absent:
        pytest.skip(f"{name} needs {', '.join(absent)}")
    run_all([FOLDER / name], tmp_path)


def test_every_recipe_is_typed() -> None:
    pytest.importorskip("mypy", reason="needs mypy")
    if not RECIPES:
        pytest.skip("needs a checkout")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")]
    done = subprocess.run([*command, *map(str, RECIPES)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
