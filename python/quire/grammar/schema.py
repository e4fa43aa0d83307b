"""Check and translate JSON Schemas.  Keywords that cannot be enforced are refused by name or, where safe, noted."""

from __future__ import annotations

from dataclasses import dataclass

from .schema_reader import Reader

__all__ = ["Enforced", "check_schema", "enforceable"]


@dataclass(frozen=True)
class Enforced:
    """A schema that is enforced completely, and ``notes`` on the places of the original that are not."""

    schema: object
    notes: tuple[str, ...] = ()


def check_schema(schema: object) -> None:
    """Refuse a schema that a grammar cannot enforce.

    Raises:
        UnsupportedError: A keyword cannot be enforced; the message names it and its place.
        RequestError: This is not a schema.
    """
    enforceable(schema)


def enforceable(schema: object, *, is_loose: bool = False) -> Enforced:
    """Return a schema for llguidance.

    If ``is_loose``, keywords that cannot be enforced are noted.  Otherwise raises as ``check_schema``.
    """
    reader = Reader(schema, is_loose=is_loose)
    made = reader.read()
    return Enforced(made, tuple(reader.notes))
