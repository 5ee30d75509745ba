"""A rewritten schema says what the client's says; what cannot be said is named."""

import contextlib
import gzip
import inspect
import itertools
import json
import sys
from pathlib import Path
from random import Random

import jsonschema_rs
import pytest
from feeding import byte_vocabulary

from structgen.constraints import JsonSchema
from structgen.errors import ConstraintError, LimitExceeded
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError
from structgen.grammar.choosing import Backends
from structgen.grammar.schema import LLGUIDANCE, OUTLINES, XGRAMMAR, Dialect, prepare
from structgen.keywords import Treatment

MASKBENCH = Path(__file__).parents[3] / "shared" / "data" / "maskbench-1000.jsonl.gz"

SCHEMAS = {
    "allOf of bounds": {"allOf": [{"type": "integer"}, {"minimum": 2}, {"maximum": 4}]},
    "allOf of objects": {
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"a": {"minimum": 1}, "b": {"type": "string"}}, "type": "object"},
        ]
    },
    "siblings of $ref": {
        "$defs": {"n": {"type": ["integer", "string"]}},
        "$ref": "#/$defs/n",
        "minimum": 2,
        "maxLength": 1,
    },
    "siblings of anyOf": {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    },
    "enum with type": {"type": "string", "enum": ["a", 1, "b", None], "minLength": 1},
    "const beside enum": {"const": 1, "enum": [1, 2]},
    "oneOf of types": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]},
    "oneOf of constants": {
        "type": "object",
        "required": ["a"],
        "oneOf": [
            {"properties": {"a": {"const": 1}, "b": {"type": "integer"}}},
            {"properties": {"a": {"const": "b"}, "b": {"type": "string"}}},
        ],
    },
    "not a type": {"not": {"type": ["object", "array", "number"]}},
    "not an enum": {"type": "boolean", "not": {"enum": [True]}},
    "not required": {"type": "object", "not": {"required": ["a"]}},
    "if then else": {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"enum": [1, "b"]}},
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"required": ["b"]},
        "else": {"properties": {"b": False}},
    },
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependencies of draft 7": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "dependencies": {"a": {"properties": {"b": {"type": "integer"}}}},
    },
    "propertyNames": {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
    "properties bounded": {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    },
    "uniqueItems of an enum": {
        "type": "array",
        "items": {"enum": [1, "b"]},
        "uniqueItems": True,
        "maxItems": 2,
    },
    "no type": {"minimum": 2, "minLength": 1, "minItems": 1, "required": ["a"]},
    "array items of draft 4": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "array",
        "items": [{"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "string"}],
        "additionalItems": False,
    },
    "anchor": {"$defs": {"x": {"$anchor": "here", "type": "integer"}}, "items": {"$ref": "#here"}},
    "search pattern": {"type": "string", "pattern": "b"},
    "pattern and length": {"type": "string", "pattern": "^[ab]*$", "maxLength": 1},
    "boolean schemas": {"type": "object", "properties": {"a": True, "b": False}},
}

SCALARS = [None, True, False, *range(-2, 7), "", "a", "b", "ab", 1.5]


def drawn(random: Random, depth: int = 3) -> object:
    """Return a value of few kinds, so that many meet a schema, and many just fail to."""
    kind = random.random() if depth else 0.0
    if kind < 0.4:
        return random.choice(SCALARS)
    values = [drawn(random, depth - 1) for _ in range(random.randrange(4))]
    return values if kind < 0.6 else dict(zip(random.sample("abc", 3), values, strict=False))


@pytest.fixture(scope="module")
def instances() -> list[object]:
    random = Random(0)
    return [*SCALARS, *(drawn(random) for _ in range(3000))]


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("dialect", [LLGUIDANCE, XGRAMMAR, OUTLINES], ids=lambda d: d.name)
def test_a_rewritten_schema_agrees_with_the_original(
    name: str, dialect: Dialect, instances: list[object]
) -> None:
    schema = SCHEMAS[name]
    prepared = prepare(json.dumps(schema), dialect)
    if prepared.unenforced:
        assert dialect is not LLGUIDANCE, prepared.unenforced
        return
    original = jsonschema_rs.validator_for(schema)
    rewritten = jsonschema_rs.validator_for(json.loads(prepared.schema_text))
    for instance in instances:
        assert original.is_valid(instance) == rewritten.is_valid(instance), instance
    assert any(map(original.is_valid, instances))
    assert not all(map(original.is_valid, instances))


def test_every_assertion_is_reported_where_the_client_wrote_it() -> None:
    schema = {
        "title": "t",
        "type": "object",
        "properties": {"a/b": {"type": "string", "format": "nosuch"}, "d": {"format": "date"}},
        "uniqueItems": True,
        "required": ["a/b"],
    }
    reports = {
        report.pointer: report.treatment
        for report in prepare(json.dumps(schema), LLGUIDANCE).reports
    }
    assert reports["/type"] is Treatment.ENFORCED
    assert reports["/properties/a~1b/type"] is Treatment.ENFORCED
    assert reports["/properties/a~1b/format"] is Treatment.ANNOTATION
    assert reports["/properties/d/format"] in (Treatment.ENFORCED, Treatment.VERIFIED)
    assert reports["/required"] is Treatment.ENFORCED


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "array", "uniqueItems": True}, "/uniqueItems"),
        ({"properties": {"a": {"pattern": "(?=b)c"}}}, "/properties/a/pattern"),
        ({"type": "array", "contains": {"type": "integer"}}, "/contains"),
    ],
)
def test_what_no_rewrite_expresses_is_named(schema: object, pointer: str) -> None:
    unenforced = prepare(json.dumps(schema), LLGUIDANCE).unenforced
    assert unenforced[0].pointer == pointer


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nosuch"},
        {"type": 5},
        {"properties": []},
        {"required": "a"},
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "const": 1},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/nosuch"},
        {"type": "string", "pattern": "("},
        False,
    ],
)
def test_a_schema_that_is_none_or_allows_nothing_is_refused(schema: object) -> None:
    with pytest.raises(ConstraintError) as refusal:
        prepare(json.dumps(schema), LLGUIDANCE)
    assert refusal.value.field == "input.constraint.json_schema"


