"""Keywords about arrays and objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from structgen.grammar.schema import patterns
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Contains,
    Count,
    Elements,
    Fields,
    Names,
    Opaque,
    Required,
    Schema,
    Size,
    Unique,
    is_nothing,
)
from structgen.grammar.schema.evaluation import (
    Alternative,
    Evaluated,
    TooMany,
    of_items,
    of_properties,
)
from structgen.grammar.schema.keywords import Keywords
from structgen.grammar.schema.report import Places

# A pattern that so few names have is said by those names: what leaves names open must not run out
# of them, as each may be there once.
MAX_LISTED_NAMES = 8


def elements(keywords: Keywords) -> Iterator[Assertion]:
    places = keywords.places("prefixItems", "items", "additionalItems")
    if "prefixItems" in keywords.keywords and keywords.asserts("prefixItems"):
        prefix, rest = keywords.children("prefixItems"), "items"
    elif isinstance(keywords.value("items"), list):
        prefix, rest = keywords.children("items"), "additionalItems"
    else:
        prefix, rest = (), "items"
    tail = keywords.child(rest) if keywords.value(rest) is not None else ()
    yield Elements(prefix=prefix, rest=tail, places=places)


def counts(keywords: Keywords) -> Iterator[Assertion]:
    interval = keywords.interval("minItems", "maxItems")
    yield Count(interval=interval, places=keywords.places("minItems", "maxItems"))


def contains(keywords: Keywords) -> Iterator[Assertion]:
    if keywords.value("contains") is None:
        return
    interval = keywords.interval("minContains", "maxContains", default=1)
    places = keywords.places("contains", "minContains", "maxContains")
    yield Contains(schema=keywords.child("contains"), interval=interval, places=places)


def unique(keywords: Keywords) -> Iterator[Assertion]:
    if keywords.value("uniqueItems") is True:
        yield Unique(places=keywords.places("uniqueItems"))


def fields(keywords: Keywords) -> Iterator[Assertion]:
    places = keywords.places("properties", "patternProperties", "additionalProperties")
    rest = keywords.value("additionalProperties")
    tail = keywords.child("additionalProperties") if rest is not None else ()
    patterned = [
        (patterns.without_looks(regex), keywords.child("patternProperties", regex))
        for regex in keywords.map("patternProperties")
    ]
    usable = [
        (regex, schema)
        for regex, schema in patterned
        if keywords.supported(regex, keywords.at("patternProperties", regex))
    ]
    if len(usable) < len(patterned):
        yield Opaque(places=keywords.places("patternProperties", "additionalProperties"))
        tail = ()
    few = {regex: patterns.listed(regex, MAX_LISTED_NAMES) for regex, _ in usable}
    names = [*keywords.map("properties"), *(name for names in few.values() for name in names or ())]
    named = [
        (name, _by_name(keywords, name) + _also(keywords, name, usable))
        for name in dict.fromkeys(names)
    ]
    usable = [(regex, schema) for regex, schema in usable if few[regex] is None]
    everywhere = [schema for regex, schema in usable if patterns.universal(regex)]
    if everywhere:  # then no property is left over for anything else
        tail = sum(everywhere, ())
        usable = [
            (regex, schema + tail) for regex, schema in usable if not patterns.universal(regex)
        ]
    yield Fields(named=tuple(named), patterned=tuple(usable), rest=tail, places=places)


def _by_name(keywords: Keywords, name: str) -> Schema:
    return keywords.child("properties", name) if name in keywords.map("properties") else ()


def _also(keywords: Keywords, name: str, patterned: list[tuple[str, Schema]]) -> Schema:
    """Return what the patterns say of a property that has a schema by name."""
    found = [patterns.found_in(regex, name) for regex, _ in patterned]
    schemas = [schema for (_, schema), hit in zip(patterned, found, strict=True) if hit]
    unknown = (Opaque(places=keywords.places("patternProperties")),) if None in found else ()
    return sum(schemas, ()) + unknown


def sizes(keywords: Keywords) -> Iterator[Assertion]:
    interval = keywords.interval("minProperties", "maxProperties")
    yield Size(interval=interval, places=keywords.places("minProperties", "maxProperties"))


def required(keywords: Keywords) -> Iterator[Assertion]:
    names = tuple(str(name) for name in keywords.list("required"))
    yield Required(names=names, places=keywords.places("required"))


def names(keywords: Keywords) -> Iterator[Assertion]:
    yield Names(schema=keywords.child("propertyNames"), places=keywords.places("propertyNames"))


def unevaluated(keywords: Keywords) -> Iterator[Assertion]:
    if keywords.value("unevaluatedProperties") is not None:
        yield from _unevaluated(keywords, "unevaluatedProperties", of_properties, _other_fields)
    if keywords.value("unevaluatedItems") is not None:
        yield from _unevaluated(keywords, "unevaluatedItems", of_items, _other_items)


def _unevaluated(
    keywords: Keywords,
    keyword: str,
    alternatives_of: Callable[[Keywords], list[Alternative]],
    others: Callable[[Evaluated, Schema, Places], Assertion],
) -> Iterator[Assertion]:
    places, schema = keywords.places(keyword), keywords.child(keyword)
    if not schema:
        return
    try:
        found = alternatives_of(keywords)
    except TooMany:
        yield Opaque(places=places)
        return
    branches = tuple(
        conditions if evaluated.all else (*conditions, others(evaluated, schema, places))
        for conditions, evaluated in found
    )
    if len(branches) == 1:
        yield from branches[0]
    elif () not in branches:
        yield AnyOf(branches=branches, places=places)


def _other_fields(evaluated: Evaluated, schema: Schema, places: Places) -> Assertion:
    named: list[tuple[str, Schema]] = [(name, ()) for name in sorted(evaluated.names)]
    patterned: list[tuple[str, Schema]] = [(regex, ()) for regex in sorted(evaluated.regexes)]
    return Fields(named=tuple(named), patterned=tuple(patterned), rest=schema, places=places)


def _other_items(evaluated: Evaluated, schema: Schema, places: Places) -> Assertion:
    matching = sorted(evaluated.matching, key=repr)
    branches = [one for one in (*matching, schema) if not is_nothing(one)]
    if not branches:
        rest = schema
    else:
        rest = (
            branches[0] if len(branches) == 1 else (AnyOf(branches=tuple(branches), places=places),)
        )
    return Elements(prefix=((),) * evaluated.first, rest=rest, places=places)
