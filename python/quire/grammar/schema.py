"""JSON Schemas as grammars enforce them: what cannot be enforced is refused by name or, where it is safe, noted."""

from __future__ import annotations

from dataclasses import dataclass

from .schema_reader import Reader

__all__ = ["Enforced", "check_schema", "enforceable"]


@dataclass(frozen=True)
class Enforced:
    """``schema``: all of it is enforced.  ``notes``: places of what the original says beyond it."""

    schema: object
    notes: tuple[str, ...] = ()


def check_schema(schema: object) -> None:
    """Refuse what a grammar cannot enforce.

    Raises UnsupportedError naming the keyword and its place, RequestError for what is no schema.
    """
    enforceable(schema)


def enforceable(schema: object, *, is_loose: bool = False) -> Enforced:
    """A schema as the library behind enforces it.

    ``is_loose``: keywords that cannot be enforced are noted.  Otherwise raises as ``check_schema``.
    """
    reader = Reader(schema, is_loose=is_loose)
    made = reader.read()
    return Enforced(made, tuple(reader.notes))
