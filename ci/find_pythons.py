"""Print a line for each Python of this machine that Quire can be built for, the oldest first: version and path.

    python ci/find_pythons.py [--ends] [--without X.Y]

Pythons are looked for in PATH (python3.N, python3, python), in pyenv and in uv, one for each minor version.  A
version that cannot build Quire (no headers, no venv, not CPython, free-threaded) is named on stderr with the reason.
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

# Run by the Python in question, which may be too old for any newer syntax.
_QUESTIONS = """
import json, os, platform, sys, sysconfig
wants = []
if platform.python_implementation() != "CPython":
    wants.append("must be CPython but is " + platform.python_implementation())
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    wants.append("must have the GIL but is free-threaded")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    wants.append("must have its headers but has no Python.h")
try:
    import ensurepip, venv
except ImportError as error:
    wants.append("must make virtual environments but " + str(error))
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps([list(sys.version_info[:2]), base, wants, sys.version_info[3] == "final"]))
"""


@dataclass(frozen=True)
class Python:
    """A Python that runs; ``wants``: why Quire cannot be built for it."""

    version: tuple[int, int]
    path: str
    wants: tuple[str, ...]
    is_final: bool


def promised(pyproject: Path = _ROOT / "pyproject.toml") -> list[tuple[int, int]]:
    """The versions that wheels are built for, the oldest first."""
    line = re.search(r'^build = "(cp3\d+-\*.*)"', pyproject.read_text(encoding="utf-8"), re.MULTILINE)
    if line is None:
        raise SystemExit(
            f'{pyproject} must say for which versions wheels are built (build = "cp310-* ...") but does not'
        )
    return sorted((3, int(minor)) for minor in re.findall(r"cp3(\d+)-", line[1]))


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout


def candidates(path: str) -> Iterator[str]:
    """Paths that may be Pythons, those that a shell would find first."""
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
    """What a candidate says of itself; None where it does not run."""
    answer = _output(path, "-I", "-c", _QUESTIONS)
    if not answer:
        return None
    version, base, wants, is_final = json.loads(answer.splitlines()[-1])
    return Python((version[0], version[1]), base, tuple(wants), is_final)


def usable(found: Iterable[str], versions: list[tuple[int, int]]) -> list[Python]:
    """One Python for each of the versions, the oldest first; what is older than all of them is not worth a word."""
    chosen: dict[tuple[int, int], Python] = {}
    refused: dict[tuple[int, int], list[str]] = {}
    for path in dict.fromkeys(found):
        python = ask(path)
        if python is None or python.version < versions[0]:
            continue
        wants = list(python.wants)
        if python.version not in versions:
            wants.append("must be of a version that wheels are built for but is not")
        if not python.is_final:
            wants.append("must be a release but is not")
        if wants:
            refused.setdefault(python.version, []).append(f"{python.path} {'; '.join(wants)}")
        else:
            chosen.setdefault(python.version, python)
    for version in sorted(refused.keys() - chosen.keys()):
        print(f"left out: {', '.join(dict.fromkeys(refused[version]))}", file=sys.stderr)
    return [chosen[version] for version in sorted(chosen)]


def main() -> None:
    """See the module."""
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
