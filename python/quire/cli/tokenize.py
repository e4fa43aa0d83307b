"""``quire tokenize``: the tokens of a text."""

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
@click.option("--ids", "only_ids", is_flag=True, help="Print the ids only, on one line.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--parse-special", is_flag=True, help="Control tokens written in the text count as such.")
@click.option("--no-special", is_flag=True, help="Add no tokens before and after the text.")
def command(
    *, prompt: str | None, path: str | None, only_ids: bool, as_json: bool, parse_special: bool, no_special: bool
) -> None:
    """Show the tokens of PROMPT, or of standard input: a line each, with its id."""
    if only_ids and as_json:
        raise click.UsageError("--ids and --json are two forms of output: give one")
    # Bytes as they are: a tokenizer of bytes has an id for each, UTF-8 or not.
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
    """The token's text: a control token's name; bytes that are no UTF-8 as ``\\xNN``."""
    return tokenizer.decode_bytes([id], skip_special=False).decode("utf-8", "backslashreplace")
