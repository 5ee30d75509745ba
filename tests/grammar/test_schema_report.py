"""What is said of every keyword, and what is left out of a schema for a library."""

from __future__ import annotations

import json
from typing import Any

import pytest
from schema_strategies import DRAFTS

from structgen.grammar.schema import (
    LLGUIDANCE,
    OUTLINES,
    XGRAMMAR,
    Dialect,
    KeywordReport,
    Treatment,
    prepare,
)


def treatments(schema: Any, dialect: Dialect = LLGUIDANCE) -> dict[str, str]:
    reports = prepare(json.dumps(schema), dialect).reports
    return {report.pointer: report.treatment.value for report in reports}


def unenforced(schema: Any, dialect: Dialect = LLGUIDANCE) -> list[str]:
    return [report.pointer for report in prepare(json.dumps(schema), dialect).unenforced]


def written(schema: Any, dialect: Dialect = LLGUIDANCE) -> Any:
    return json.loads(prepare(json.dumps(schema), dialect).schema_text)


def test_every_assertion_has_its_pointer() -> None:
    schema = {
        "type": "object",
        "properties": {"a/b": {"type": "string", "maxLength": 3, "title": "A"}},
        "required": ["a/b"],
    }
    assert treatments(schema) == {
        "/type": "enforced",
        "/properties": "enforced",
        "/required": "enforced",
        "/properties/a~1b/type": "enforced",
        "/properties/a~1b/maxLength": "enforced",
    }


def test_reports_are_named_by_keyword() -> None:
    (report,) = prepare('{"properties": {"a": {"const": 1}}}', LLGUIDANCE).reports[1:]
    assert report == KeywordReport("/properties/a/const", "const", Treatment.ENFORCED)


def test_what_cannot_apply_is_not_reported() -> None:
    assert treatments({"type": "null", "$defs": {"unused": {"minimum": 1}}}) == {
        "/type": "enforced"
    }


def test_unknown_formats_are_annotations_and_known_ones_are_enforced() -> None:
    schema = {"items": {"format": "color"}, "additionalProperties": {"format": "date"}}
    found = treatments(schema)
    assert found["/items/format"] == "annotation"
    assert found["/additionalProperties/format"] == "enforced"
    assert "color" not in prepare(json.dumps(schema), LLGUIDANCE).schema_text


def test_of_values_that_may_have_a_format_or_not_those_are_left_that_do() -> None:
    times = ["1998-12-31T23:59:60Z", "2024-02-30T00:00:00Z", "2024-02-29T00:00:00Z"]
    schema = {"enum": [*times, 1], "format": "date-time"}
    assert treatments(schema) == {"/enum": "enforced", "/format": "enforced"}
    assert written(schema) == {"enum": [times[-1], 1]}
    assert unenforced({"enum": times[:2], "format": "date-time"}) == ["/format"]


def test_formats_that_xgrammar_must_be_trusted_with_are_verified() -> None:
    schema = {"type": "string", "format": "uri"}
    assert treatments(schema, XGRAMMAR)["/format"] == "verified"
    assert written(schema, XGRAMMAR) == schema
    both = {"allOf": [schema, {"format": "duration"}]}
    assert sorted(unenforced(both, XGRAMMAR)) == ["/allOf/0/format", "/allOf/1/format"]


def test_formats_without_their_lengths_are_verified() -> None:
    schema = {"type": "string", "format": "hostname"}
    assert treatments(schema)["/format"] == "enforced"
    assert treatments(schema, XGRAMMAR)["/format"] == "verified"
    assert treatments(schema, OUTLINES)["/format"] == "verified"


def test_keywords_of_later_drafts_are_annotations() -> None:
    schema = {"$schema": "http://json-schema.org/draft-04/schema#", "const": 1, "type": "integer"}
    assert treatments(schema) == {"/const": "annotation", "/type": "enforced"}


