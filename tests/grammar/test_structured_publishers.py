"""Schemas as published libraries generate them are accepted, and every answer is valid.

Oracle: ``jsonschema`` on random walks through the grammars, with the draft of each schema.
"""

from __future__ import annotations

import json
import random
import time
from typing import Any

import numpy as np
import pytest
from grammar_texts import EOG, N_VOCAB, allows, bits, compiler
from quire.errors import RequestError, UnsupportedError
from quire.grammar import grammar_source
from quire.params.structured import StructuredOutputsParams

jsonschema = pytest.importorskip("jsonschema")

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}


def record(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required}


CAT = record(kind={"const": "cat", "type": "string"}, n=TEXT)
DOG = record(kind={"const": "dog", "type": "string"}, n=TEXT)
NODE = record(["v"], v=INTEGER, children={"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []})
DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
BASE = {"$defs": {"Base": record(id=INTEGER)}}

# name: (schema, values that it allows, values that it refuses)
KINDS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    # Pydantic
    "discriminated union": (
        {
            "$defs": {"Cat": CAT, "Dog": DOG},
            "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}},
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        },
        ['{"kind":"dog","n":"x"}'],
        ['{"kind":"cow","n":"x"}', '{"kind":"cat"}', '{"kind":"cat","n":"x","z":1}'],
    ),
    "recursive model": (
        {"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"},
        ['{"v":1}', '{"v":1,"children":[{"v":2,"children":[]}]}'],
        ['{"v":1,"children":[{}]}', '{"v":1,"w":1}'],
    ),
    "extra allowed": ({**record(a=INTEGER), "additionalProperties": True}, ['{"a":1,"z":[null]}'], ['{"z":1}']),
    "keys of an enum": (
        {
            "$defs": {"E": {"enum": ["a", "b"], "type": "string"}},
            "additionalProperties": INTEGER, "propertyNames": {"$ref": "#/$defs/E"}, "type": "object",
        },
        ["{}", '{"b":1}', '{"a":1,"b":2}'],
        ['{"c":1}', '{"a":"x"}'],
    ),
    "keys of a length": (
        {"additionalProperties": INTEGER, "propertyNames": {"maxLength": 2}, "type": "object"},
        ['{"ab":1}', '{"é":1}'],
        ['{"abc":1}'],
    ),
    "set of a few": (
        {"type": "array", "items": {"enum": ["a", "b"], "type": "string"}, "uniqueItems": True},
        ["[]", '["b","a"]'],
        ['["a","a"]'],
    ),
    "named tuple": (
        {"type": "array", "prefixItems": [INTEGER, TEXT], "minItems": 2, "maxItems": 2}, ['[1,"x"]'], ["[1]"],
    ),
    "decimal": (
        {"anyOf": [{"exclusiveMinimum": 0.0, "multipleOf": 0.01, "type": "number"}, TEXT]}, ["0.01", '"x"'], ["0.001"],
    ),
    "any or null": ({"anyOf": [{}, {"type": "null"}]}, ["null", '{"a":[1]}'], []),
    # Zod
    "int64": (
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        ["9223372036854775807", "-9223372036854774784"],
        ["9223372036854775808", "-9223372036854775809", "1.5"],
    ),
    "float32": (
        {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
        ["-1.5", "9223372036854774784"], [],
    ),
    "tuple without an end": (
        {**DRAFT, "type": "array", "prefixItems": [TEXT, INTEGER]}, ['["x",1]'], ["[]", '["x"]', '["x",1,2]'],
    ),
    "tuple with a rest": (
        {**DRAFT, "type": "array", "prefixItems": [TEXT], "items": INTEGER}, ['["x"]', '["x",1,2]'], ['["x","y"]'],
    ),
    "record": (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": TEXT},
        ['{"a":"b"}'], ['{"a":1}'],
    ),
    "record of patterned keys": (
        {"type": "object", "propertyNames": {"type": "string", "pattern": r"^k\d$"}, "additionalProperties": TEXT},
        ['{"k1":"b"}'], ['{"a":"b"}'],
    ),
    "never": (record(["b"], a={"not": {}}, b=TEXT), ['{"b":"x"}'], ['{"a":1,"b":"x"}']),
    "lookahead": (
        {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d).{4,8}$"}, ['"abC1"'], ['"abcd"', '"ABCD"', '"A1"'],
    ),
    "starts and ends": (
        {"type": "string", "format": "ends_with", "allOf": [{"pattern": "^a.*"}, {"pattern": ".*z$"}]},
        ['"az"'], ['"ab"'],
    ),
    # schemars
    "internally tagged": (
        {"oneOf": [record(type={"const": "A"}, x=INTEGER), record(type={"const": "B"})]},
        ['{"type":"A","x":1}', '{"type":"B"}'], ['{"type":"B","x":1}', '{"type":"A"}'],
    ),
    "externally tagged": (
        {"oneOf": [
            {"type": "string", "enum": ["A", "B"]},
            {"type": "object", "properties": {"D": INTEGER}, "required": ["D"], "additionalProperties": False},
        ]},
        ['"A"', '{"D":1}'], ['"D"', "{}"],
    ),
    "flattened enum": (
        {**record(kind=TEXT), "oneOf": [record(a=INTEGER), record(b=INTEGER)]},
        ['{"kind":"x","a":1}', '{"kind":"x","b":1}'],
        ['{"kind":"x"}', '{"kind":"x","a":1,"b":1}', '{"kind":"x","a":1,"q":1}', '{"a":1}'],
    ),
    # OpenAPI
    "inheritance": (
        {**BASE, "allOf": [{"$ref": "#/$defs/Base"}, record(name=TEXT)]},
        ['{"id":1,"name":"x"}'], ['{"id":1}', '{"id":1,"name":"x","z":1}'],
    ),
    "inheritance beside properties": (
        {**BASE, "type": "object", "allOf": [{"$ref": "#/$defs/Base"}], "properties": {"name": TEXT}},
        ['{"id":1,"name":"x"}', '{"id":1}'], ['{"id":1,"z":1}'],
    ),
    "one of two keys": (
        {**record([], a=INTEGER, b=INTEGER), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"a":1,"b":1}'], ["{}", '{"a":1,"c":1}'],
    ),
    "one key or the other": (
        {**record(["c"], a=INTEGER, b=INTEGER, c=INTEGER), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1,"c":1}', '{"b":1,"c":1}'], ['{"c":1}', '{"a":1,"b":1,"c":1}'],
    ),
    "at least one key": ({**record([], a=INTEGER, b=INTEGER), "minProperties": 1}, ['{"b":1}'], ["{}"]),
    "exactly one key": (
        {**record([], a=INTEGER, b=INTEGER, c=INTEGER), "minProperties": 1, "maxProperties": 1},
        ['{"b":1}'], ["{}", '{"a":1,"c":1}'],
    ),
    "old tuple": (
        {"type": "array", "items": [INTEGER, TEXT], "additionalItems": INTEGER}, ['[1,"x",1]'], ['[1,"x","x"]'],
    ),
    # JSON Schema itself
    "anchors": (
        {"$defs": {"x": {"$anchor": "ten", "type": "integer"}}, "type": "object", "properties": {"a": {"$ref": "#ten"}}},
        ['{"a":1}'], ['{"a":"x"}'],
    ),
    "identifiers": (
        {
            "$id": "https://example.com/s", "$defs": {"x": {"$id": "item", "type": "integer"}}, "type": "object",
            "properties": {"a": {"$ref": "item"}, "b": {"$ref": "https://example.com/s#/$defs/x"}},
        },
        ['{"a":1,"b":2}'], ['{"a":"x"}', '{"b":"x"}'],
    ),
    "dynamic references": (
        {
            "$dynamicAnchor": "node", "type": "object",
            "properties": {"v": INTEGER, "c": {"type": "array", "items": {"$dynamicRef": "#node"}}},
        },
        ['{"v":1,"c":[{"v":2}]}'], ['{"c":[{"v":"x"}]}'],
    ),
    "itself, and more": (
        {"$defs": {"n": record([], v=INTEGER, c={"allOf": [{"$ref": "#/$defs/n"}, {"required": ["v"]}]})},
         "$ref": "#/$defs/n"},
        ['{"c":{"v":2,"c":{"v":3}}}'], ['{"c":{}}'],
    ),
    "unevaluated": (
        {"allOf": [record(a=INTEGER), {"anyOf": [record(b=INTEGER), record(c=INTEGER)]}], "unevaluatedProperties": TEXT},
        ['{"a":1,"b":1,"z":"x"}'], ['{"a":1,"b":1,"z":1}', '{"a":1,"z":"x"}'],
    ),
    "counts with a point": ({"type": "array", "items": INTEGER, "minItems": 1.0, "maxItems": 2.0}, ["[1]"], ["[]"]),
}  # fmt: skip
OLDER = {"old tuple": jsonschema.Draft7Validator}


def walk(schema: dict[str, Any], seed: int, most: int = 120) -> str | None:
    """Return a random text that the grammar allows, preferring ends; None if it becomes too long."""
    draw, text = random.Random(seed), bytearray()
    matcher = compiler().compile(grammar_source(StructuredOutputsParams(json=schema))).matcher()
    mask = np.zeros((N_VOCAB + 31) // 32, np.uint32)
    for _ in range(most):
        matcher.fill(mask)
        allowed = [int(token) for token in np.flatnonzero(bits(mask)) if token < 127 or token == EOG]
        if EOG in allowed and (len(allowed) == 1 or draw.random() < 0.5):
            return text.decode()
        ends = [token for token in allowed if token != EOG and token in b'"}]']
        others = [token for token in allowed if token != EOG and token not in b" \n\r\t\\"] or allowed
        token = draw.choice(ends if ends and draw.random() < (0.4 if len(text) < 60 else 0.9) else others)
        matcher.advance(token)
        text.append(token)
    return None


@pytest.mark.parametrize("name", KINDS)
def test_intended_values_are_allowed(name):
    schema, allowed, refused = KINDS[name]
    form = StructuredOutputsParams(json=schema)
    for text in allowed:
        assert allows(form, text), text
    for text in refused:
        assert not allows(form, text), text


@pytest.mark.python_only  # llguidance computes its masks
@pytest.mark.parametrize("name", KINDS)
def test_every_answer_is_valid(name):
    schema, allowed, _ = KINDS[name]
    validator = OLDER.get(name, jsonschema.Draft202012Validator)(schema)
    texts = [text for seed in range(4) if (text := walk(schema, seed)) is not None]
    for text in [*allowed, *texts]:
        validator.validate(json.loads(text))
    assert texts or name in ("lookahead", "starts and ends")  # values that a walk rarely finds


@pytest.mark.parametrize(
    ("schema", "notes"),
    [
        ({"type": "string", "format": "uri-reference"}, ("json_schema#/format",)),
        (record(a={"type": "integer", "format": "uint32"}), ("json_schema#/properties/a/format",)),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ("json_schema#/oneOf",)),
        ({"oneOf": [record(a=TEXT), record(b=TEXT)]}, ()),
        ({"oneOf": [record(a=TEXT), record([], a=TEXT, b=TEXT)]}, ("json_schema#/oneOf",)),
        ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}, {"type": "null"}]}, ()),
        (
            {"type": "string", "format": "duration", "pattern": r"^P(?!$)(\d+Y)?$"},
            ("json_schema#/pattern",),
        ),
        (record(**{"a, b\r\nc": {"type": "string", "format": "é"}}), ("json_schema#/properties/a%2C%20b%0D%0Ac/format",)),
        ({"type": "object", "propertyNames": {"format": "date"}}, ("json_schema#/propertyNames/format",)),
    ],
)  # fmt: skip
def test_unenforced_keywords_are_noted(schema, notes):
    assert grammar_source(StructuredOutputsParams(json=schema)).notes == notes
    allows(StructuredOutputsParams(json=schema), "1")


