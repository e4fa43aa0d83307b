"""List the Pythons on this machine that Quire can be built for, oldest first: version and path.

    python ci/find_pythons.py [--ends] [--without X.Y]

Searches PATH (python3.N, python3, python), pyenv and uv for one Python of each minor version.  Versions that cannot
build Quire (no headers, no venv, not CPython, free-threaded) are named on stderr with the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_NAME = re.compile(r"python(3(\.\d+)?)?")
_ROOT = Path(__file__).resolve().parent.parent

# Run by the Python in question, so no newer syntax.
_QUESTIONS = """
import json, os, platform, sys, sysconfig
wants = []
if platform.python_implementation() != "CPython":
    wants.append("not CPython: " + platform.python_implementation())
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    wants.append("free-threaded")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    wants.append("no headers (Python.h)")
try:
    import ensurepip, venv
except ImportError as error:
    wants.append("cannot make virtual environments: " + str(error))
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([list(sys.version_info[:2]), base, wants, sys.version_info[3] == "final"]))
"""


@dataclass(frozen=True)
class Python:
    """A working Python; ``wants`` lists the reasons why Quire cannot be built for it."""

    version: tuple[int, int]
    path: str
    wants: tuple[str, ...]
    is_final: bool


def promised(pyproject: Path = _ROOT / "pyproject.toml") -> list[tuple[int, int]]:
    """Return the versions that wheels are built for, oldest first."""
    line = re.search(r'^build = "(cp3\d+-\*.*)"', pyproject.read_text(encoding="utf-8"), re.MULTILINE)
    if line is None:
        raise SystemExit(
            f'no line build = "cp310-* ..." in {pyproject}: cannot tell for which versions wheels are built'
        )
    return sorted((3, int(minor)) for minor in re.findall(r"cp3(\d+)-", line[1]))


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def candidates(path: str) -> Iterator[str]:
    """Yield paths of possible Pythons, starting with those that a shell would find."""
    for folder in path.split(os.pathsep):
        if folder and Path(folder).is_dir():
            yield from sorted(str(file) for file in Path(folder).iterdir() if _NAME.fullmatch(file.name))
    for version in _output("pyenv", "versions", "--bare").split():
        prefix = _output("pyenv", "prefix", version).strip()
        if prefix:
            yield str(Path(prefix, "bin", "python"))
    listed = _output("uv", "python", "list", "--only-installed", "--output-format", "json")
    yield from (entry["path"] for entry in json.loads(listed or "[]") if entry["path"])


def ask(path: str) -> Python | None:
    """Ask a candidate about itself; None if it does not run."""
    answer = _output(path, "-I", "-c", _QUESTIONS)
    if not answer:
        return None
    version, base, wants, is_final = json.loads(answer.splitlines()[-1])
    return Python((version[0], version[1]), base, tuple(wants), is_final)


def usable(found: Iterable[str], versions: list[tuple[int, int]]) -> list[Python]:
    """Return one Python for each version, oldest first.  Versions older than all of them are ignored silently."""
    chosen: dict[tuple[int, int], Python] = {}
    refused: dict[tuple[int, int], list[str]] = {}
    for path in dict.fromkeys(found):
        python = ask(path)
        if python is None or python.version < versions[0]:
            continue
        wants = list(python.wants)
        if python.version not in versions:
            wants.append("no wheels are built for this version")
        if not python.is_final:
            wants.append("a pre-release")
        if wants:
            refused.setdefault(python.version, []).append(f"{python.path} {'; '.join(wants)}")
        else:
            chosen.setdefault(python.version, python)
    for version in sorted(refused.keys() - chosen.keys()):
        print(f"left out: {', '.join(dict.fromkeys(refused[version]))}", file=sys.stderr)
    return [chosen[version] for version in sorted(chosen)]


def main() -> None:
    """Print the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ends", action="store_true", help="only the oldest and the newest")
    parser.add_argument("--without", metavar="X.Y", help="leave this version out (after --ends)")
    options = parser.parse_args()
    pythons = usable(candidates(os.environ.get("PATH", "")), promised())
    if options.ends:
        pythons = list(dict.fromkeys([*pythons[:1], *pythons[-1:]]))
    for python in pythons:
        version = ".".join(map(str, python.version))
        if version != options.without:
            print(version, python.path)


if __name__ == "__main__":
    main()
