"""Schemas and instances small enough to meet: few names, few values, all keywords of all drafts."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

DRAFTS = {
    4: "http://json-schema.org/draft-04/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    7: "http://json-schema.org/draft-07/schema#",
    2019: "https://json-schema.org/draft/2019-09/schema",
    2020: "https://json-schema.org/draft/2020-12/schema",
}
LATEST = DRAFTS[2020]
NAMES = ["a", "b", "ab", "x-a"]
NUMBERS = [-1, 0, 0.5, 1, 2, 3]
PATTERNS = ["a", "^a", "b$", "^x-", "^(a|b)$", "^.$", ".*", "^[ab]+$", "^a|b$", "(?=a)b"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2, -1, 3, 0.5, 1.5, "", "a", "b", "ab", "x-a"),
    *([], [1], ["a"], ["a", "b"], {}, {"a": 1}, {"a": 1, "b": 2}),
]

names = st.sampled_from(NAMES)
values = st.sampled_from(VALUES)
counts = st.integers(0, 3)
numbers = st.sampled_from(NUMBERS)
patterns = st.sampled_from(PATTERNS)
instances = st.recursive(
    values,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*NAMES, "z"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def some(strategy: st.SearchStrategy[Any], least: int = 1, most: int = 3) -> Any:
    return st.lists(strategy, min_size=least, max_size=most)


def different(strategy: st.SearchStrategy[Any], most: int = 3) -> Any:
    return st.lists(strategy, min_size=1, max_size=most, unique_by=repr)


def keywords(draft: int, inner: st.SearchStrategy[Any]) -> dict[str, st.SearchStrategy[Any]]:
    """Return what each keyword of a draft may hold; inner: sub-schemas."""
    named = st.dictionaries(names, inner, min_size=1, max_size=3)
    found: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(TYPES) | different(st.sampled_from(TYPES)),
        "enum": different(values, 5),
        "multipleOf": st.sampled_from([1, 2, 0.5, 3]),
        **dict.fromkeys(["minimum", "maximum"], numbers),
        **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems"], counts),
        **dict.fromkeys(["minProperties", "maxProperties"], counts),
        "pattern": patterns,
        "items": inner if draft == 2020 else inner | some(inner, most=2),
        "uniqueItems": st.just(True),
        "properties": named,
        "required": different(names, 2),
        "additionalProperties": inner,
        "patternProperties": st.dictionaries(patterns, inner, min_size=1, max_size=2),
        "dependencies": st.dictionaries(names, inner | different(names, 2), min_size=1, max_size=2),
        **dict.fromkeys(["allOf", "anyOf", "oneOf"], some(inner)),
        "not": inner,
        "$ref": st.sampled_from(["#/definitions/p", "#/definitions/q"]),
    }
    if draft < 2020:
        found["additionalItems"] = inner
    if draft == 4:
        return {**found, "exclusiveMinimum": st.booleans()}
    found |= {"const": values, "contains": inner, "exclusiveMaximum": numbers}
    found["propertyNames"] = inner | st.sampled_from(
        [{"enum": ["a", "b"]}, {"pattern": "^[ab]"}, {"maxLength": 1}, {"not": {"enum": ["a"]}}]
    )
    if draft >= 7:
        found |= dict.fromkeys(["if", "then", "else"], inner)
    if draft >= 2019:
        found |= dict.fromkeys(["minContains", "maxContains"], counts)
        found |= {"dependentSchemas": named, "unevaluatedProperties": inner}
        found["unevaluatedItems"] = inner
        found["dependentRequired"] = st.dictionaries(names, different(names, 2), max_size=2)
    return found | ({"prefixItems": some(inner)} if draft == 2020 else {})


def schemas(draft: int, depth: int) -> st.SearchStrategy[Any]:
    """Return schemas of at most this many levels."""
    leaf = st.just({}) if draft == 4 else st.booleans() | st.just({})
    if depth == 0:
        return leaf | st.fixed_dictionaries({"type": st.sampled_from(TYPES)})
    known = keywords(draft, schemas(draft, depth - 1))
    chosen = st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=4, unique=True)
    return chosen.flatmap(
        lambda picked: st.fixed_dictionaries({keyword: known[keyword] for keyword in picked})
    )


@st.composite
def documents(draw: st.DrawFn, depth: int = 3) -> dict[str, Any]:
    """Draw a whole schema that says its draft, with definitions that its references find."""
    draft = draw(st.sampled_from(sorted(DRAFTS)))
    root = draw(schemas(draft, depth))
    if draft <= 7:
        root.pop("$ref", None)  # it would hide all else
    inner = schemas(draft, depth - 1)
    root["definitions"] = {"p": draw(inner), "q": draw(inner)}
    return {**root, "$schema": DRAFTS[draft]}