def test_openapi_nullable():
    """Schemas of OpenAPI 3.0 name no draft.  A schema that names one has no ``nullable``."""
    inner = {"X": record(a=INTEGER)}
    for schema, text in [
        ({"type": "string", "nullable": True}, '"x"'),
        ({"type": "string", "enum": ["a"], "nullable": True}, '"a"'),
        (
            {"nullable": True, "allOf": [{"$ref": "#/components/schemas/X"}], "components": {"schemas": inner}},
            '{"a":1}',
        ),
        ({"nullable": True, "oneOf": [TEXT, INTEGER]}, "1"),
    ]:
        assert allows(StructuredOutputsParams(json=schema), "null")
        assert allows(StructuredOutputsParams(json=schema), text)
        assert not allows(StructuredOutputsParams(json={**schema, **DRAFT}), "null")
        assert allows(StructuredOutputsParams(json={**schema, **DRAFT}), text)
    assert allows(StructuredOutputsParams(json={"type": "string", "nullable": True, "enum": [None]}), "null")


def test_exclusive_bounds_of_draft_4():
    schema = {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}
    form = StructuredOutputsParams(json=schema)
    assert [allows(form, str(value)) for value in (0, 1, 9, 10)] == [False, True, True, False]


def test_objects_are_closed_by_default():
    more = '{"a":1,"z":1}'
    closed = record(a=INTEGER)
    for schema, is_open in [
        (closed, False),
        ({"properties": {"a": INTEGER}}, False),
        ({**closed, "additionalProperties": False}, False),
        ({**closed, "unevaluatedProperties": False}, False),
        ({**closed, "additionalProperties": True}, True),
        ({**closed, "additionalProperties": {}}, True),
        ({**closed, "additionalProperties": INTEGER}, True),
        ({**closed, "unevaluatedProperties": True}, True),
        ({**closed, "patternProperties": {"^z$": INTEGER}}, True),
        ({"allOf": [closed, {"additionalProperties": True}]}, True),
        ({"anyOf": [closed, {"type": "null"}]}, False),
        ({"type": "object"}, True),
        ({"type": "object", "properties": {}}, False),
        ({"type": "object", "required": ["a"]}, True),
        (True, True),
    ]:
        assert allows(StructuredOutputsParams(json=schema), more) == is_open, schema
    assert allows(StructuredOutputsParams(json_object=True), more)
    assert allows(StructuredOutputsParams(json={**closed, "required": ["a", "z"]}), more)


