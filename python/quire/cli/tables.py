"""Tables on standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from .text import one_line

__all__ = ["print_table"]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """A table; columns whose heading ends in ``>`` (which is not shown) are aligned to the right.

    Cells come from files and devices: they are shown as plain text, whatever they hold.
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
    # A file or a pipe has no width: nothing is to be cut there.
    console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().strip("\n").splitlines():
        print(line.rstrip())
    print()
