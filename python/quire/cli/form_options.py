"""The options that fix the form of an answer, by llama.cpp's names where it has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from ..errors import RequestError
from ..structured import MAX_SOURCE_BYTES, StructuredOutputsParams

__all__ = ["FORM_OPTIONS", "grammar_options", "taken_form", "taken_grammar"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

FORM_OPTIONS: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
    click.option("--grammar", metavar="GRAMMAR", help="The answer follows a grammar in GBNF or Lark."),
    click.option("--grammar-file", type=_FILE, metavar="FILE", help="The grammar, from a file."),
    click.option(
        "-j", "--json-schema", metavar="SCHEMA", help="The answer is JSON that fits this schema; {}: any JSON."
    ),
    click.option("-jf", "--json-schema-file", type=_FILE, metavar="FILE", help="The schema, from a file."),
    click.option("--regex", metavar="REGEX", help="The answer matches a regular expression."),
    click.option("--choice", multiple=True, metavar="TEXT", help="The answer is one of these; may be repeated."),
)


def grammar_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--grammar`` and ``--grammar-file`` alone."""
    return FORM_OPTIONS[0](FORM_OPTIONS[1](function))


def taken_grammar(values: dict[str, object]) -> str | None:
    """The grammar of a command that has no other forms."""
    return _text(values, "grammar")


def taken_form(values: dict[str, object]) -> StructuredOutputsParams | None:
    """The form of the answer, whose options are taken out of a command's values.  RequestError for several."""
    grammar, schema, regex = (_text(values, name) for name in ("grammar", "json_schema", "regex"))
    choice = values.pop("choice")
    assert isinstance(choice, tuple)
    if grammar is None and schema is None and regex is None and not choice:
        return None
    return StructuredOutputsParams(grammar=grammar, json=schema, regex=regex, choice=choice or None)


def _text(values: dict[str, object], name: str) -> str | None:
    """An option's text, or that of its file."""
    text, file = values.pop(name), _file(values.pop(f"{name}_file", None))
    assert text is None or isinstance(text, str)
    if text is not None and file is not None:
        raise RequestError(f"[{name}] given both as text and as a file: give one")
    return file if text is None else text


def _file(path: object) -> str | None:
    if path is None:
        return None
    assert isinstance(path, Path)
    try:
        with path.open("rb") as file:
            return file.read(MAX_SOURCE_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"[{path.name}] it must be a text in UTF-8 but {error!s:.100}") from error