@pytest.mark.parametrize(
    ("schema", "left"),
    [
        (
            {"items": [{"type": "null"}], "additionalItems": False, "type": "array"},
            {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        ),
        (
            {"type": "integer", "minimum": 1, "exclusiveMinimum": True},
            {"type": "integer", "minimum": 2},
        ),
    ],
)
def test_a_schema_of_no_draft_is_of_the_first_that_takes_it(schema: Any, left: Any) -> None:
    assert set(treatments(schema).values()) == {"enforced"}
    assert written(schema) == left


@pytest.mark.parametrize("draft", [7, 2020])
def test_what_is_said_of_content_is_an_annotation(draft: int) -> None:
    schema = {"$schema": DRAFTS[draft], "contentEncoding": "base64", "contentMediaType": "a/b"}
    assert set(treatments(schema).values()) == {"annotation"}


def test_siblings_of_a_reference_are_annotations_in_old_drafts() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}},
        "definitions": {"s": {"type": "string"}},
    }
    assert treatments(schema)["/properties/a/maxLength"] == "annotation"
    assert "maxLength" not in json.dumps(written(schema))


def test_nullable_is_not_of_json_schema() -> None:
    assert written({"type": "string", "nullable": True}) == {"type": "string"}


def test_what_the_libraries_would_obey_or_stumble_over_is_gone() -> None:
    schema = {"type": "string", "x-guidance": {"lenient": True}, "default": 1, "examples": [2]}
    assert written(schema) == {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "pointer", "left"),
    [
        ({"type": "string", "pattern": "(?=a)b"}, "/pattern", {"type": "string"}),
        ({"type": "string", "pattern": r"(a)\1"}, "/pattern", {"type": "string"}),
        ({"type": "string", "pattern": r"\ba"}, "/pattern", {"type": "string"}),
        ({"type": "array", "uniqueItems": True}, "/uniqueItems", {"type": "array"}),
        ({"type": "array", "contains": {"const": 1}}, "/contains", {"type": "array"}),
        ({"type": "string", "not": {"pattern": r"^\p{L}$"}}, "/not", {"type": "string"}),
        ({"type": "string", "not": {"format": "email"}}, "/not", {"type": "string"}),
        (
            {"type": "integer", "not": {"multipleOf": 2}},
            "/not",
            {"type": "integer"},
        ),
        (
            {
                "type": "object",
                "patternProperties": {r"\p{L}": {"type": "null"}, "b": {"minimum": 1}},
            },
            "/patternProperties",
            {"type": "object"},
        ),
    ],
)
def test_what_cannot_be_said_is_named_and_left_out(schema: Any, pointer: str, left: Any) -> None:
    assert pointer in unenforced(schema)
    assert written(schema) == left


def test_what_too_many_branches_evaluate_is_not_told() -> None:
    tuples = [{"prefixItems": [{"minimum": n}] * n, "minItems": n} for n in range(1, 9)]
    assert unenforced({"anyOf": tuples, "unevaluatedItems": False}) == ["/unevaluatedItems"]
    assert unenforced({"anyOf": tuples[:6], "unevaluatedItems": False}) == []


def test_what_stands_in_a_keyword_that_is_left_out_is_ignored_too() -> None:
    found = treatments({"type": "array", "contains": {"minimum": 1}})
    assert found["/contains"] == found["/contains/minimum"] == "ignored"


def test_overlapping_oneof_that_cannot_be_told_apart_becomes_anyof() -> None:
    schema = {"oneOf": [{"type": "string", "format": "email"}, {"type": "string", "minLength": 9}]}
    assert unenforced(schema)[0] == "/oneOf"
    assert [branch["type"] for branch in written(schema)["anyOf"]] == ["string", "string"]


def test_numbers_that_are_no_integers_cannot_be_said() -> None:
    assert unenforced({"type": "number", "not": {"type": "integer"}}) == [
        "/type",
        "/not",
        "/not/type",
    ]


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        ({"type": "number", "multipleOf": 0.5}, ["/multipleOf"]),
        ({"type": "integer", "multipleOf": 2000}, ["/multipleOf"]),
        ({"type": "integer", "multipleOf": 2, "maximum": 9}, ["/multipleOf"]),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, ["/maxLength"]),
        ({"type": "string", "pattern": r"^\p{L}$"}, ["/pattern"]),
        ({"type": "string", "format": "email", "maxLength": 9}, ["/maxLength"]),
        ({"type": "string", "format": "regex"}, ["/format"]),
        ({"type": "string", "pattern": "^(ab?|ac)$"}, ["/pattern"]),
        (
            {"patternProperties": {"^a": {}}, "properties": {"b": {"type": "null"}}},
            ["/patternProperties", "/properties"],
        ),
    ],
)
def test_what_xgrammar_would_drop_in_silence_is_named(schema: Any, pointers: list[str]) -> None:
    assert sorted(unenforced(schema, XGRAMMAR)) == sorted(pointers)
    assert unenforced(schema) == []


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "integer", "minimum": 1}, "/minimum"),
        ({"type": "object", "minProperties": 1}, "/minProperties"),
        ({"type": "array", "prefixItems": [{"type": "null"}]}, "/prefixItems"),
    ],
)
def test_what_outlines_would_drop_in_silence_is_named(schema: Any, pointer: str) -> None:
    assert unenforced(schema, OUTLINES) == [pointer]


