"""A rewritten schema allows what the client's does: the validator says so, on random instances."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schema_strategies import DRAFTS, LATEST, documents, instances, schemas

from structgen.errors import ConstraintError, ConstraintTooLarge
from structgen.grammar.schema import (
    LLGUIDANCE,
    OUTLINES,
    XGRAMMAR,
    Dialect,
    Prepared,
    drafts,
    prepare,
)
from structgen.grammar.schema.document import Document

DIALECTS = [LLGUIDANCE, XGRAMMAR, OUTLINES]

thorough = settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def validator(schema: Any) -> Any:
    try:
        return jsonschema_rs.validator_for(schema)
    except jsonschema_rs.ValidationError:  # not a schema, by the letter of its draft
        assume(False)


def rewritten(prepared: Prepared) -> Any:
    """Return a validator of the rewritten schema, whose dialect is that of 2020-12."""
    schema = json.loads(prepared.schema_text)
    return jsonschema_rs.validator_for({**schema, "$schema": LATEST})


def prepared_or_refused(schema: Any, dialect: Dialect) -> Prepared | ConstraintError:
    try:
        return prepare(json.dumps(schema), dialect)
    except ConstraintError as error:
        return error
    except ConstraintTooLarge:
        assume(False)
        raise


def asserting(schema: dict[str, Any]) -> list[str]:
    """Return the keywords of a schema that assert something, by the letter of its draft."""
    draft = Document.of(json.dumps(schema)).draft("")
    hidden = "$ref" in schema and draft.reference_hides_siblings
    return [k for k in schema if drafts.asserts(draft, k) and (k == "$ref" or not hidden)]


def require_agreement(schema: Any, dialect: Dialect, texts: list[Any]) -> None:
    """Require that both allow the same; what is given up may only make the rewritten allow more."""
    original = validator(schema)
    prepared = prepared_or_refused(schema, dialect)
    if isinstance(prepared, ConstraintError):
        assume("defined by itself" not in prepared.message)
        assert not any(original.is_valid(text) for text in texts), prepared.message
        return
    reported = {report.pointer for report in prepared.reports}
    assert {f"/{keyword}" for keyword in asserting(schema)} <= reported
    other = rewritten(prepared)
    for text in texts:
        if prepared.unenforced and not original.is_valid(text):
            continue
        assert other.is_valid(text) == original.is_valid(text), (text, prepared.schema_text)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@thorough
@given(schema=documents(), texts=st.lists(instances, min_size=20, max_size=30))
def test_any_schema_is_rewritten_into_an_equivalent(
    schema: dict[str, Any], dialect: Dialect, texts: list[Any]
) -> None:
    require_agreement(schema, dialect, texts)


STRINGS = ["", "a", "b", "ab", "ba", "x-a", "a\nb", "é"]
NUMBERS = [-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6]
OBJECTS: list[Any] = [
    {name: value for name, value in zip("abk", chosen, strict=True) if value is not None}
    for chosen in [
        *[(a, b, k) for a in (None, 1, "x") for b in (None, 1, "x") for k in (None, "p", "q")]
    ]
]
ARRAYS: list[Any] = [
    *([], [1], ["p"], ["p", "q"], ["p", "p"], ["q", "p", "r"], [1, "p", 1], [1, 2, 3]),
]
EVERYTHING = [None, True, False, *STRINGS, *NUMBERS, *OBJECTS, *ARRAYS]

REQUIRES_A = {"required": ["a"]}
REQUIRES_B = {"required": ["b"]}
AB = {"a": {"type": "integer"}, "b": {"type": "string"}}

# What every rewrite is for; each is enforced in full by the library that refuses the original.
REWRITES: dict[str, dict[str, Any]] = {
    "allOf of objects": {"allOf": [{"properties": AB}, REQUIRES_A, {"additionalProperties": True}]},
    "allOf of bounds": {"type": "number", "allOf": [{"minimum": 0}, {"exclusiveMaximum": 2}]},
    "allOf of items": {"allOf": [{"items": {"type": "string"}}, {"items": {"enum": ["p", 1]}}]},
    "allOf of enumerations": {"allOf": [{"enum": [1, 2, "a"]}, {"enum": [2.0, "a", None]}]},
    "beside $ref": {"$ref": "#/$defs/s", "maxLength": 1, "$defs": {"s": {"type": "string"}}},
    "beside anyOf": {"type": "object", "properties": AB, "anyOf": [REQUIRES_A, REQUIRES_B]},
    "beside enum": {"enum": [1, 2, 3, "a", "ab", None], "minimum": 2, "pattern": "b"},
    "beside const": {"const": {"a": 1}, "type": "object"},
    "oneOf of types": {"oneOf": [{"type": "integer"}, {"type": "string", "minLength": 1}]},
    "oneOf by discriminator": {
        "type": "object",
        "required": ["k"],
        "oneOf": [
            {"properties": {"k": {"const": "p"}}, "required": ["a"]},
            {"properties": {"k": {"const": "q"}}, "required": ["b"]},
        ],
    },
    "oneOf of required": {"type": "object", "properties": AB, "oneOf": [REQUIRES_A, REQUIRES_B]},
    "oneOf of closed objects": {
        "oneOf": [
            {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False},
            {"type": "object", "properties": {"a": {}, "k": {}}, "additionalProperties": False},
        ]
    },
    "oneOf of closed objects that may be empty": {
        "oneOf": [
            {"type": "object", "properties": {name: {}}, "additionalProperties": False}
            for name in "abk"
        ]
    },
    "oneOf of arrays that may be empty": {
        "type": "array",
        "oneOf": [{"items": {"type": "integer"}}, {"items": {"type": "string"}}],
    },
    "not closed": {
        "type": "object",
        "properties": {"a": True, "k": {"type": "string"}},
        "additionalProperties": False,
        "not": {"properties": {"a": {"type": "string"}}, "additionalProperties": False},
    },
    "not of one type": {
        "properties": {"a": True, "k": {"type": "integer"}},
        "additionalProperties": {"type": "string"},
        "not": {"properties": {"a": {"const": 1}}, "additionalProperties": {"type": "string"}},
    },
    "not by pattern": {
        "properties": {"a": True, "b": True, "k": True},
        "additionalProperties": False,
        "not": {"patternProperties": {"^[ab]": {"type": "string"}}},
    },
    "oneOf that overlaps": {"oneOf": [{"type": "integer"}, {"minimum": 1, "type": "integer"}]},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"dependentSchemas": {"a": {"properties": {"b": {"type": "string"}}}}},
    "dependencies": {"$schema": DRAFTS[7], "dependencies": {"a": ["b"], "b": REQUIRES_A}},
    "if then else": {
        "type": "object",
        "if": {"properties": {"k": {"const": "p"}}, "required": ["k"]},
        "then": REQUIRES_A,
        "else": REQUIRES_B,
    },
    "not a type": {"not": {"type": ["string", "object"]}},
    "not an enumeration": {"not": {"enum": ["a", "ab", 1, True, None, [], {"a": 1}]}},
    "not required": {"type": "object", "not": {"required": ["a", "b"]}},
    "not a range": {"type": "integer", "not": {"minimum": 0, "maximum": 1}},
    "not not": {"not": {"not": {"type": "integer"}}},
    "propertyNames that are listed": {"propertyNames": {"enum": ["a", "k"]}},
    "propertyNames by pattern": {"propertyNames": {"pattern": "^[ab]"}},
    "propertyNames by length": {"propertyNames": {"minLength": 2}},
    "propertyNames but for some": {"propertyNames": {"not": {"enum": ["a"]}}},
    "contains in a short array": {"type": "array", "maxItems": 3, "contains": {"const": "p"}},
    "contains what all items are": {"items": {"type": "integer"}, "contains": {"type": "number"}},
    "no item may be": {"contains": {"const": "p"}, "maxContains": 0, "minContains": 0},
    "uniqueItems of few": {"items": {"enum": ["p", "q", "r"]}, "uniqueItems": True},
    "minProperties": {"type": "object", "properties": AB, "minProperties": 1},
    "maxProperties": {"properties": AB, "additionalProperties": False, "maxProperties": 1},
    "both": {"properties": AB, "minProperties": 1, "maxProperties": 2},
    "boolean schemas": {"properties": {"a": True, "b": False}, "items": False},
    "no type": {"minLength": 1, "minimum": 1, "maxItems": 1, "required": ["a"]},
    "array items": {"$schema": DRAFTS[7], "items": [{"const": "p"}], "additionalItems": False},
    "draft 4 bounds": {"$schema": DRAFTS[4], "minimum": 1, "exclusiveMinimum": True},
    "draft within a draft": {
        "$schema": DRAFTS[7],
        "properties": {"a": {"$schema": DRAFTS[4], "const": 1}, "b": {"const": "x"}},
    },
    "$id": {"$id": "http://h/r", "$ref": "s", "$defs": {"x": {"$id": "s", "type": "null"}}},
    "$anchor": {"$ref": "#s", "$defs": {"x": {"$anchor": "s", "type": "boolean"}}},
    "$dynamicRef": {"$dynamicRef": "#s", "$defs": {"x": {"$dynamicAnchor": "s", "type": "null"}}},
    "unevaluatedProperties": {"properties": AB, "unevaluatedProperties": False},
    "unevaluatedProperties beside others": {
        "$ref": "#/$defs/r",
        "$defs": {"r": {"properties": {"a": {"type": "integer"}}}},
        "patternProperties": {"^k": {"type": "string"}},
        "unevaluatedProperties": {"type": "integer"},
    },
    "unevaluatedProperties and branches": {
        "type": "object",
        "anyOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]},
        ],
        "unevaluatedProperties": False,
    },
    "unevaluatedProperties and a condition": {
        "if": {"properties": {"k": {"const": "p"}}, "required": ["k"]},
        "then": {"properties": {"a": True}},
        "else": {"properties": {"b": True}},
        "unevaluatedProperties": False,
    },
    "unevaluatedProperties and dependentSchemas": {
        "properties": {"k": {"type": "string"}},
        "dependentSchemas": {"k": {"properties": {"a": {"type": "integer"}}}},
        "unevaluatedProperties": False,
    },
    "unevaluatedItems": {"prefixItems": [{"type": "string"}], "unevaluatedItems": False},
    "unevaluatedItems and branches": {
        "oneOf": [{"prefixItems": [{"const": 1}]}, {"prefixItems": [{"const": "p"}, True]}],
        "unevaluatedItems": {"const": 2},
    },
    "unevaluatedItems of draft 2019-09": {
        "$schema": DRAFTS[2019],
        "items": [{"const": 1}],
        "unevaluatedItems": {"const": 2},
    },
    "$dynamicRef to no dynamic anchor": {
        "items": {"$dynamicRef": "#/$defs/s"},
        "$defs": {"s": {"$dynamicAnchor": "x", "type": "string"}, "t": {"$dynamicAnchor": "x"}},
    },
    "$dynamicRef that the document overrides": {
        "$id": "http://h/strings",
        "$ref": "list",
        "$defs": {
            "override": {"$dynamicAnchor": "item", "type": "string"},
            "list": {
                "$id": "list",
                "type": "array",
                "items": {"$dynamicRef": "#item"},
                "$defs": {"default": {"$dynamicAnchor": "item"}},
            },
        },
    },
    "$recursiveRef": {
        "$schema": DRAFTS[2019],
        "$id": "http://h/closed",
        "$recursiveAnchor": True,
        "$ref": "open",
        "unevaluatedProperties": False,
        "$defs": {
            "open": {
                "$id": "open",
                "$recursiveAnchor": True,
                "properties": {"a": {"$recursiveRef": "#"}},
            }
        },
    },
    "patterns everywhere": {"patternProperties": {".*": {"type": "integer"}, "a": {"minimum": 1}}},
    "patterns with names in common": {
        "patternProperties": {"^[a-j]+$": {"type": "integer"}, "b": {"minimum": 1}},
        "additionalProperties": {"type": "string"},
    },
    "a look-ahead": {"pattern": "^(?!ab)(?=.?b)"},
    "a look-ahead in names": {
        "patternProperties": {"^(?!a)": {"type": "string"}},
        "additionalProperties": {"type": "integer"},
    },
    "not a pattern": {"not": {"pattern": "^a|b$"}},
    "oneOf of patterns": {"oneOf": [{"pattern": "a"}, {"pattern": "^.$"}], "type": "string"},
    "patterns of few names": {
        "properties": {"a": {"minimum": 1}},
        "patternProperties": {"^[ab]$": {"type": "integer"}, "^(k|x)$": {"type": "string"}},
        "additionalProperties": False,
    },
    "single anyOf": {"anyOf": [{"type": "integer"}], "allOf": [{"minimum": 1}]},
}


@pytest.mark.parametrize("name", REWRITES)
def test_what_llguidance_refuses_is_said_in_words_that_it_has(name: str) -> None:
    schema = REWRITES[name]
    prepared = prepare(json.dumps(schema), LLGUIDANCE)
    assert prepared.unenforced == []
    words = prepared.schema_text
    refused = ["not", "if", "contains", "uniqueItems", "propertyNames", "oneOf"]
    assert not [word for word in refused if f'"{word}":' in words], words
    require_agreement(schema, LLGUIDANCE, EVERYTHING)


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites_for_xgrammar_agree_where_nothing_is_given_up(name: str) -> None:
    require_agreement(REWRITES[name], XGRAMMAR, EVERYTHING)


@thorough
@given(schema=schemas(2020, 2), texts=st.lists(instances, min_size=20, max_size=30))
def test_rewriting_the_rewritten_changes_nothing_that_it_allows(
    schema: Any, texts: list[Any]
) -> None:
    assume(isinstance(schema, dict) and "$ref" not in json.dumps(schema))
    try:
        once = prepare(json.dumps(schema), LLGUIDANCE)
        twice = prepare(once.schema_text, LLGUIDANCE)
    except ConstraintError:
        return
    assert twice.unenforced == []
    first, second = rewritten(once), rewritten(twice)
    assert [first.is_valid(text) for text in texts] == [second.is_valid(text) for text in texts]
