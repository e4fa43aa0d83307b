"""Check that every header of native code compiles by itself, with the compiler flags of its folder.

    python ci/check_headers.py [ROOT]

Flags of instruction sets are read from native/CMakeLists.txt.  Skipped are headers that a source of the same name
includes first, because every build compiles them by themselves; headers for other processors; and those of the
bindings, because pybind11 takes longer than all others together.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMPILER = os.environ.get("CXX", "g++")
INCLUDES = ("native", "vendor/ggml/include", "native/tokenizer")
SKIPPED = {"bindings"}
# Folders of instruction sets to skip, by processor.
FOREIGN = {"x86_64": re.compile(r"^neon"), "aarch64": re.compile(r"^avx")}
OPTIONS = re.compile(r"set_source_files_properties\(\$\{(\w+)_sources\} PROPERTIES COMPILE_OPTIONS\s+\"([^\"]*)\"\)")
FIRST_INCLUDE = re.compile(r'#include "([^"]+)"')
VARIABLE = re.compile(r"\bset\((\w+_options) ([^)]*)\)")


def isa_flags(cmake: str) -> dict[str, list[str]]:
    """Return CMake's compiler flags for each folder below native/kernels/."""
    variables = {name: value.split() for name, value in VARIABLE.findall(cmake)}
    flags: dict[str, list[str]] = {}
    for folder, options in OPTIONS.findall(cmake):
        flags[folder] = []
        for part in options.split(";"):
            if part.startswith("$<"):  # an option of one build type
                continue
            named = re.fullmatch(r"\$\{(\w+)\}", part)
            flags[folder] += variables[named.group(1)] if named else [part]
    return flags


def is_first_of_a_source(header: Path) -> bool:
    source = header.with_suffix(".cpp")
    first = FIRST_INCLUDE.search(source.read_text(encoding="utf-8")) if source.exists() else None
    return first is not None and header.as_posix().endswith("/" + first.group(1))


def headers_of(native: Path) -> list[Path]:
    foreign = FOREIGN.get({"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine()))
    found = []
    for path in sorted(native.rglob("*.h")):
        folders = path.relative_to(native).parts[:-1]
        if folders[0] in SKIPPED or (folders[0] == "kernels" and foreign and any(map(foreign.match, folders[1:]))):
            continue
        if not is_first_of_a_source(path):
            found.append(path)
    return found


def errors_of(root: Path, header: Path, flags: list[str]) -> str:
    """Compile a file that only includes the header; return the compiler's errors."""
    includes = [f"-I{root / folder}" for folder in INCLUDES]
    finished = subprocess.run(
        [COMPILER, "-std=c++20", "-fsyntax-only", *flags, *includes, "-x", "c++", "-"],
        input=f'#include "{header}"\n', capture_output=True, text=True, check=False,
    )  # fmt: skip
    return finished.stderr if finished.returncode else ""


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]).resolve() if arguments else Path(__file__).resolve().parent.parent
    native = root / "native"
    by_folder = isa_flags((native / "CMakeLists.txt").read_text(encoding="utf-8"))
    headers = headers_of(native)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None) as pool:
        results = list(pool.map(lambda path: errors_of(root, path, by_folder.get(path.parent.name, [])), headers))
    failed = [(path, text) for path, text in zip(headers, results, strict=True) if text]
    for path, text in failed:
        print(f"{path.relative_to(root)}: does not compile by itself\n{text}")
    print(f"{len(headers)} headers, {len(failed)} of which do not compile by themselves")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
