"""Write docs/compatibility.md: what users of other programs type and send, and what Quire does with it.

    python ci/make_compatibility_page.py

The rows are in tests/compatibility/cases.toml; tests try every one.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "compatibility" / "cases.toml"
PAGE = ROOT / "docs" / "compatibility.md"
HEAD = """# Compatibility with other programs

`ci/make_compatibility_page.py` writes this page from `tests/compatibility/cases.toml`, and a test tries every row. The
first column names the program that a row comes from. All options are in [options.md](options.md), all fields in
[http.md](http.md).

"""
# Titles of the columns after the first, by kind of table.
COLUMNS = {
    "same": ("typed", "is"),
    "asks": ("typed", "model", "prompt"),
    "note": ("typed", "runs, with the note"),
    "refused": ("typed", "exits with 2 and says"),
    "prints": ("typed", "condition on `out`, `err` and the exit code"),
    "session": ("typed or sent", "condition on the answer"),
    "means": ("sent", "condition on the engine's work"),
    "off": ("sent", "status 403, which says"),
    "ignored": ("sent", "answered; `x-quire-ignored` names"),
    "denied": ("sent", "status 400, which names"),
    "request": ("sent", "condition on the answer"),
    "script": ("program", "condition afterwards"),
}


@dataclass(frozen=True)
class Table:
    """Rows of one kind: the origin, then the kind's cells (described in tests/compatibility/cases.toml)."""

    part: str
    title: str
    kind: str
    about: str
    rows: list[list[str]]


@dataclass(frozen=True)
class Cases:
    """The parsed file.

    ``values`` are substituted for $names.  ``beside`` has the default fields of requests, by path.  ``programs`` has
    the first lines of scripts, by origin.
    """

    values: dict[str, str]
    beside: dict[str, str]
    programs: dict[str, str]
    tables: list[Table]

    def filled(self, text: str, more: dict[str, str] | None = None) -> str:
        """Substitute values for $names.  KeyError for an unknown name."""
        values = {**self.values, **(more or {})}
        while re.search(r"\$[a-z]+", text):
            text = re.sub(r"\$([a-z]+)", lambda found: values[found[1]], text)
        return text


def cases() -> Cases:
    """Read the file."""
    tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    given: dict[str, Any] = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    tables = [Table(**{"about": "", **table}) for table in given.pop("table")]
    return Cases(tables=tables, **given)


def code(text: str) -> str:
    """Format code in a table cell, line by line."""
    lines = text.strip("\n").rstrip().split("\n")
    return "<br>".join(_code_line(line) for line in lines if line.strip())


def _code_line(line: str) -> str:
    indent = "&nbsp;" * (len(line) - len(line.lstrip()))
    line = line.strip().replace("|", "\\|").replace("\t", "\\t")
    marks = "`" if "`" not in line else "``"
    return f"{indent}{marks}{line}{marks}"


def cells(kind: str, row: list[str]) -> list[str]:
    """Return the cells of a row."""
    origin, first, *rest = row
    if kind in ("means", "off", "ignored", "denied", "request") or (kind == "session" and len(rest) == 2):
        body, *rest = rest
        method = "" if " " in first else "POST "
        first = f"{method}{first}" + (f"\n{body}" if body not in ("", "{}") else "")
    shown = [code(cell) for cell in rest] if kind != "note" else [rest[0].replace("|", "\\|")]
    if kind == "asks" and not rest[0]:
        shown[0] = "the package's"
    return [origin, code(first), *shown]


def page() -> str:
    """Return the whole page."""
    given = cases()
    parts, part = (
        [HEAD, "Unless a row says otherwise, requests also have these fields:\n\n| to | fields |\n|---|---|\n"],
        "",
    )
    parts += [f"| {code(path)} | {code(body)} |\n" for path, body in given.beside.items()]
    parts.append("\nNames with `$` stand for\n\n| name | value |\n|---|---|\n")
    parts += [f"| `${name}` | {code(text)} |\n" for name, text in given.values.items()]
    parts.append('| `$ids`, `$once` | the tokens of "Once upon"; those of "Once", without brackets |\n')
    parts.append("| `$long` | a message of 5000 words |\n\n")
    for table in given.tables:
        if table.part != part:
            part = table.part
            parts.append(f"## {part}\n\n")
        parts.append(f"### {table.title}\n\n")
        if table.about:
            parts.append(f"{table.about}\n\n")
        if table.kind == "script":
            program = given.programs[table.rows[0][0]].strip()
            parts.append(f"Each starts with\n\n```python\n{program}\n```\n\n")
        columns = ("from", *COLUMNS[table.kind])
        parts.append(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}\n")
        parts += [f"| {' | '.join(cells(table.kind, row))} |\n" for row in table.rows]
        parts.append("\n")
    return "".join(parts).rstrip("\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