@pytest.mark.parametrize("name", ["é", 'a"b', "a\nb", "日"])
def test_xgrammar_is_not_relied_on_for_names_that_it_takes_for_others(name: str) -> None:
    schema = {"type": "object", "properties": {name: {"type": "null"}}}
    assert unenforced(schema, XGRAMMAR) == ["/properties"]
    assert unenforced({**schema, "additionalProperties": False}, XGRAMMAR) == []
    assert unenforced(schema) == []


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"const": {"a": ["\x01"]}}, "/const"),
        ({"type": "object", "properties": {"\x7f": {}}}, "/properties"),
        ({"type": "string", "pattern": "^\x1f$"}, "/pattern"),
    ],
)
def test_llguidance_is_not_asked_for_what_only_a_number_escapes(schema: Any, pointer: str) -> None:
    assert unenforced(schema) == [pointer]


@pytest.mark.parametrize("pattern", ['^a"$', "\\\\", "^[\n\t]$"])
def test_xgrammar_is_not_asked_to_escape_what_a_pattern_needs(pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert unenforced(schema, XGRAMMAR) == ["/pattern"]
    assert unenforced(schema) == []


def test_recursion_is_not_for_outlines() -> None:
    tree = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    assert unenforced(tree, OUTLINES)
    assert unenforced(tree, XGRAMMAR) == unenforced(tree) == []


def test_keywords_beside_each_other_are_put_into_one_schema_for_xgrammar() -> None:
    schema = {
        "properties": {"a": {}, "b": {}},
        "type": "object",
        "anyOf": [{"required": ["b"]}, {"required": ["a"]}],
    }
    assert written(schema, XGRAMMAR) == {
        "anyOf": [
            {"type": "object", "properties": {"a": True, "b": True}, "required": ["b"]},
            {"type": "object", "properties": {"a": True, "b": True}, "required": ["a"]},
        ]
    }


def test_assertions_without_a_type_are_split_by_type_for_xgrammar() -> None:
    assert written({"minimum": 1, "maxLength": 2}, XGRAMMAR) == {
        "anyOf": [
            {"type": ["null", "boolean", "array", "object"]},
            {"type": "number", "minimum": 1},
            {"type": "string", "maxLength": 2},
        ]
    }


def test_the_order_of_properties_is_that_of_the_schema() -> None:
    schema = {
        "allOf": [
            {"properties": {"z": {}, "m": {}}},
            {"properties": {"a": {}, "z": {"type": "null"}}},
        ],
        "properties": {"b": {}},
    }
    assert list(written(schema)["properties"]) == ["z", "m", "a", "b"]


def test_a_schema_that_occurs_often_is_written_once() -> None:
    big = {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(30)}}
    schema = {
        "properties": {name: {"$ref": "#/$defs/big"} for name in "abc"},
        "$defs": {"big": big},
    }
    assert prepare(json.dumps(schema), LLGUIDANCE).schema_text.count('"p29"') == 1


def test_discriminated_unions_of_hundreds_are_told_apart() -> None:
    branches = [
        {
            "properties": {"kind": {"const": f"k{i}"}, "v": {}},
            "required": ["kind"],
            "type": "object",
        }
        for i in range(300)
    ]
    assert unenforced({"oneOf": branches}) == []


def test_a_chain_of_conditions_on_one_property_is_one_case_a_value() -> None:
    kinds = [f"k{i}" for i in range(12)]
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": kinds}},
        "required": ["kind"],
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}}, "then": {"required": [f"f_{kind}"]}}
            for kind in kinds
        ],
    }
    assert unenforced(schema) == []
    assert len(written(schema)["anyOf"]) == len(kinds)


def test_bounds_are_what_the_libraries_can_hold() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    assert written(schema) == {
        "type": "integer",
        "minimum": -(2**63 - 1024),
        "maximum": 2**63 - 1024,
    }
    assert written({"type": "integer", "maximum": 2**53 + 3})["maximum"] == 2**53 + 2
