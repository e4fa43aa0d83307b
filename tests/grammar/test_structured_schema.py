"""JSON Schemas: some are refused, and answers to the others are valid.

Oracle: the ``jsonschema`` package (tests/support/structured_schemas.py) on answers of a model with random weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from grammar_texts import allows, compiler
from quire.engine import LLM
from quire.errors import RequestError, UnsupportedError
from quire.grammar import check_schema, grammar_source
from quire.grammar.schema import enforceable
from quire.params.sampling import SamplingParams
from quire.params.structured import StructuredOutputsParams

pytest.importorskip("jsonschema")
from structured_schemas import MAKERS, complaint, make_schemas
from tiny_checkpoints import write_checkpoint

# Keywords that change which documents are valid and cannot be enforced.
REFUSED: dict[str, dict[str, object]] = {
    "not": {"not": {"type": "null"}}, "if": {"if": {"type": "null"}, "then": {"const": None}},
    "contains": {"contains": {"type": "null"}}, "uniqueItems": {"uniqueItems": True},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}}, "dependentSchemas": {"dependentSchemas": {"a": {}}},
    "dependencies": {"dependencies": {"a": ["b"]}}, "propertyNames": {"propertyNames": {"not": {"const": "a"}}},
}  # fmt: skip
# Keywords without effect here, or without effect on validity.
IDLE = {
    "not": False, "if": True, "then": True, "else": True, "minContains": 1, "maxContains": 2, "uniqueItems": False,
    "additionalItems": False, "propertyNames": True,
    "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}, "contentEncoding": "base64",
    "contentMediaType": "text/html", "contentSchema": {"not": 1}, "$anchor": "a", "$dynamicAnchor": "a",
    "$recursiveAnchor": True, "$vocabulary": {}, "id": "x", "$id": "x", "nullable": False, "discriminator": {},
    "x-foo": 1, "x-guidance": {"lenient": True}, "title": 1, "examples": [{"not": 1}], "example": 1, "xml": {},
    "externalDocs": {}, "deprecated": True, "readOnly": True, "$comment": "a", "default": {"$ref": "#/nowhere"},
    "$schema": "https://spec.openapis.org/oas/3.1/dialect/base", "definitions": {"a": {"not": {}}},
}  # fmt: skip
UNKNOWN = {"extends": {}, "disallow": "string", "divisibleBy": 3, "requierd": ["a"], "": 1}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder: Path = tmp_path_factory.mktemp("random") / "qwen3"
    write_checkpoint(folder, "qwen3")
    with LLM(folder, threads=1, n_ctx=256) as model:
        yield model


def check(schema: object) -> None:
    check_schema(json.loads(json.dumps(schema)))


PLACES = ["top", "property", "items", "ref", "anyOf"]


def wrapped(schema: dict[str, object], place: str) -> dict[str, object]:
    return {
        "top": schema,
        "property": {"properties": {"a": schema}},
        "items": {"items": {"prefixItems": [True, schema]}},
        "ref": {"$ref": "#/default/0", "default": [schema]},  # not a place where schemas are expected
        "anyOf": {"anyOf": [{"type": "null"}, {"additionalProperties": schema}]},
    }[place]


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize("place", PLACES)
def test_keywords_that_cannot_be_enforced_are_refused_by_name(keyword, place):
    with pytest.raises(UnsupportedError, match=r"#/") as caught:
        check(wrapped(REFUSED[keyword], place))
    assert repr(keyword) in str(caught.value)


@pytest.mark.parametrize("keyword", IDLE)
@pytest.mark.parametrize("place", PLACES)
def test_keywords_without_effect_change_nothing(keyword, place):
    plain: dict[str, object] = {"type": "string", "maxLength": 2}
    found = enforceable(wrapped({**plain, keyword: IDLE[keyword]}, place))
    assert found == enforceable(wrapped(plain, place))
    assert found.notes == ()


@pytest.mark.parametrize("keyword", UNKNOWN)
@pytest.mark.parametrize("place", PLACES)
def test_unknown_keywords_are_ignored_and_noted(keyword, place):
    plain: dict[str, object] = {"type": "string"}
    found = enforceable(wrapped({**plain, keyword: UNKNOWN[keyword]}, place))
    assert found.schema == enforceable(wrapped(plain, place)).schema
    (note,) = found.notes
    assert note.startswith("json_schema#/")
    assert note.endswith(f"/{keyword}")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"$ref": "https://example.com/s.json"}, "https://example.com/s.json"),
        ({"minProperties": 2}, "'minProperties' at #/ .* the 0 required"),
        ({"const": [{"a": 2**53 + 1}]}, "#/const: integer 9007199254740993"),
        ({"type": "integer", "minimum": 2**64}, "#/minimum: bound 18446744073709551616"),
        ({"minLength": 2**40}, "#/minLength: 1099511627776"),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, "'uniqueItems' at #/"),
        ({"multipleOf": 1e-12}, "'multipleOf' 1e-12"),
        ({"enum": ["x" * 20_000]}, "#/enum: a string of more than 16384 bytes"),
    ],
)
def test_values_that_cannot_be_enforced(schema, value):
    with pytest.raises(UnsupportedError, match=value):
        check(schema)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ([], "#/"),
        ({"items": 3}, "#/items: .* 3"),
        ({"properties": []}, "#/properties"),
        ({"properties": {"a/b": None}}, "#/properties/a~1b"),
        ({"anyOf": []}, "#/anyOf"),
        ({"type": "text"}, "#/type: .*'text'"),
        ({"type": []}, "#/type"),
        ({"minLength": -1}, "#/minLength: .* -1"),
        ({"minLength": 1.5}, "#/minLength: .* 1.5"),
        ({"minimum": True}, "#/minimum: .* True"),
        ({"multipleOf": 0}, "#/multipleOf: .* 0"),
        ({"required": "a"}, "#/required"),
        ({"required": True}, "#/required"),
        ({"enum": []}, "#/enum"),
        ({"pattern": 3}, "#/pattern"),
        ({"uniqueItems": "yes"}, "#/uniqueItems: .*'yes'"),
        ({"$ref": "#/$defs/a"}, "#/\\$ref: .*'#/\\$defs/a'"),
        ({"$ref": "#name"}, "#/\\$ref: .*'#name'"),
        ({"$ref": "#/enum/x", "enum": [1]}, "#/\\$ref"),
        ({"$ref": "#"}, "#/: .*itself"),
        ({"allOf": [{"$ref": "#"}], "type": "object"}, "itself"),
        ({"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "itself"),
    ],
)
def test_malformed_schemas_are_refused(schema, place):
    with pytest.raises(RequestError, match=place):
        check(schema)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string", "pattern": "(?=a)b"}, UnsupportedError),
        ({"patternProperties": {"^a": {}, "a$": {}}}, UnsupportedError),
        (
            {"type": "object", "properties": {"a": {}}, "additionalProperties": True, "maxProperties": 3},
            UnsupportedError,
        ),
        ({"type": "string", "pattern": "("}, RequestError),
        ({"type": "string", "minLength": 3, "maxLength": 2}, RequestError),
        ({"type": "integer", "minimum": 5, "maximum": 4}, RequestError),
        ({"const": 1, "type": "string"}, RequestError),
        (False, RequestError),
    ],
)
def test_refusals_of_the_compiler_are_typed(schema, kind):
    with pytest.raises(kind):
        compiler().compile(grammar_source(StructuredOutputsParams(json=schema)))


def test_properties_may_be_named_like_keywords():
    check({"properties": {"not": {"type": "null"}, "uniqueItems": True}, "$defs": {"if": {}}, "enum": [{"not": 1}]})
    named = {"const": {"type": "integer"}, "$ref": {"type": "integer"}, "$id": {"type": "integer"}}
    form = StructuredOutputsParams(json={"type": "object", "properties": named, "required": ["$ref", "$id"]})
    assert allows(form, '{"const": 1, "$ref": 2, "$id": 3}')
    assert not allows(form, '{"const": "a", "$ref": 2, "$id": 3}')


def test_no_escaped_keys():
    """A free key that repeats a declared one with escapes would replace a checked value."""
    form = StructuredOutputsParams(
        json={"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": True}
    )
    assert allows(form, '{"a": 1, "b": "x"}')
    assert not allows(form, '{"\\u0061": "x"}')
    assert not allows(form, '{"b": 1, "a": "x"}')
    assert not allows(form, '{"a": 1, "a": "x"}')


def test_email_addresses_have_short_labels():
    """RFC 5321 and RFC 1035, for schemas anywhere that a reference leads."""
    label = "a" * 63
    good = ["a@b", "a.b+c@x-y.example", f"x@{label}.{label}.{label}.{label}", "o'neil@a.b"]
    bad = ["a", "@b", "a@", "a@-b", "a@b-", "a..b@c", f"x@{label}a", "a b@c", "a@b@c"]
    for schema in (
        {"format": "email", "type": "string"},
        {"$ref": "#/default/0", "default": [{"format": "email", "type": "string"}]},
        {"type": "string", "anyOf": [{"format": "email"}, {"format": "email", "pattern": "x"}]},
    ):
        form = StructuredOutputsParams(json=schema)
        assert all(allows(form, f'"{text}"') for text in good), schema
        assert not any(allows(form, f'"{text}"') for text in bad), schema
    named = StructuredOutputsParams(json={"const": {"format": "email"}})
    assert allows(named, '{"format": "email"}')
    inside = StructuredOutputsParams(grammar='start: "<" %json {"type": "string", "format": "email"} ">"')
    assert allows(inside, f'<"{good[1]}">')
    assert not allows(inside, f'<"x@{label}a">')


def test_white_space():
    schema = {"type": "array", "items": {"type": "integer"}}
    for options, allowed, refused in [
        ({}, ["[1]", "[ 1,\n  2 ]", "[" + " " * 32 + "1]"], [" [1]", "[1] ", "[" + " " * 33 + "1]"]),
        ({"disable_any_whitespace": True}, ["[1,2]"], ["[1, 2]"]),
        ({"whitespace_pattern": " ?"}, ["[1, 2]"], ["[1,  2]", "[1,\n2]"]),
    ]:
        form = StructuredOutputsParams(json=schema, **options)
        assert all(allows(form, text) for text in allowed)
        assert not any(allows(form, text) for text in refused)


def test_the_oracle_rejects_wrong_answers():
    """If every answer were valid, the tests below would show nothing."""
    no = 'p{"a" 1, []'
    n_valid = 0
    for schema in make_schemas(len(MAKERS)):
        assert complaint(schema, no) is not None
        n_valid += complaint(schema, "{}") is None
    assert 0 < n_valid < len(MAKERS) / 2


def invalid_answers(model: LLM, n: int, stride: int, max_tokens: int) -> tuple[list[object], int]:
    """Return errors in the answers to every ``stride``-th of ``n`` schemas, and the number of complete answers."""
    schemas = list(make_schemas(n))[::stride]
    params = [
        SamplingParams(
            max_tokens=max_tokens, temperature=1.0, seed=i, structured_outputs=StructuredOutputsParams(json=schema)
        )
        for i, schema in enumerate(schemas)
    ]
    answers = model.generate(["JSON: "] * len(schemas), params)
    complete = [
        (schema, answer.text) for schema, answer in zip(schemas, answers, strict=True) if answer.finish_reason == "stop"
    ]
    complaints = [
        (schema, text, reason) for schema, text in complete if (reason := complaint(schema, text)) is not None
    ]
    return complaints, len(complete)


def test_random_weights_answer_within_their_schemas(random_model):
    complaints, n_complete = invalid_answers(random_model, 300, 5, 120)
    assert complaints == []
    assert n_complete >= 20  # 60 in all; the others were cut at max_tokens


@pytest.mark.slow
def test_the_packages_model_answers_within_300_schemas():
    with LLM(threads=1, n_ctx=512) as model:
        complaints, n_complete = invalid_answers(model, 300, 1, 200)
    assert complaints == []
    assert n_complete >= 200
