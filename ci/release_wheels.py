"""Build Linux wheels from a source archive, check and try them, and print a table: see ci/release.

Objects that do not depend on Python are compiled once per machine (SKBUILD_BUILD_DIR); other Pythons only compile the
bindings.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from find_pythons import Python, candidates, promised, usable

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "release"
DIST = ROOT / "dist"
TOOLS = Path(sys.executable).parent
OTHER_BYTES = "OTHER BYTES the second time"
GLIBC = "2.28"  # manylinux_2_28: Debian 10, RHEL 8
# Tests of instruction sets, of Python's C API, and of library locations.  All operations are tested once per machine,
# because all Pythons share the same objects.  Under emulation, at a tenth of the speed and without child processes,
# only graphs and tokenizers are tested.  Wheels lack quire._native.testing, so tests of single kernels are skipped.
ALL_OPERATIONS = "tests/graph"
TESTS = {
    True: [
        "tests/kernels/test_isa.py",
        "tests/graph/test_standalone_operations.py",
        "tests/graph/test_graph.py",
        "tests/tokenizer/test_tokenizer.py",
        "tests/engine/test_llm.py",
        "tests/files/test_gguf_files.py",
        "tests/repo_checks/test_shipped_libraries.py",
        "-m",
        "not slow and not fuzz",
    ],
    False: [
        "tests/kernels/test_isa.py",
        "tests/graph/test_standalone_operations.py",
        "tests/graph/test_graph.py",
        "tests/tokenizer/test_tokenizer.py",
        "-m",
        "not slow and not fuzz",
    ],
}

# Zig has its own names for ARM's architectures and their extensions.
ARM_NAMES = r"""for argument; do
  shift
  case $argument in
  -march=armv*)
    argument=$(echo "$argument" | sed 's/-march=armv\([0-9]*\)\.\([0-9]*\)-a/-mcpu=generic+v\1_\2a/
      s/-march=armv8-a/-mcpu=generic/
      s/+fp16/+fullfp16/
      s/+no\([a-z0-9]*\)/-\1/')
    ;;
  esac
  set -- "$@" "$argument"
done
"""


def text_of(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


@dataclass
class Row:
    """A row of the table."""

    wheel: str
    size_bytes: int
    build_s: float
    tried: str = "-"
    tests: str = "-"
    note: str = ""
    failed: bool = False


class Failed(Exception):
    """A command failed; the message is its output."""


@dataclass(frozen=True)
class Machine:
    """A machine that wheels are built for."""

    name: str

    @property
    def is_here(self) -> bool:
        return self.name == platform.machine()

    @property
    def folder(self) -> Path:
        return WORK / self.name

    def compilers(self) -> Path:
        """Create a folder with cc and c++ for this machine and the oldest C library."""
        folder = self.folder / "bin"
        folder.mkdir(parents=True, exist_ok=True)
        zig = next(TOOLS.parent.glob("lib/python3*/site-packages/ziglang/zig"))
        for name in ("cc", "c++"):
            # By default zig adds checks for undefined behaviour, and debugging information.
            options = f"-target {self.name}-linux-gnu.{GLIBC} -fno-sanitize=undefined -g0"
            renamed = ARM_NAMES if self.name == "aarch64" else ""
            text = f'#!/bin/sh\n{renamed}exec {zig} {name} {options} "$@"\n'
            path = folder / name
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
                path.chmod(0o755)
        return folder

    def settings(self) -> list[str]:
        """CMake options."""
        settings = {
            "QUIRE_PORTABLE": "ON",
            "QUIRE_TESTING": "OFF",
            "CMAKE_MODULE_LINKER_FLAGS": "-s",
            "CMAKE_SHARED_LINKER_FLAGS": "-s",
        }
        if not self.is_here:
            settings |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": self.name}
        options = [f"--config-settings=cmake.define.{key}={value}" for key, value in settings.items()]
        # The linker already omits symbols, and this machine's strip cannot process other machines' files.
        return [*options, "--config-settings=install.strip=false"]


def run(*command: str | Path, log: Path | None = None, **environment: str) -> None:
    """Run a command that must succeed, with its output in a file that is shown on failure."""
    log = log or WORK / "log"
    with log.open("w") as file:
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, **environment},
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise Failed(f"{log.read_text()[-6000:]}\nfailed: {' '.join(map(str, command))}")


def bring_up_to_date(folder: Path, wanted: Path) -> None:
    """Copy the files of a folder to another one.

    Unchanged files keep their time, which decides if objects are compiled again; all times in archives are the same.
    """
    names = {path.relative_to(wanted) for path in wanted.rglob("*") if path.is_file()}
    for path in list(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder) not in names:
            path.unlink()
    for name in names:
        target, source = folder / name, wanted / name
        if not target.is_file() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)


def source_archive(epoch: str) -> tuple[Path, str]:
    """Create and unpack the source archive; return the folder and the archive's name."""
    fresh, unpacked = WORK / "sdist", WORK / "source"
    shutil.rmtree(fresh, ignore_errors=True)
    run(TOOLS / "python", "-m", "build", "--sdist", "--outdir", fresh, ROOT, SOURCE_DATE_EPOCH=epoch)
    archive = next(fresh.glob("*.tar.gz"))
    with tarfile.open(archive) as tar:
        tar.extractall(fresh, filter="data")
    bring_up_to_date(unpacked, archive.with_name(archive.name.removesuffix(".tar.gz")))
    DIST.mkdir(exist_ok=True)
    shutil.copy2(archive, DIST)
    return unpacked, archive.name


def environment_of(python: Python) -> Path:
    """Create a virtual environment of a Python with the build requirements."""
    folder = WORK / "pythons" / text_of(python.version)
    if not (folder / "ready").exists():
        run(python.path, "-m", "venv", folder)
        run(
            folder / "bin" / "pip",
            "install",
            "-q",
            "scikit-build-core>=0.10",
            "pybind11>=2.13",
            "cython>=3.0",
            "cmake",
            "ninja",
        )
        (folder / "ready").touch()
    return folder


def build(machine: Machine, python: Python, source: Path, work: Path, epoch: str) -> Path:
    """Build a wheel for every Linux with the C library."""
    made, compilers = work / "made", machine.compilers()
    shutil.rmtree(made, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    environment = environment_of(python)
    version = "".join(map(str, python.version))
    variables = {
        "CC": str(compilers / "cc"),
        "CXX": str(compilers / "c++"),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "SKBUILD_BUILD_DIR": str(work / "objects"),
        "SOURCE_DATE_EPOCH": epoch,
        "PYTHONPATH": "",
        "CCACHE_DISABLE": "1",  # ggml's build would use ccache, but a second build must really compile
    }
    if not machine.is_here:
        variables["_PYTHON_HOST_PLATFORM"] = f"linux-{machine.name}"
        variables["SETUPTOOLS_EXT_SUFFIX"] = f".cpython-{version}-{machine.name}-linux-gnu.so"
    command = [environment / "bin" / "pip", "wheel", source, "--no-deps", "--no-build-isolation", "-w", made]
    run(*command, *machine.settings(), log=work / f"build-{version}.log", **variables)
    repaired = work / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    # auditwheel can only name platforms of this machine, but "auto" finds those of others.
    arguments = ["repair", "--plat", "auto", "-w", repaired, next(made.glob("*.whl"))]
    run(TOOLS / "auditwheel", *arguments, SOURCE_DATE_EPOCH=epoch)
    wheel = next(repaired.glob("*.whl"))
    found = re.search(rf"manylinux_2_(\d+)_{machine.name}\.whl$", wheel.name)
    if found is None or int(found[1]) > int(GLIBC.split(".")[1]):
        raise Failed(f"[auditwheel] the wheel needs a newer glibc than {GLIBC}: {wheel.name}")
    return Path(shutil.copy2(wheel, DIST))


def try_here(python: Python, wheel: Path, arguments: list[str]) -> tuple[str, str]:
    """Install the wheel as a user does, without a compiler; generate an answer and run the tests."""
    folder = WORK / "tried" / text_of(python.version)
    shutil.rmtree(folder, ignore_errors=True)
    run(python.path, "-m", "venv", folder)
    bare = {
        "PATH": str(folder / "bin"),
        "PYTHONPATH": "",
        "CC": "false",
        "CXX": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    run(folder / "bin" / "pip", "install", "-q", "--only-binary", ":all:", f"{wheel}[test]", **bare)
    start = time.monotonic()
    run(folder / "bin" / "quire", "run", "Tell me a story about a fox", "--seed", "3", "-n", "40", **bare)
    answered = f"{text_of(python.version)}: an answer in {time.monotonic() - start:.1f} s"
    log = WORK / f"tests-{wheel.name}.log"
    here = {**bare, "PATH": f"{folder / 'bin'}:/usr/bin:/bin"}  # for programs that tests start; nothing is compiled
    run(folder / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", *arguments, log=log, **here)
    return answered, summary(log)


def try_emulated(machine: Machine, wheel: Path, arguments: list[str]) -> tuple[str, str]:
    """Try the wheel in the emulator with Debian's Python for that machine, if both are available."""
    version = re.search(r"-cp3(\d+)-", wheel.name)
    log = WORK / f"tests-{wheel.name}.log"
    with log.open("w") as file:
        done = subprocess.run(
            [ROOT / "ci" / "emulated", machine.name, wheel, *arguments],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        )
    text = log.read_text()
    if done.returncode == 77:
        return f"not tried: {text.splitlines()[-1]}", "-"
    if done.returncode != 0:
        raise Failed(f"{text[-6000:]}\nfailed: ci/emulated {machine.name} {wheel.name}")
    found = re.search(r"^answered: (.*)$", text, re.MULTILINE)
    return f"3.{version[1] if version else '?'} emulated: {found[1] if found else '?'}", summary(log)


def summary(log: Path) -> str:
    """Return pytest's summary of the passed tests."""
    found = re.findall(r"(\d+ passed.*?) in [\d.]+s", log.read_text())
    return found[-1] if found else "?"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def built_again(machine: Machine, python: Python, source: Path, epoch: str, wheel: Path) -> str:
    """Build a wheel again in other folders and compare its bytes; the first wheel is kept."""
    first = Path(shutil.move(wheel, WORK / "first.whl"))
    again = WORK / "again" / source.name
    bring_up_to_date(again, source)
    second = build(machine, python, again, WORK / "again" / machine.name, epoch)
    same = digest(first) == digest(second)
    shutil.move(first, wheel)
    return f"the same bytes twice, sha256 {digest(wheel)[:12]}" if same else OTHER_BYTES


def make(
    machine: Machine, python: Python, source: Path, epoch: str, options: argparse.Namespace, *, is_first: bool
) -> Row:
    """Build, check and try one wheel; `is_first` for the first one of its machine."""
    start = time.monotonic()
    wheel = build(machine, python, source, machine.folder, epoch)
    row = Row(wheel.name, wheel.stat().st_size, time.monotonic() - start)
    print(f"built {wheel.name} in {row.build_s:.0f} s", flush=True)
    arguments = options.tests or ([ALL_OPERATIONS] if machine.is_here and is_first else []) + TESTS[machine.is_here]
    try:
        trial = try_here(python, wheel, arguments) if machine.is_here else try_emulated(machine, wheel, arguments)
        row.tried, row.tests = trial
    except Failed as failure:
        print(failure, flush=True)
        row.tests, row.failed = "FAILED", True
    print(f"tried: {row.tried}; tests: {row.tests}", flush=True)
    if options.twice and is_first:
        row.note = built_again(machine, python, source, epoch, wheel)
        row.failed |= row.note == OTHER_BYTES
    return row


def main() -> None:
    """Build, check and try all wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", action="append", choices=["x86_64", "aarch64"])
    parser.add_argument("--python", action="append", metavar="X.Y")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--tests", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    found = usable(candidates(os.environ.get("PATH", "")), promised())
    pythons = [one for one in found if not options.python or text_of(one.version) in options.python]
    missing = [text_of(version) for version in promised() if version not in {one.version for one in found}]
    command = ["git", "log", "-1", "--format=%ct"]
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    epoch = os.environ.get("SOURCE_DATE_EPOCH", commit or "315532800")
    source, archive = source_archive(epoch)
    rows = [
        make(machine, python, source, epoch, options, is_first=python is pythons[0])
        for machine in map(Machine, options.machine or ["x86_64", "aarch64"])
        for python in pythons
    ]
    print(f"\nsource: {archive}, {(DIST / archive).stat().st_size / 1e6:.1f} MB, time {epoch}")
    print("| wheel | MB | build s | tried | tests | |\n|---|---|---|---|---|---|")
    for row in rows:
        size = f"{row.size_bytes / 1e6:.1f}"
        print(f"| {row.wheel} | {size} | {row.build_s:.0f} | {row.tried} | {row.tests} | {row.note} |")
    if missing:
        print(f"no wheel: this machine has no Python {', '.join(missing)}")
    if any(row.failed for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except Failed as failure:
        sys.exit(str(failure))
