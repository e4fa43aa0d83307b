"""``quire detokenize``: turn token ids back into text."""

from __future__ import annotations

import re
import sys

import click

from .foreign_options import ForeignCommand
from .model_argument import model_option, names_a_model
from .session import open_tokenizer

__all__ = ["command"]

_MOST_IDS = 10_000_000


@click.command("detokenize", cls=ForeignCommand)
@click.argument("words", nargs=-1, metavar="[MODEL] [IDS]...")
@model_option
@click.option("--skip-special", is_flag=True, help="Leave out control tokens.")
def command(*, words: tuple[str, ...], path: str | None, skip_special: bool) -> None:
    """Print the text of IDS, separated by spaces or commas; without IDS, read them from standard input."""
    rest = list(words)
    if rest and path is None and names_a_model(rest[0]):
        path = rest.pop(0)
    if not rest and sys.stdin.isatty():
        raise click.UsageError("no ids: give them after the model, as in quire detokenize MODEL 9707 1052")
    ids = _ids(" ".join(rest) if rest else sys.stdin.read())
    sys.stdout.flush()
    sys.stdout.buffer.write(open_tokenizer(path).decode_bytes(ids, skip_special) + b"\n")
    sys.stdout.buffer.flush()


def _ids(text: str) -> list[int]:
    """Parse numbers separated by spaces, commas or brackets."""
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    for word in words:
        if not word.isdecimal() or len(word) > 10:
            raise click.UsageError(f"not a token id: {word!r:.40}")
    if not words:
        raise click.UsageError("no ids: give numbers such as 9707 1052")
    return [int(word) for word in words[:_MOST_IDS]]
