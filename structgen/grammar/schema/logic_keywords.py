"""Keywords that combine schemas, or refer to them."""

from __future__ import annotations

from collections.abc import Iterator

from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Fields,
    Not,
    OneOf,
    Opaque,
    Required,
    Schema,
    nothing,
)
from structgen.grammar.schema.keywords import Keywords, child
from structgen.grammar.schema.references import target_of
from structgen.grammar.schema.report import Places, Treatment
from structgen.grammar.schema.values import JsonValue


def all_of(keywords: Keywords) -> Iterator[Assertion]:
    for branch in keywords.children("allOf"):
        yield from branch


def any_of(keywords: Keywords) -> Iterator[Assertion]:
    yield AnyOf(branches=keywords.children("anyOf"), places=keywords.places("anyOf"))


def one_of(keywords: Keywords) -> Iterator[Assertion]:
    yield OneOf(branches=keywords.children("oneOf"), places=keywords.places("oneOf"))


def negation(keywords: Keywords) -> Iterator[Assertion]:
    yield Not(schema=keywords.child("not"), places=keywords.places("not"))


def condition(keywords: Keywords) -> Iterator[Assertion]:
    places = keywords.places("if", "then", "else")
    if keywords.value("if") is None or len(places) < 2:
        keywords.treatments.update(dict.fromkeys(places, Treatment.ANNOTATION))
        return
    test = keywords.child("if")
    then = keywords.child("then") if keywords.value("then") is not None else ()
    otherwise = keywords.child("else") if keywords.value("else") is not None else ()
    met = test + then
    unmet = (Not(schema=test, places=places), *otherwise)
    yield AnyOf(branches=(met, unmet), places=places)


def dependencies(keywords: Keywords) -> Iterator[Assertion]:
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        for name, then in keywords.map(keyword).items():
            places = keywords.places(keyword)
            consequence = _consequence(keywords, keyword, name, then, places)
            absent = (Fields(named=((name, nothing(places)),), places=places),)
            present: Schema = (Required(names=(name,), places=places), *consequence)
            yield AnyOf(branches=(absent, present), places=places)


def _consequence(
    keywords: Keywords, keyword: str, name: str, then: JsonValue, places: Places
) -> Schema:
    if isinstance(then, list):
        names = tuple(str(other) for other in then)
        return (Required(names=names, places=places),)
    if isinstance(then, str):  # draft 3, still met
        return (Required(names=(then,), places=places),)
    return keywords.child(keyword, name)


def references(keywords: Keywords) -> Iterator[Assertion]:
    for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
        if keywords.value(keyword) is None:
            continue
        places = keywords.places(keyword)
        target = target_of(keywords, keyword)
        if target is None:
            yield Opaque(places=places)
        else:
            yield from child(keywords.document, target, places, shared=True)