def test_large_schemas_are_read_fast():
    """Each definition is read once for each set of surrounding keys, and the total is limited."""
    definitions: dict[str, Any] = {
        f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(40)
    }
    wide = [
        {"type": "object", "properties": {f"p{i}": TEXT}, "patternProperties": {f"^x{i}$": TEXT}} for i in range(900)
    ]
    refused: list[dict[str, Any]] = [
        {"$ref": "#/$defs/d0", "$defs": {**definitions, "d40": record(a=INTEGER)}},
        {"allOf": wide},
    ]
    for schema in refused:
        begin = time.process_time()
        with pytest.raises((RequestError, UnsupportedError)):
            grammar_source(StructuredOutputsParams(json=schema))
        assert time.process_time() - begin < 10
    chain: dict[str, Any] = {f"d{i}": record(next={"$ref": f"#/$defs/d{i + 1}"}) for i in range(2000)}
    tagged = [record(k={"const": f"a{i}"}, **{f"p{j}": TEXT for j in range(9)}) for i in range(300)]
    taken: list[dict[str, Any]] = [
        {"$ref": "#/$defs/d0", "$defs": {**chain, "d2000": INTEGER}},
        {"oneOf": tagged},
    ]
    for schema in taken:
        begin = time.process_time()
        assert grammar_source(StructuredOutputsParams(json=schema))
        assert time.process_time() - begin < 10
