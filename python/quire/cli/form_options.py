"""Options that constrain the form of an answer, with llama.cpp's names where it has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from ..errors import RequestError
from ..params.structured import MAX_SOURCE_BYTES, StructuredOutputsParams

__all__ = ["FORM_OPTIONS", "grammar_options", "taken_form", "taken_grammar"]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

FORM_OPTIONS: tuple[Callable[[Callable[..., None]], Callable[..., None]], ...] = (
    click.option("--grammar", metavar="GRAMMAR", help="Constrain the answer to a grammar in GBNF or Lark."),
    click.option("--grammar-file", type=_FILE, metavar="FILE", help="Read the grammar from FILE."),
    click.option(
        "-j",
        "--json-schema",
        metavar="SCHEMA",
        help="Constrain the answer to JSON that fits this schema; {} allows any JSON.",
    ),
    click.option("-jf", "--json-schema-file", type=_FILE, metavar="FILE", help="Read the schema from FILE."),
    click.option("--regex", metavar="REGEX", help="Constrain the answer to a regular expression."),
    click.option(
        "--choice", multiple=True, metavar="TEXT", help="Constrain the answer to one of these texts; may be repeated."
    ),
)


def grammar_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add only ``--grammar`` and ``--grammar-file``."""
    return FORM_OPTIONS[0](FORM_OPTIONS[1](function))


def taken_grammar(values: dict[str, object]) -> str | None:
    """Return the grammar for a command that takes no other form options."""
    return _text(values, "grammar")


def taken_form(values: dict[str, object]) -> StructuredOutputsParams | None:
    """Remove the form options from a command's values and return the form.  RequestError if several are given."""
    grammar, schema, regex = (_text(values, name) for name in ("grammar", "json_schema", "regex"))
    choice = values.pop("choice")
    assert isinstance(choice, tuple)
    if grammar is None and schema is None and regex is None and not choice:
        return None
    return StructuredOutputsParams(grammar=grammar, json=schema, regex=regex, choice=choice or None)


def _text(values: dict[str, object], name: str) -> str | None:
    """Return an option's text, or the text of its file."""
    text, file = values.pop(name), _file(values.pop(f"{name}_file", None))
    assert text is None or isinstance(text, str)
    if text is not None and file is not None:
        raise RequestError(f"[{name}] given both as text and as a file")
    return file if text is None else text


def _file(path: object) -> str | None:
    if path is None:
        return None
    assert isinstance(path, Path)
    try:
        with path.open("rb") as file:
            return file.read(MAX_SOURCE_BYTES + 1).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"[{path.name}] cannot read as UTF-8 text: {error!s:.100}") from error
