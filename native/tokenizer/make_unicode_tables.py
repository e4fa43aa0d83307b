"""Write unicode_tables.h: the general category of every code point, as runs.

    python native/tokenizer/make_unicode_tables.py

The data comes from the package ``unicodedata2`` if it is installed, otherwise from Python's ``unicodedata``.  The
committed file was made with ``unicodedata2==16.0.0``, the Unicode version that tests compare published tokenizers with.
"""

from __future__ import annotations

from pathlib import Path

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# The order of `Category` in unicode.h.
GROUPS = {"L": "ultmo", "M": "nce", "N": "dlo", "P": "cdseifo", "S": "mcko", "Z": "slp", "C": "cfson"}
CATEGORIES = [group + member for group, members in GROUPS.items() for member in members]
LAST = 0x10FFFF
PER_LINE = 12


def runs() -> list[int]:
    """Return first code point << 8 | category for every run of equal categories."""
    found: list[int] = []
    previous = -1
    for code in range(LAST + 1):
        category = CATEGORIES.index(unicodedata.category(chr(code)))
        if category != previous:
            found.append(code << 8 | category)
            previous = category
    return found


def main() -> None:
    entries = [f"{run:#x}" for run in runs()]
    lines = ["    " + ", ".join(entries[i : i + PER_LINE]) + "," for i in range(0, len(entries), PER_LINE)]
    text = "\n".join(
        [
            "// Made by make_unicode_tables.py; do not edit.  General categories of Unicode "
            f"{unicodedata.unidata_version}.",
            "#pragma once",
            "",
            "#include <cstdint>",
            "",
            "namespace quire::tokenizer {",
            "",
            f'inline constexpr const char *unicode_version = "{unicodedata.unidata_version}";',
            "",
            "// (first code point << 8 | category) of every run of equal categories, ascending.",
            "// clang-format off",
            "inline constexpr uint32_t category_runs[] = {",
            *lines,
            "};",
            "// clang-format on",
            "",
            "} // namespace quire::tokenizer",
            "",
        ]
    )
    Path(__file__).with_name("unicode_tables.h").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
