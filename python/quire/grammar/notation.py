"""Arguments in a notation other than JSON: Python literals, or strings between marks with bare keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError, UnsupportedError
from .arguments import (
    ANY_VALUE,
    BOUND,
    Looseness,
    all_patterns,
    check_key,
    check_references,
    followed,
    is_key,
    json_lark,
    listed_arguments,
    without_annotations,
    without_marks,
)
from .frame import FrameWriter, lark_string
from .source import lark_regex

__all__ = ["NotationWriter"]

# Free keys: names that no schema lists.
_WORD_LARK = r"/[\p{L}_$@][\p{L}\p{N}_.$@\/-]{0,63}/"
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_ITEMS = {"items", "minItems", "maxItems"}
_LENGTHS = {"minLength", "maxLength"}
_WORDS = {"boolean": '"true" | "false"', "null": '"null" | "None"'}
_KIND_OF = {None: "null", True: "boolean", False: "boolean"}
_KEYWORDS: Mapping[str, set[str]] = {
    "string": {*_LENGTHS, "pattern", "allOf", "format"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
    "array": _ITEMS,
    "object": {"properties", "required", "additionalProperties"},
}
# Deeper values are JSON even where calls are written as in Python.
MAX_DEPTH = 4
MAX_BYTES = 256 * 1024


class NotationWriter:
    """Writes the arguments of one function, in rules that are named ``prefix`` and a number.

    ``string_mark`` stands on both sides of a string.  It is empty for Python, where values may be JSON as well and
    objects always are.  With marks, free strings are the terminal ``STRING``, which the frame must define.
    """

    def __init__(self, lark: FrameWriter, prefix: str, string_mark: str, loose: Looseness) -> None:
        self._lark, self._prefix, self._mark, self._loose = lark, prefix, string_mark, loose
        self._n_rules = self._size = 0
        self._definitions: Mapping[str, object] = {}
        self._rules: dict[str, str] = {}

    def arguments(self, parameters: Mapping[str, object], *, strict: bool) -> str:
        """Return Lark for the arguments with commas between them.

        Args:
            parameters: The schema of an object.
            strict: If false, arguments may have any value.

        Raises:
            UnsupportedError: The notation cannot express a keyword, and that is not allowed to be loose.
        """
        if strict:
            listed, self._definitions = listed_arguments(parameters, self._loose)
        else:
            properties = parameters.get("properties", {})
            names = properties if isinstance(properties, Mapping) else {}
            listed = [(key, True, False) for key in names if is_key(key)]
        return self._members(listed, is_top=True)

    def _rule(self, body: str) -> str:
        self._n_rules += 1
        self._size += len(body.encode("utf-8", "replace"))
        if self._size > MAX_BYTES:
            raise RequestError(f"[tools] the grammar of a tool's arguments has more than {MAX_BYTES} bytes")
        name = f"{self._prefix}{self._n_rules}"
        self._lark.rule(name, body)
        return name

    def _members(self, listed: Sequence[tuple[str, object, bool]], *, is_top: bool = False) -> str:
        """Return Lark for members in their order, with commas only between members that are present."""
        sign, comma = (":", '","') if self._mark else ("=", '", "')
        if self._mark:  # templates with marks sort keys
            listed = sorted(listed, key=lambda member: member[0].lower())
        parts = []
        for key, schema, required in listed:
            if schema is False and not required:
                continue
            check_key(key)
            value = self._loosely(key, schema) if is_top else self._value(key, schema)
            parts.append((self._rule(f"{lark_string(key + sign)} {value}"), required))
        # From the last to the first: what follows after some members (behind), and at the beginning (first).
        behind, first = "", ""
        for rule, required in reversed(parts):
            start = f"{rule} {behind}"
            if required:
                first = self._rule(start)
            elif first:
                first = self._rule(f"{start} | {first}")
            else:
                first = self._rule(f"({start})?")
            more = f"({comma} {rule})"
            behind = self._rule(f"{more if required else more + '?'} {behind}")
        return first

    def _loosely(self, key: str, schema: object) -> str:
        """Return Lark for a value of a schema, or for any value if the notation cannot express the schema."""
        try:
            return self._value(key, schema)
        except UnsupportedError:
            if not self._loose.is_allowed:
                raise
            self._loose.note("properties", key)
            return self._value(key, True)

    def _value(self, key: str, schema: object, depth: int = 0) -> str:
        return self._marked(key, schema) if self._mark else self._python(key, schema, depth)

    # Python

    def _python(self, key: str, schema: object, depth: int) -> str:
        schema = followed(schema, self._definitions)
        if not isinstance(schema, Mapping) and schema is not True:
            raise UnsupportedError(f"[json_schema] the argument {key!r} allows no value")
        said = {} if schema is True else without_annotations(schema)
        if not said:
            return json_lark(ANY_VALUE)
        if said.get("type") == "array" and said.keys() <= {"type", *_ITEMS} and depth < MAX_DEPTH:
            return self._list(said, self._value(key, said.get("items", True), depth + 1), '", "')
        if said.keys() == {"anyOf"} and depth < MAX_DEPTH:
            return self._rule(" | ".join(self._python(key, option, depth + 1) for option in said["anyOf"]))
        whole = {**said, **self._definitions}
        check_references(key, whole)
        options = [json_lark(without_marks(key, whole)), *_python_forms(said)]
        return f"({' | '.join(options)})"

    def _list(self, said: Mapping[str, Any], item: str, comma: str) -> str:
        least, most = said.get("minItems", 0), said.get("maxItems")
        if most is not None and least > most:
            raise UnsupportedError(f"[json_schema] minItems {least} is more than maxItems {most}")
        if most == 0:
            return '"[]"'
        more = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        inner = f"{item} ({comma} {item}){more}"
        return self._rule(f'"[" {inner if least else f"({inner})?"} "]"')

    # Strings between marks

    def _marked(self, key: str, schema: object) -> str:
        if schema is True:
            return self._any()
        if not isinstance(schema, Mapping):
            raise UnsupportedError(f"[json_schema] the argument {key!r} allows no value")
        said = without_annotations(schema)
        if not said:
            return self._any()
        if said.keys() == {"$ref"}:
            return self._defined(key, said["$ref"])
        if said.keys() == {"anyOf"}:
            return self._rule(" | ".join(self._marked(key, option) for option in said["anyOf"]))
        if "enum" in said or "const" in said:
            return self._listed_values(key, said)
        kind = said.get("type")
        kinds = [kind] if isinstance(kind, str) else kind
        known = set().union(*(_KEYWORDS[name] for name in kinds)) if isinstance(kinds, list) else set()
        if not isinstance(kinds, list) or said.keys() - known - {"type"}:
            names = ", ".join(sorted(said.keys() - known)) or "nothing"
            raise UnsupportedError(f"[json_schema] the argument {key!r} cannot be held to {names} in its format")
        if "allOf" in said and all_patterns(said) is None:
            raise UnsupportedError(f"[json_schema] the argument {key!r} cannot be held to allOf in its format")
        if "format" in said and "string" in kinds:
            self._loose.note("properties", key, "format")
        return self._rule(" | ".join(self._of_type(key, name, said) for name in kinds))

    def _defined(self, key: str, reference: str) -> str:
        """Return a rule for a definition, which may contain itself."""
        if reference not in self._rules:
            schema = followed({"$ref": reference}, self._definitions)
            if isinstance(schema, Mapping) and "$ref" in schema:
                raise UnsupportedError(f"[json_schema] '$ref' in the argument {key!r} leads outside $defs")
            self._n_rules += 1
            self._rules[reference] = f"{self._prefix}{self._n_rules}"
            self._lark.rule(self._rules[reference], self._marked(key, schema))
        return self._rules[reference]

    def _any(self) -> str:
        """Return a rule for any value."""
        if "" not in self._rules:
            self._n_rules += 1
            name = self._rules[""] = f"{self._prefix}{self._n_rules}"
            plain = [self._of_type("", kind, {}) for kind in _TYPES[:5]]
            values = [self._list({}, name, '","'), self._map(name)]
            self._lark.rule(name, " | ".join([*plain, *values]))
        return self._rules[""]

    def _map(self, value: str) -> str:
        member = f'{_WORD_LARK} ":" {value}'
        return self._rule(f'"{{" ({member} ("," {member})*)? "}}"')

    def _listed_values(self, key: str, said: Mapping[str, Any]) -> str:
        values = said.get("enum", [said.get("const")])
        if said.keys() - {"type", "enum", "const"} or said.keys() >= {"enum", "const"}:
            raise UnsupportedError(f"[json_schema] the argument {key!r} cannot be held to enum and more in its format")
        kind = said.get("type", list(_TYPES))
        kinds = {kind} if isinstance(kind, str) else set(kind)
        texts = []
        for value in values:
            if isinstance(value, str) and "<" not in value and "string" in kinds:
                mark = self._lark.mark(self._mark)
                texts.append(" ".join(filter(None, [mark, lark_string(value) if value else "", mark])))
            elif value is None and "null" in kinds:
                texts.append('"null"')
            elif isinstance(value, bool) and "boolean" in kinds:
                texts.append('"true"' if value else '"false"')
            elif isinstance(value, int) and not isinstance(value, bool) and kinds & {"integer", "number"}:
                texts.append(lark_string(str(value)))
            else:
                raise UnsupportedError(
                    f"[json_schema] the argument {key!r} cannot be held to {value!r:.40} in its format"
                )
        return self._rule(" | ".join(texts))

    def _of_type(self, key: str, kind: str, said: Mapping[str, Any]) -> str:
        if kind in ("integer", "number"):
            return json_lark({**BOUND, "type": kind, **{k: said[k] for k in _KEYWORDS[kind] if k in said}})
        if kind == "string":
            return self._string(said)
        if kind == "array":
            return self._list(said, self._marked(key, said.get("items", True)), '","')
        return self._object(key, said) if kind == "object" else _WORDS[kind]

    def _string(self, said: Mapping[str, Any]) -> str:
        mark = self._lark.mark(self._mark)
        if not said.keys() & {*_LENGTHS, "pattern", "allOf"}:
            return f"{mark} {self._lark.mark(self._mark, before='STRING')}"
        self._n_rules += 1
        name = f"{self._prefix}TEXT_{self._n_rules}".upper()
        text = (f"[^<]{_lengths(said)}", *(all_patterns(said) or ()))
        self._lark.rule(name, " & ".join(map(lark_regex, text)))
        return f"{mark} {name} {mark}"

    def _object(self, key: str, said: Mapping[str, Any]) -> str:
        others = said.get("additionalProperties", True)
        if not said.get("properties") and not said.get("required"):
            return '"{}"' if others is False else self._map(self._marked(key, others))
        listed, _ = listed_arguments({**said, "type": "object"}, Looseness())
        return f'"{{" {self._members(listed)} "}}"'


def _lengths(said: Mapping[str, Any]) -> str:
    return f"{{{said.get('minLength', 0)},{said.get('maxLength', '')}}}"


def _python_forms(said: Mapping[str, Any]) -> list[str]:
    """Return Lark for values that Python writes differently from JSON."""
    kind = said.get("type")
    kinds = {kind} if isinstance(kind, str) else set(kind or ())
    found = []
    if "enum" in said or "const" in said:
        values = said.get("enum", [said.get("const")])
        if said.keys() - {"type", "enum"} and said.keys() != {"const"}:
            return []
        return [
            lark_string(f"'{value}'" if isinstance(value, str) else str(value))
            for value in values
            if _is_python(value, kinds)
        ]
    if "string" in kinds and said.keys() <= {"type", *_LENGTHS}:
        found.append(rf"/'[^'\\<\n]{_lengths(said)}'/")
    if said.keys() == {"type"}:
        found += ['"True"', '"False"'] if "boolean" in kinds else []
        found += ['"None"'] if "null" in kinds else []
    return found


def _is_python(value: object, kinds: set[str]) -> bool:
    """Return whether Python writes a listed value differently from JSON and it has one of the types (if any)."""
    if isinstance(value, str):
        return re.search(r"['\\<\n]", value) is None and (not kinds or "string" in kinds)
    return (value is None or isinstance(value, bool)) and (not kinds or _KIND_OF[value] in kinds)
