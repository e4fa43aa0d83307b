"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Advance", "progress_bar"]

Advance = Callable[[int, int, str], None]
"""Steps done, steps in all, what is being done."""


@contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """A function to tell how far the work has come; it shows nothing when standard error is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, name: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    columns = (TextColumn(title), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[name]}"), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, name="")

        def advance(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, name=Text(name))

        yield advance
