"""Write a header that renames ggml's functions: own_names.py GGML_FOLDER HEADER

The system's loader binds a call to the first library that exports the name.  If another ggml was loaded before with
global symbols, our calls would go to it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HEADERS = (
    "include/ggml.h", "include/ggml-alloc.h", "include/ggml-backend.h", "include/ggml-opt.h", "include/gguf.h",
    "src/ggml-impl.h", "src/ggml-backend-impl.h", "src/ggml-quants.h", "src/ggml-threading.h",
)  # fmt: skip
# These are looked up in modules by name.
KEPT = {"ggml_backend_init", "ggml_backend_score"}
FUNCTION = re.compile(r"\b((?:ggml|gguf|quantize|dequantize|iq2xs|iq3xs)_\w+)\s*\(")


def names_in(folder: Path) -> set[str]:
    """Return the names that the headers declare as functions."""
    found: set[str] = set()
    macros: set[str] = set()
    for name in HEADERS:
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", (folder / name).read_text(encoding="utf-8"), flags=re.DOTALL)
        macros.update(re.findall(r"#\s*define\s+(\w+)", text))
        found.update(FUNCTION.findall(text))
    return {name for name in found - macros - KEPT if not name.endswith("_t")}


def main(folder: Path, header: Path) -> None:
    lines = [f"#define {name} quire_{name}" for name in sorted(names_in(folder))]
    text = "\n".join(["#pragma once", *lines, ""])
    if not header.is_file() or header.read_text(encoding="utf-8") != text:
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
