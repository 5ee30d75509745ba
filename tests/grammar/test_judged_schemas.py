"""Judging texts under schemas says what an independent validator says of their values.

The texts are spelt as structgen spells JSON: in one line, keys in the schema's order.
"""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from feeding import byte_vocabulary
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schema_strategies import documents, instances

from structgen.constraints import JsonSchema
from structgen.errors import ConstraintError, ConstraintTooLarge
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.judging import judge

thorough = settings(
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

NAMES = ["a", "b", "é"]
EXTRA = "z"  # a name that no schema knows
STRINGS = ["", "a", "ab", "b1", "é", "日本", '"', "\\", "a\nb"]
NUMBERS = [-1, 0, 1, 2, 3, 10, 0.5, 1.5, -0.5]


@pytest.fixture(scope="module")
def backends() -> Backends:
    return Backends(byte_vocabulary())


# ---- small schemas of what is commonly asked for, and values that are nearly theirs


def bounds(low: str, high: str, values: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.lists(st.sampled_from(values), min_size=2, max_size=2).map(sorted)
    kept = st.sampled_from([(), (low,), (high,), (low, high)])
    return st.builds(lambda pair, names: {name: pair[name == high] for name in names}, pairs, kept)


def typed(name: str, keywords: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    return keywords.map(lambda found: {"type": name, **found})


CONSTANTS = st.sampled_from([*STRINGS, *NUMBERS, True, False, None, [], [1], {"a": 1}])
LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["string", "null"]}]),
    typed("string", bounds("minLength", "maxLength", [0, 1, 2, 3])),
    typed("string", st.sampled_from([{"pattern": p} for p in ("^a", "b$", "^[ab]+$", "[0-9]")])),
    typed("integer", bounds("minimum", "maximum", [-1, 0, 1, 2, 10])),
    typed("integer", bounds("exclusiveMinimum", "exclusiveMaximum", [-1, 0, 3, 10])),
    typed("number", bounds("minimum", "maximum", [-0.5, 0, 1.5, 3])),
    st.lists(CONSTANTS, min_size=1, max_size=4, unique_by=repr).map(lambda some: {"enum": some}),
    CONSTANTS.map(lambda value: {"const": value}),
)


def arrays(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    of_items = st.fixed_dictionaries({"items": items})
    both = st.tuples(of_items, bounds("minItems", "maxItems", [0, 1, 2, 3]))
    return typed("array", both.map(lambda parts: parts[0] | parts[1]))


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: draw(inner) for name in NAMES},
        "required": [name for name in NAMES if draw(st.booleans())],
        "additionalProperties": draw(st.just(False) | inner),
    }


SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        arrays(inner),
        objects(inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda some: {"anyOf": some}),
    ),
    max_leaves=6,
)


def values(schema: Any) -> st.SearchStrategy[Any]:
    """Return values of which many obey a schema, at least in part."""
    found: list[st.SearchStrategy[Any]] = []
    match schema:
        case {"enum": some}:
            found.append(st.sampled_from(some))
        case {"const": value}:
            found.append(st.just(value))
        case {"anyOf": some}:
            found += map(values, some)
        case {"type": "string"}:
            found.append(st.sampled_from(STRINGS) | st.text("ab1é", max_size=4))
        case {"type": "integer" | "number"}:
            found.append(st.sampled_from(NUMBERS) | st.integers(-12, 12))
        case {"type": "boolean"}:
            found.append(st.booleans())
        case {"type": "array", "items": items}:
            found.append(st.lists(values(items), max_size=4))
        case {"type": "object", "properties": known, "additionalProperties": others}:
            members = {name: values(known.get(name, others)) for name in [*NAMES, EXTRA]}
            needed = {name: members.pop(name) for name in schema["required"]}
            found.append(st.fixed_dictionaries(needed, optional=members))
    return st.one_of(*found * 4, CONSTANTS)


def spelt(value: Any) -> str:
    return json.dumps(in_order(value), ensure_ascii=False)


def in_order(value: Any) -> Any:
    """Return a value with its keys in the order in which every schema here names them."""
    if isinstance(value, list):
        return [in_order(item) for item in value]
    if isinstance(value, dict):
        return {name: in_order(value[name]) for name in [*NAMES, EXTRA] if name in value}
    return value


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema = draw(SCHEMAS)
    return schema, draw(st.lists(values(schema), min_size=5, max_size=10))


def compiled(backends: Backends, schema: Any) -> Chosen:
    try:
        return backends.compile(JsonSchema.of(schema))
    except (ConstraintError, ConstraintTooLarge):
        assume(False)
        raise


def accepts(backends: Backends, chosen: Chosen, text: str) -> bool:
    return judge(chosen.grammar, chosen.backend, backends.spelling, text.encode()).accepted


@thorough
@given(case=cases())
def test_what_is_accepted_is_exactly_what_is_valid(
    backends: Backends, case: tuple[Any, list[Any]]
) -> None:
    schema, found = case
    validator = jsonschema_rs.validator_for(schema)
    chosen = compiled(backends, schema)
    for value in found:
        text = spelt(value)
        assert accepts(backends, chosen, text) == validator.is_valid(value), (schema, text)


@thorough
@given(schema=documents(depth=2), found=st.lists(instances, min_size=8, max_size=12))
def test_nothing_is_accepted_that_is_not_valid(
    backends: Backends, schema: dict[str, Any], found: list[Any]
) -> None:
    """Of schemas with any keyword of any draft, in whichever order the keys are."""
    try:
        validator = jsonschema_rs.validator_for(schema)
    except jsonschema_rs.ValidationError:  # not a schema, by the letter of its draft
        assume(False)
    chosen = compiled(backends, schema)
    for value in found:
        text = json.dumps(value, ensure_ascii=False)
        assert not accepts(backends, chosen, text) or validator.is_valid(value), text
