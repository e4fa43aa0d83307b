"""The form that a request wants its answer to have."""

from __future__ import annotations

import json as _json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from ..errors import RequestError, UnsupportedError

__all__ = ["SchemaClass", "StructuredOutputsParams", "answer_form"]

MAX_SOURCE_BYTES = 256 * 1024
MAX_REGEX_BYTES = 32 * 1024
MAX_STRING_BYTES = 16 * 1024
MAX_CHOICES = 16384
MAX_TRIGGER_BYTES = 256
MAX_TRIGGERS = 16
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


@runtime_checkable
class SchemaClass(Protocol):
    """A class that knows its JSON Schema, as Pydantic's models do."""

    def model_json_schema(self) -> Mapping[str, object]:
        """The schema."""


def _refuse(name: str, reason: str) -> RequestError:
    return RequestError(f"[structured_outputs] {name} {reason}")


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The form that an answer must have; exactly one of the first five is set.  Immutable and hashable.

    ``json``: a JSON Schema (draft 2020-12), as a mapping or as JSON text; kept as text.  A keyword that cannot be
    enforced is refused by name.  Properties come in the schema's order.
    ``json_object``: any JSON object.
    ``regex``: the whole answer matches it (Rust's syntax: no look-around, no backreferences).
    ``choice``: the answer is one of these strings.
    ``grammar``: a grammar in GBNF (rules with ``::=``) or Lark.
    ``after``: the form begins after this text or control token (``"</think>"``), which must occur; the text before
    it is free.  White space may follow it.
    ``triggers``: the form begins with the first of these texts, or control tokens, that appears; an answer without one
    is free.  The form includes the trigger.
    ``disable_any_whitespace``: JSON without white space.  ``whitespace_pattern``: a regex of the white space that may
    stand between JSON's tokens, by default at most 32 characters.
    ``parses``: what makes of an answer the object that ``GenerationResult.parsed`` is; None: ``json.loads``.

    Raises RequestError that names the invalid field.
    """

    json: str | Mapping[str, object] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Iterable[str] | None = None
    grammar: str | None = None
    after: str | None = None
    triggers: Iterable[str] = ()
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    parses: Callable[[str], object] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(self.__dict__[name], bool):
                raise _refuse(name, f"is {self.__dict__[name]!r:.80}: expected a bool")
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        object.__setattr__(self, "triggers", _triggers(self.triggers))
        if self.triggers and self.after is not None:
            raise _refuse("triggers", "cannot be combined with after")
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name, limit in (
            ("regex", MAX_REGEX_BYTES),
            ("grammar", MAX_SOURCE_BYTES),
            ("after", MAX_TRIGGER_BYTES),
            ("whitespace_pattern", MAX_TRIGGER_BYTES),
        ):
            _check_text(name, self.__dict__[name], limit)
        set_fields = [name for name in _KINDS if self.__dict__[name] not in (None, False)]
        if len(set_fields) != 1:
            found = " and ".join(set_fields) or "none"
            raise RequestError(f"[structured_outputs] {found} set: expected exactly one of {', '.join(_KINDS)}")
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if self.__dict__[name] not in (None, False) and set_fields[0] not in ("json", "json_object"):
                raise _refuse(name, f"cannot be combined with {set_fields[0]}: expected json or json_object")
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise _refuse("whitespace_pattern", "cannot be combined with disable_any_whitespace")

    @classmethod
    def from_response_format(
        cls, response_format: Mapping[str, object] | SchemaClass, *, after: str | None = None
    ) -> StructuredOutputsParams | None:
        """OpenAI's ``response_format``: ``text`` (None), ``json_object``, or ``json_schema`` with a schema inside.

        ``json_object`` may have ``schema`` beside it, as llama.cpp's server takes it and older clients send it; there
        null and ``{}`` stand for any object.  A bare JSON Schema, or a class that has one (Pydantic's models), is taken
        as the schema.  ``uniqueItems`` is left out where the class parses answers, as its sets drop what comes twice.
        The fields of ``json_schema`` may stand beside ``type``, as in the Responses API.
        ``strict`` false is taken as true: what is generated follows the schema.  RequestError for another shape,
        UnsupportedError for another type.
        """
        if isinstance(response_format, SchemaClass):
            parses = getattr(response_format, "model_validate_json", None)
            own = response_format.model_json_schema()
            return cls(json=own if parses is None else _without_sets(own), after=after, parses=parses)
        if not isinstance(response_format, Mapping):
            raise RequestError(
                f"[response_format] {response_format!r:.80} is neither an object nor a class with a schema"
            )
        if _is_schema(response_format):
            return cls(json=response_format, after=after)
        kind = response_format.get("type")
        if kind == "json_schema" and "schema" in response_format and "json_schema" not in response_format:
            # As the Responses API has it.
            inside = {name: value for name, value in response_format.items() if name != "type"}
            return cls.from_response_format({"type": kind, "json_schema": inside}, after=after)
        known = {"text": (), "json_object": ("schema",), "json_schema": ("json_schema",)}
        if not isinstance(kind, str) or kind not in known:
            raise UnsupportedError(
                f"[response_format] unsupported type {kind!r:.80}: expected one of {', '.join(known)}"
            )
        _only(response_format, ("type", *known[kind]), "response_format")
        if kind == "text":
            return None
        if kind == "json_object":
            beside = response_format.get("schema")
            if not isinstance(beside, Mapping | None):
                raise RequestError(f"[response_format] schema is {beside!r:.80}: expected a JSON Schema")
            return cls(json=beside, after=after) if beside else cls(json_object=True, after=after)
        inner = response_format.get("json_schema")
        if not isinstance(inner, Mapping):
            raise RequestError(f"[response_format] json_schema is {inner!r:.80}: expected an object")
        _only(inner, ("name", "description", "schema", "strict"), "response_format.json_schema")
        schema = inner.get("schema")
        if not isinstance(schema, Mapping | bool):
            raise RequestError(f"[response_format] json_schema.schema is {schema!r:.80}: expected a JSON Schema")
        return cls(json=schema, after=after)


_SCHEMA_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_SCHEMA_KEYS = ("$ref", "$defs", "$schema", "properties", "anyOf", "oneOf", "allOf", "enum", "const", "items")


def _is_schema(given: Mapping[str, object]) -> bool:
    """Return True for a bare JSON Schema, whose ``type`` is none of a response format's."""
    kind = given.get("type")
    if kind is None:
        return any(key in given for key in _SCHEMA_KEYS)
    return isinstance(kind, list) or kind in _SCHEMA_TYPES


def _without_sets(schema: Any) -> Any:
    """Return a schema without ``uniqueItems``, for a class whose parser drops repeated items."""
    if isinstance(schema, list):
        return [_without_sets(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    is_set = schema.get("type") == "array" and schema.get("uniqueItems") is True
    return {name: _without_sets(value) for name, value in schema.items() if not (is_set and name == "uniqueItems")}


def _only(value: Mapping[str, object], names: tuple[str, ...], place: str) -> None:
    for name in value:
        if name not in names:
            raise UnsupportedError(f"[{place}] unsupported field {name!r:.80}: expected {', '.join(names)}")


def _check_text(name: str, value: object, limit: int) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise _refuse(name, f"is {value!r:.80}: expected a str")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise _refuse(name, "is not valid Unicode") from error
    if not 1 <= size <= limit:
        raise _refuse(name, f"has {size} bytes: expected 1 to {limit}")


def _schema_text(schema: object) -> str:
    """Return a schema as JSON text, which is immutable and can be a key of caches."""
    if not isinstance(schema, str | Mapping | bool):
        raise _refuse("json", f"is {schema!r:.80}: expected a JSON Schema or its text")
    try:
        if isinstance(schema, str):
            _check_text("json", schema, MAX_SOURCE_BYTES)
            schema = _json.loads(schema, object_pairs_hook=_unique)
        text = _json.dumps(schema, ensure_ascii=False, allow_nan=False, default=_plain)
    except RecursionError as error:
        raise _refuse("json", "is nested too deeply") from error
    except RequestError:
        raise
    except (TypeError, ValueError) as error:
        raise _refuse("json", f"is not JSON: {error!s:.200}") from error
    _check_text("json", text, MAX_SOURCE_BYTES)
    return text


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise _refuse("json", f"has an object with key {key!r:.80} twice")
        result[key] = value
    return result


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it has {value!r:.80}")


def _choices(value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _refuse("choice", f"is {value!r:.80}: expected a list of strings")
    items = tuple(value)
    if not 1 <= len(items) <= MAX_CHOICES:
        raise _refuse("choice", f"has {len(items)} strings: expected 1 to {MAX_CHOICES}")
    for item in items:
        _check_text("choice", item, MAX_STRING_BYTES)
    total = sum(len(item) for item in items)
    if total > MAX_SOURCE_BYTES:
        raise _refuse("choice", f"has {total} characters: expected at most {MAX_SOURCE_BYTES}")
    return items


def _triggers(value: object) -> tuple[str, ...]:
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise _refuse("triggers", f"is {value!r:.80}: expected a list of strings")
    items = tuple(value)
    if len(items) > MAX_TRIGGERS:
        raise _refuse("triggers", f"has {len(items)} strings: expected at most {MAX_TRIGGERS}")
    for item in items:
        _check_text("triggers", item, MAX_TRIGGER_BYTES)
        if item is None:
            raise _refuse("triggers", "has None: expected strings")
    return items


def answer_form(
    *,
    response_format: Mapping[str, object] | SchemaClass | None = None,
    regex: str | None = None,
    choice: Iterable[str] | None = None,
    grammar: str | None = None,
) -> StructuredOutputsParams | None:
    """Return the form that the keyword arguments describe, or None; RequestError if there are several."""
    given = {"regex": regex, "choice": choice, "grammar": grammar}
    names = [name for name, value in given.items() if value is not None]
    if response_format is not None:
        if names:
            raise RequestError(f"[structured_outputs] response_format cannot be combined with {names[0]}")
        return StructuredOutputsParams.from_response_format(response_format)
    return StructuredOutputsParams(regex=regex, choice=choice, grammar=grammar) if names else None
