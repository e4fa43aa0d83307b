"""``ci/find_pythons.py`` finds a machine's Pythons wherever they are.  Oracle: machines made of shell scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "ci" / "find_pythons.py"
if not SCRIPT.exists():
    pytest.skip("the tests run without the repository", allow_module_level=True)


def script(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def python(path: Path, minor: int, *wants: str, final: bool = True, base: str | None = None) -> str:
    """Write a program that answers the questions as a Python would."""
    return script(path, f"echo '{json.dumps([[3, minor], base or str(path), wants, final])}'")


def find(folder: Path, *arguments: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env={**os.environ, "PATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines(), done.stderr


def test_the_path_pyenv_and_uv_are_searched(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    of_path = python(bin_ / "python3.12", 12)
    python(bin_ / "python3", 12, base=of_path)
    python(bin_ / "python3.12-config", 30)
    script(bin_ / "python3.11", "echo 'pyenv: python3.11: command not found' >&2; exit 127")
    of_pyenv = python(tmp_path / "versions" / "3.10.13" / "bin" / "python", 10)
    python(tmp_path / "versions" / "3.9.18" / "bin" / "python", 9)
    script(
        bin_ / "pyenv",
        f'case $1 in versions) echo 3.9.18; echo 3.10.13; echo gone ;;\nprefix) [ "$2" != gone ] && echo {tmp_path}/versions/$2 ;; esac',
    )
    of_uv = python(tmp_path / "uv" / "python3.14", 14)
    script(bin_ / "uv", f"""echo '[{{"path": null}}, {{"path": "{of_uv}"}}]'""")

    found, said = find(bin_)
    assert found == [f"3.10 {of_pyenv}", f"3.12 {of_path}", f"3.14 {of_uv}"]
    assert said == ""
    assert find(bin_, "--ends")[0] == [f"3.10 {of_pyenv}", f"3.14 {of_uv}"]
    assert find(bin_, "--ends", "--without", "3.14")[0] == [f"3.10 {of_pyenv}"]
    assert find(bin_, "--without", "3.12")[0] == [f"3.10 {of_pyenv}", f"3.14 {of_uv}"]


def test_a_version_that_cannot_build_is_named_once_and_only_if_no_other_can(tmp_path: Path) -> None:
    poor = python(tmp_path / "python3.11", 11, "has no Python.h")
    python(tmp_path / "python3", 11, "has no Python.h", base=poor)
    early = python(tmp_path / "python3.14", 14, final=False)
    late = python(tmp_path / "python3.99", 99)
    found, said = find(tmp_path)
    assert found == []
    assert said.splitlines() == [
        f"left out: {poor} has no Python.h",
        f"left out: {early} a pre-release",
        f"left out: {late} no wheels are built for this version",
    ]
    rich = python(tmp_path / "python", 11)
    found, said = find(tmp_path)
    assert found == [f"3.11 {rich}"]
    assert "3.11" not in said


def test_this_python_answers_the_questions(tmp_path: Path) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    (tmp_path / "python").symlink_to(sys.executable)
    found, said = find(tmp_path)
    assert [line.split()[0] for line in found] == [version] or said.startswith("left out: ")
