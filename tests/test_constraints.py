"""A constraint that can be made at all stays what it is on every way through the processes."""

from __future__ import annotations

import json

import msgspec
import pytest

from structgen.constraints import Choice, Constraint, Ebnf, JsonSchema, Lark, Regex
from structgen.errors import ConstraintError, ConstraintTooLarge

ONE_MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    "schema",
    [
        "true",
        ' { "minimum" : 1e5 , "maximum":-0.0,"const":1.10 }\n',
        '{"minimum":%s}' % ("9" * 308),
        '{"const":"\\u2028\\u0000\\"\\\\","enum":["\\ud83d\\ude00"]}',
        '{"multipleOf":1e-320}',
        '{"title":"%s"}' % ("x" * (ONE_MEGABYTE - 12)),
    ],
)
def test_a_schema_that_is_taken_is_the_same_on_the_other_side(schema: str) -> None:
    made = JsonSchema(schema)
    assert json.loads(made.schema) == json.loads(schema)
    wire = msgspec.msgpack.encode(made)
    assert msgspec.msgpack.decode(wire, type=Constraint) == made


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ('{"maximum":1e400}', "1e400 is no number that a double holds"),
        ('{"maximum":-1e400}', "no number that a double holds"),
        ('{"maximum":%s}' % ("9" * 309), "an integer must have at most 308 digits, got 309"),
        ('{"maximum":NaN}', "NaN is not JSON"),
        ('{"type":"null","type":"null"}', "duplicate key 'type'"),
        ('{"const":"\\ud800"}', "lone surrogate"),
        ("[" * 100_000, "nested too deeply"),
        ('"true"', "must be a JSON object or a boolean"),
        ("null", "must be a JSON object or a boolean"),
    ],
)
def test_a_schema_that_no_other_side_would_take_is_refused(schema: str, fault: str) -> None:
    with pytest.raises(ConstraintError, match=fault) as refusal:
        JsonSchema(schema)
    assert refusal.value.field == "input.constraint.json_schema"


@pytest.mark.parametrize(
    ("make", "field", "limit"),
    [
        (lambda: JsonSchema(" " * ONE_MEGABYTE + "{}"), "json_schema", "1048576, got 1048578"),
        (lambda: Regex("é" * 131_073), "regex", "262144, got 262146"),
        (lambda: Ebnf("x" * 262_145), "grammar.text", "262144, got 262145"),
        (lambda: Lark("x" * 262_145), "grammar.text", "262144, got 262145"),
        (lambda: Choice(("x" * 262_144, "y")), "choice", "262144, got 262145"),
        (lambda: Choice(("x",) * 10_001), "choice", "10000, got 10001"),
    ],
)
def test_what_is_too_large_is_refused_by_field_value_and_limit(
    make: type[Constraint], field: str, limit: str
) -> None:
    with pytest.raises(ConstraintTooLarge) as refusal:
        make()
    assert refusal.value.field == f"input.constraint.{field}"
    assert limit in refusal.value.message
