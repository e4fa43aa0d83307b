"""``quire tokenize``: show the tokens of a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from .foreign_options import ForeignCommand
from .model_argument import model_and_prompt, model_option, read_prompt
from .session import open_tokenizer
from .text import one_line

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

__all__ = ["command"]


@click.command("tokenize", cls=ForeignCommand)
@model_and_prompt
@model_option
@click.option("--ids", "only_ids", is_flag=True, help="Print only the ids, on one line.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--parse-special", is_flag=True, help="Parse control tokens written in the text.")
@click.option("--no-special", is_flag=True, help="Do not add tokens such as BOS around the text.")
def command(
    *, prompt: str | None, path: str | None, only_ids: bool, as_json: bool, parse_special: bool, no_special: bool
) -> None:
    """Show the tokens of PROMPT or of standard input, one per line with its id."""
    if only_ids and as_json:
        raise click.UsageError("give only one of --ids and --json")
    # Keep the input as bytes: a byte-level tokenizer also encodes invalid UTF-8.
    source = read_prompt(prompt, "tokenize")
    tokenizer = open_tokenizer(path)
    ids = tokenizer.encode(source, add_special=not no_special, parse_special=parse_special)
    if only_ids:
        print(*ids)
    elif as_json:
        tokens = [{"id": id, "text": _shown(tokenizer, id)} for id in ids]
        print(json.dumps({"n_tokens": len(ids), "ids": ids, "tokens": tokens}, ensure_ascii=False))
    else:
        for id in ids:
            print(f"{id:>8}  {one_line(_shown(tokenizer, id))}")


def _shown(tokenizer: Tokenizer, id: int) -> str:
    """Return the token's text: a control token's name, or ``\\xNN`` for bytes that are not UTF-8."""
    return tokenizer.decode_bytes([id], skip_special=False).decode("utf-8", "backslashreplace")
