"""Schemas that are refused: what they are told, and that nothing takes long or runs away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from structgen.errors import ConstraintError, ConstraintTooLarge, StructgenError
from structgen.grammar.schema import LLGUIDANCE, OUTLINES, XGRAMMAR, Dialect, Prepared, prepare


def answer_to(text: str, dialect: Dialect) -> Prepared | StructgenError:
    try:
        return prepare(text, dialect)
    except StructgenError as error:
        return error


def refusal(text: str) -> StructgenError:
    with pytest.raises(StructgenError) as caught:
        prepare(text, LLGUIDANCE)
    assert caught.value.field == "input.constraint.json_schema"
    return caught.value


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "frobnicate"}, "at /type: type names no type: 'frobnicate'"),
        ({"type": 42}, "at /type: type names no type: 42"),
        (
            {"type": ["string", "string"]},
            "at /type: type must be a type, or a list of different ones",
        ),
        ({"properties": []}, "at /properties: properties must be an object"),
        ({"properties": {"a": 1}}, "at /properties/a: must be a schema"),
        ({"required": "a"}, "at /required: required must be a list of different names"),
        (
            {"items": {"enum": []}},
            "at /items/enum: enum must not be empty: no value would be allowed",
        ),
        ({"minLength": -1}, "at /minLength: minLength must be a whole number from 0"),
        ({"minimum": "1"}, "at /minimum: minimum must be a number"),
        ({"multipleOf": 0}, "at /multipleOf: multipleOf must be above 0"),
        ({"uniqueItems": 1}, "at /uniqueItems: uniqueItems must be true or false"),
        ({"anyOf": []}, "at /anyOf: anyOf must be a non-empty list of schemas"),
        ({"not": 1}, "at /not: not must be a schema"),
        ({"items": [1]}, "at /items: items must be a schema"),
        ({"pattern": "("}, "at /pattern: not a regular expression of ECMA-262: missing )"),
        ({"$defs": {"a": {"type": 1}}}, "at /$defs/a/type: type names no type: 1"),
        ({"$schema": "http://x.y/z"}, "at /$schema: unknown dialect 'http://x.y/z'"),
        ({"not": {"$schema": "x"}}, "at /not/$schema: unknown dialect 'x'"),
        ({"$ref": "#/$defs/a~b"}, "at /$ref: nothing at '#/$defs/a~b'"),
        ({"$ref": "#/enum", "enum": [1]}, "at /$ref: no schema at '#/enum'"),
        ({"$ref": "#a"}, "at /$ref: nothing is called '#a'"),
        ({"$ref": "http://x.y/z"}, "at /$ref: 'http://x.y/z' leads to another document"),
        (
            {"$ref": "file:///etc/passwd"},
            "at /$ref: 'file:///etc/passwd' leads to another document",
        ),
        ({"$ref": "#"}, ": a schema that is defined by itself alone"),
        ({"enum": ["\ud800"]}, ": holds a lone surrogate"),
    ],
)
def test_what_is_no_schema_is_refused_by_place(schema: Any, message: str) -> None:
    error = refusal(json.dumps(schema))
    assert isinstance(error, ConstraintError)
    assert error.message == f"json_schema {message}".replace(" :", ":", 1)


@pytest.mark.parametrize(
    "text", ["", "{} x", '{"a": NaN}', '{"maximum": 1e400}', '{"const": "\0"}']
)
def test_what_is_not_json_is_refused(text: str) -> None:
    assert refusal(text).message.startswith("json_schema: not JSON: ")


@pytest.mark.parametrize(
    ("schema", "pointers"),
    [
        (False, ["/"]),
        ({"type": "integer", "minimum": 2, "maximum": 1}, ["/minimum", "/maximum"]),
        ({"type": "string", "minLength": 2, "maxLength": 1}, ["/minLength", "/maxLength"]),
        ({"type": "array", "minItems": 2, "maxItems": 1}, ["/minItems", "/maxItems"]),
        ({"type": "string", "const": 1}, ["/type", "/const"]),
        ({"enum": ["a"], "pattern": "^b"}, ["/enum", "/pattern"]),
        ({"type": "string", "allOf": [{"type": "null"}]}, ["/type", "/allOf/0/type"]),
        ({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, ["/allOf/1/pattern"]),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, ["/required"]),
        (
            {"type": "object", "required": ["a"], "additionalProperties": False},
            ["/required", "/additionalProperties"],
        ),
        ({"not": {}}, ["/not"]),
        ({"type": "array", "items": False, "minItems": 1}, ["/minItems"]),
    ],
)
def test_what_allows_nothing_is_refused_by_what_does_it(schema: Any, pointers: list[str]) -> None:
    message = refusal(json.dumps(schema)).message
    assert message.endswith(": no value is allowed")
    assert [pointer for pointer in pointers if pointer in message] == pointers


def nested(times: int, opening: str, closing: str) -> str:
    return opening * times + "{}" + closing * times


LAUGHS = {
    "a30": {"type": "string"},
    "b30": {"type": "integer", "minimum": 1},
}


def laughs(keyword: str) -> str:
    """Thirty levels of two references each: 2^30 ways down."""
    levels = {
        f"{letter}{level}": {
            keyword: [{"$ref": f"#/$defs/a{level + 1}"}, {"$ref": f"#/$defs/b{level + 1}"}]
        }
        for level in range(30)
        for letter in "ab"
    }
    return json.dumps({"$ref": "#/$defs/a0", "$defs": {**levels, **LAUGHS}})


def wide(**schema: Any) -> str:
    properties = {f"p{index}": {"type": "string"} for index in range(400)}
    return json.dumps({"properties": properties, **schema})


HOSTILE = {
    "deep": nested(10_000, '{"items":', "}"),
    "deep within what Python parses": nested(100, '{"items":', "}"),
    "deep but allowed": nested(60, '{"items":', "}"),
    "negations": nested(60, '{"not":', "}"),
    "large": json.dumps({"enum": ["x" * 100] * 3000}),
    "many values": json.dumps({"enum": list(range(10_001))}),
    "long value": json.dumps({"const": "x" * 70_000}),
    "many properties": json.dumps({"properties": {f"p{index}": {} for index in range(401)}}),
    "many patterns": json.dumps({"patternProperties": {f"^{index}": {} for index in range(101)}}),
    "large multiple": '{"multipleOf": 1000003}',
    "many items": '{"minItems": 1e30}',
    "many digits": '{"maximum": ' + "9" * 5000 + "}",
    "allOf laughs": laughs("allOf"),
    "anyOf laughs": laughs("anyOf"),
    "oneOf laughs": laughs("oneOf"),
    "not laughs": laughs("anyOf").replace(
        '{"$ref": "#/$defs/a0"', '{"not": {"$ref": "#/$defs/a0"}', 1
    ),
    "chain": json.dumps(
        {
            "$ref": "#/$defs/0",
            "$defs": {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)} | {"3000": {}},
        }
    ),
    "itself or": '{"anyOf": [{"$ref": "#"}, {"type": "string"}]}',
    "itself only": '{"oneOf": [{"$ref": "#"}, {"type": "string"}]}',
    "itself if": '{"if": {"$ref": "#"}, "then": {"type": "string"}}',
    "not itself": '{"not": {"$ref": "#"}}',
    "growing": json.dumps(
        {
            "properties": {
                "x": {"allOf": [{"$ref": "#"}, {"minProperties": 1}]},
                "y": {"not": {"$ref": "#"}},
            }
        }
    ),
    "product": json.dumps(
        {
            "allOf": [
                {"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)
            ]
        }
    ),
    "wide oneOf": wide(oneOf=[{"required": [f"p{index}"]} for index in range(200)]),
    "wide anyOf": wide(anyOf=[{"required": [f"p{index}"]} for index in range(200)]),
    "wide minProperties": wide(minProperties=200),
    "excluded object": json.dumps(
        {"not": {"const": {f"k{index}": [index] for index in range(2000)}}}
    ),
    "excluded strings": json.dumps({"not": {"enum": [f"v{index}" for index in range(5000)]}}),
    "towers": '{"pattern": "(a{1,1000}){1,1000}"}',
    "catastrophe": json.dumps({"enum": ["a" * 1900 + "b"], "pattern": "^(a+)+$"}),
    "hard automata": json.dumps(
        {"patternProperties": {f"[ab]*a[ab]{{{i}}}$": {} for i in range(2, 60)}}
    ),
    "groups": json.dumps({"pattern": "(" * 2000 + ")" * 2000}),
    "anchors": json.dumps({"pattern": "(^|a)" * 12 + "($|b)" * 12}),
}


@pytest.mark.parametrize(
    "dialect", [LLGUIDANCE, XGRAMMAR, OUTLINES], ids=lambda dialect: dialect.name
)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.timeout(30)
def test_hostile_schemas_end_in_an_answer_or_a_clear_error(name: str, dialect: Dialect) -> None:
    answer = answer_to(HOSTILE[name], dialect)
    if isinstance(answer, StructgenError):
        assert answer.message.startswith("json_schema")
        assert not answer.retryable
    else:
        assert len(answer.schema_text) <= 1024 * 1024


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("deep within what Python parses", "its depth must be at most 64"),
        ("large", "its size in bytes must be at most 262144"),
        ("many values", "the number of values must be at most 10000"),
        ("long value", "the bytes of a value must be at most 65536"),
        ("many properties", "the number of optional properties must be at most 400"),
        ("many patterns", "the number of patternProperties must be at most 100"),
        ("large multiple", "multipleOf must be at most 10000, got 1000003"),
        ("many items", "minItems must be at most 2147483648"),
        ("chain", "the length of a chain of references must be at most 100"),
    ],
)
def test_a_limit_is_named_with_its_value(name: str, limit: str) -> None:
    error = refusal(HOSTILE[name])
    assert isinstance(error, ConstraintTooLarge)
    assert error.status == "RESOURCE_EXHAUSTED"
    assert limit in error.message
