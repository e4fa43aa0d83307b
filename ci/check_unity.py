"""Check that files of the core can be compiled as one (QUIRE_UNITY in CMakeLists.txt).

    python ci/check_unity.py [ROOT]

There they share one unnamed namespace.  A name that two files declare in it clashes or becomes an overload, and a name
that a header declares, too, is hidden from the files behind: silently, where both fit.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

FOLDERS = ("core", "gguf", "quant", "kv", "graph", "engine")
TYPE = re.compile(r"(?:template\s*<.*?>\s*)?(?:struct|class|enum class|enum|union|using|concept)\s+(\w+)(?!.*\w\()")
FUNCTION = re.compile(r"(?:[^()=]|\([^()]*\)(?=\s*\())*?(?<!::)\b(\w+)\s*\(")
VARIABLE = re.compile(r"(\w+)\s*(?:\[[^\]]*\])*\s*=(?!=)")
BRACED = re.compile(r"[^=(]*?(\w+)\s*(?:\[[^\]]*\])*\s*[{;]")
NO_DECLARATION = (" ", "}", "#", "/", "{", "namespace", "using namespace", "extern", "static_assert")


def declared(lines: Iterable[str]) -> Iterator[str]:
    """Yield the names that lines of a namespace declare.  Formatted code has no indentation there."""
    for line in lines:
        if not line or line.startswith(NO_DECLARATION):
            continue
        text = re.sub(r"\[\[.*?\]\]", "", line.split("//")[0])
        found = TYPE.match(text) or FUNCTION.match(text)
        if found and "=" not in text[: found.start(1)]:
            yield found[1]
        else:
            yield from VARIABLE.findall(text)
            if found := BRACED.match(text):
                yield found[1]


def unnamed(text: str) -> Iterator[str]:
    """Yield the lines of the unnamed namespaces."""
    inside = False
    for line in text.splitlines():
        if line == "namespace {":
            inside = True
        elif line.startswith("} // namespace"):
            inside = False
        elif inside:
            yield line


def complaints(native: Path) -> list[str]:
    headers: defaultdict[str, list[str]] = defaultdict(list)
    # Kernels' headers with an unnamed namespace are for files of one instruction set.
    for path in sorted(native.rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        room = path.relative_to(native).parts[0]
        if room in FOLDERS or (room == "kernels" and "\nnamespace {" not in text):
            for name in declared(text.splitlines()):
                headers[name].append(str(path.relative_to(native)))
    sources: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((native / folder).rglob("*.cpp")):
            if not path.stem.endswith(("_posix", "_windows")):
                for name in sorted(set(declared(unnamed(path.read_text(encoding="utf-8"))))):
                    sources[name].append(str(path.relative_to(native)))
    return [
        f"{name!r} is declared in the unnamed namespace of {', '.join(found)}{' and in ' if headers[name] else ''}"
        f"{', '.join(headers[name])}: rename all but one"
        for name, found in sorted(sources.items())
        if len(found) > 1 or headers[name]
    ]


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = complaints(root / "native")
    print("\n".join(found) or "no name hides another")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
