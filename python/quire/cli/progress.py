"""A progress bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Advance", "progress_bar"]

Advance = Callable[[int, int, str], None]
"""Callback: steps done, total steps, name of the current one."""


@contextmanager
def progress_bar(title: str) -> Iterator[Advance]:
    """Yield a function that reports progress; it does nothing if standard error is not a terminal."""
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
