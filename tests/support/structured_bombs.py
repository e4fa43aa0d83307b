"""Malicious forms of answers: deep, wide, exponential, endless."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["BOMBS"]


def _nested(keyword: str, depth: int) -> str:
    return f'{{"{keyword}":' * depth + "{}" + "}" * depth


def _doubled(n: int) -> dict[str, Any]:
    """Return definitions that each use the previous one twice."""
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for i in range(n):
        ref = {"$ref": f"#/$defs/d{i}"}
        defs[f"d{i + 1}"] = {"type": "object", "properties": {"a": ref, "b": ref}, "required": ["a", "b"]}
    return {"$defs": defs, "$ref": f"#/$defs/d{n}"}


def _met(n: int) -> dict[str, Any]:
    """Return alternatives that must all hold."""
    return {"allOf": [{"anyOf": [{"pattern": f"a{i}"}, {"pattern": f"b{i}"}], "type": "string"} for i in range(n)]}


WIDE = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(5000)}}

# Fields of StructuredOutputsParams, by name.
BOMBS: dict[str, dict[str, Any]] = {
    "deep items": {"json": _nested("items", 30_000)},
    "deep items within limits": {"json": _nested("items", 60)},
    "deep not": {"json": _nested("not", 50)},
    "long string": {"json": {"type": "string", "minLength": 100_000, "maxLength": 200_000}},
    "long array": {"json": {"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 200_000}},
    "endless counts": {"json": {"type": "string", "minLength": 10**15}},
    "many items": {"json": {"type": "array", "items": {"enum": ["a"]}, "minItems": 10**15}},
    "pattern of a count": {"json": {"type": "string", "pattern": "^.{0,100000}$"}},
    "pattern of counts": {"json": {"type": "string", "pattern": "^((a{0,100}){0,100}){0,100}$"}},
    "nested quantifiers": {"json": {"type": "string", "pattern": "^(a+)+b$"}},
    "exponential pattern": {"json": {"type": "string", "pattern": "^(.*a.{200}|.*b.{200})c$"}},
    "patterns that meet": {"json": _met(16)},
    "pattern and length": {"json": {"type": "string", "pattern": "^(.*[0-9].*[a-z].*)+$", "maxLength": 20_000}},
    "formats and length": {"json": {"type": "string", "format": "email", "minLength": 3000, "maxLength": 9000}},
    "enum of 10000": {"json": {"enum": [f"value {i} {'x' * (i % 7)}" for i in range(10_000)]}},
    "enum of lists": {"json": {"enum": [[i, {"a": i}] for i in range(5000)]}},
    "5000 properties": {"json": WIDE},
    "5000 required": {"json": {**WIDE, "required": list(WIDE["properties"]), "additionalProperties": False}},
    "5000 free keys": {"json": {"patternProperties": {f"^k{i}$": {"type": "null"} for i in range(5000)}}},
    "a mebibyte": {"json": {"enum": ["x" * (1 << 20)]}},
    "endless reference": {"json": {"$ref": "#"}},
    "references in a ring": {"json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
    "object that needs itself": {"json": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}},
    "doubled references": {"json": _doubled(40)},
    "all of all": {"json": {"allOf": [{"properties": {f"p{i}": {"anyOf": [True, {"type": "null"}]}}} for i in range(500)]}},
    "product of alternatives": {"json": {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(1, 40)]}},
    "one of many": {"json": {"oneOf": [{"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]} for i in range(1500)]}},
    "multiples": {"json": {"allOf": [{"type": "integer", "multipleOf": n} for n in (9973, 9967, 9949)]}},
    "fine multiples": {"json": {"type": "number", "multipleOf": 1e-9, "minimum": 0, "maximum": 1}},
    "huge limits": {"json": {"type": "integer", "minimum": -(2**53), "maximum": 2**53 - 1, "multipleOf": 19_997}},
    "regex of a count": {"regex": "(?:[a-z]{0,1000}){0,1000}"},
    "regex of counts": {"regex": "((a{1,50}){1,50}){1,50}"},
    "deep regex": {"regex": "(" * 8000 + "a" + ")" * 8000},
    "wide regex": {"regex": "|".join(f"[a-z]{{{i % 40}}}x{i}" for i in range(2500))},
    "exponential regex": {"regex": ".*a.{2000}"},
    "unicode regex": {"regex": r"(\w{1,50}\W{1,50}\d{1,50}\s?){1,200}"},
    "choices": {"choice": [f"{i:05d}" * 3 for i in range(16_384)]},
    "long choices": {"choice": ["ab" * 7000 + str(i) for i in range(16)]},
    "30000 brackets": {"grammar": "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000},
    "left recursion": {"grammar": 'root ::= root "a" | "a"'},
    "hidden left recursion": {"grammar": 'root ::= e root "a" | "a"\ne ::= ""'},
    "no end": {"grammar": 'root ::= "a" root'},
    "counted counts": {"grammar": 'root ::= ((("a"{0,1000}){0,1000}){0,1000}){0,1000}'},
    "ambiguous": {"grammar": 'root ::= (root root) | "a" | "a"*'},
    "ambiguous lark": {"grammar": 'start: start start start | start start | "a" |'},
    "many rules": {"grammar": "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} "x" | r{i + 1}\n' for i in range(4000)) + 'r4000 ::= "a"'},
    "terminals in each other": {"grammar": "start: T0\n" + "".join(f"T{i}: T{i + 1} T{i + 1}\n" for i in range(40)) + 'T40: "a"'},
    "negations": {"grammar": "start: T\nT: " + " & ".join(f"~(/.*{a}.{{20}}/)" for a in "abcdefghij")},
    "schema in lark": {"grammar": "start: %json " + json.dumps(_met(14))},
}  # fmt: skip