def nested(depth: int) -> str:
    return '{"items":' * depth + "{}" + "}" * depth


@pytest.mark.parametrize(
    "schema",
    [
        nested(1_000),
        json.dumps({"enum": [str(i) for i in range(20_000)]}),
        json.dumps({"properties": {f"p{i}": {} for i in range(2_000)}, "type": "object"}),
        json.dumps({"type": "integer", "multipleOf": 1_000_003}),
        json.dumps({"description": "x" * 300_000}),
        json.dumps(
            {
                "$defs": {
                    f"d{i}": {"items": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}}
                    for i in range(30)
                }
                | {"d30": {"type": "integer"}},
                "$ref": "#/$defs/d0",
            }
        ),
    ],
    ids=["deep", "enum", "properties", "multiple", "long", "fan-out"],
)
def test_a_schema_beyond_the_limits_is_refused_or_stays_small(schema: str) -> None:
    with contextlib.suppress(ConstraintError, LimitExceeded):
        assert len(prepare(schema, LLGUIDANCE).schema_text) < 1_000_000


def test_a_rewriting_that_outgrows_the_stack_is_a_limit_too() -> None:
    def deep(frames: int) -> None:
        if frames:
            return deep(frames - 1)
        with pytest.raises(LimitExceeded, match="nested too deeply"):
            prepare(json.dumps(SCHEMAS["if then else"]), LLGUIDANCE)
        return None

    deep(sys.getrecursionlimit() - stack_depth() - 40)


def stack_depth() -> int:
    return len(inspect.stack(0))


@pytest.mark.skipif(not MASKBENCH.exists(), reason=f"{MASKBENCH.name} is not beside the checkout")
def test_real_schemas_accept_no_invalid_instance() -> None:
    """Every sixth of the real schemas; benchmarks/conformance.py takes them all."""
    vocabulary = byte_vocabulary()
    backends = Backends(vocabulary)
    served = accepted_valid = valid = 0
    with gzip.open(MASKBENCH, "rt") as lines:
        cases = [json.loads(line) for line in itertools.islice(lines, 0, None, 6)]
    for case in cases:
        try:
            chosen = backends.compile(JsonSchema(json.dumps(case["schema"])))
        except (ConstraintError, LimitExceeded):
            continue
        served += 1
        for test in case["tests"]:
            text = json.dumps(test["data"], ensure_ascii=False).encode()
            accepted = obeys(chosen, vocabulary.size, text)
            assert test["valid"] or not accepted, f"{case['id']}: {text.decode()}"
            valid += test["valid"]
            accepted_valid += test["valid"] and accepted
    assert served >= 0.93 * len(cases)
    assert accepted_valid >= 0.95 * valid  # some only in another order of keys


def obeys(chosen, vocab_size: int, text: bytes) -> bool:  # type: ignore[no-untyped-def]
    matcher = chosen.grammar.new_matcher()
    words = bitmask.allocate(1, vocab_size)
    for byte in text:
        chosen.backend.fill([matcher], words, [0])
        if not words[0, byte >> 5] >> (byte & 31) & 1:
            return False
        try:
            matcher.accept(byte)
        except GrammarError:
            return False
    return bool(matcher.accepting)
