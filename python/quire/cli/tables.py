"""Tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from .text import one_line

__all__ = ["print_table"]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print a table; columns whose heading ends in ``>`` (which is not shown) are right-aligned.

    Cells may come from untrusted files and devices, so they are printed as plain text.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in columns:
        right = heading.endswith(">")
        table.add_column(heading.rstrip(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    # Do not wrap or cut lines that go to a file or pipe.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().strip("\n").splitlines():
        print(line.rstrip())
    print()
