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


def reference(keywords: Keywords) -> Iterator[Assertion]:
    target = keywords.document.resolve(str(keywords.value("$ref")), keywords.at("$ref"))
    yield from child(keywords.document, target, keywords.places("$ref"), shared=True)


def dynamic(keywords: Keywords) -> Iterator[Assertion]:
    """Dynamic references that can lead to one place only are plain ones."""
    for keyword in ("$dynamicRef", "$recursiveRef"):
        if keywords.value(keyword) is None:
            continue
        reference = str(keywords.value(keyword))
        places = keywords.places(keyword)
        if _leads_to_one_place(keywords, keyword, reference):
            target = keywords.document.resolve(reference, keywords.at(keyword))
            yield from child(keywords.document, target, places, shared=True)
        else:
            yield Opaque(places=places)


def _leads_to_one_place(keywords: Keywords, keyword: str, reference: str) -> bool:
    if keyword == "$recursiveRef":
        return keywords.document.count("$recursiveAnchor", True) == 0
    return keywords.document.count("$dynamicAnchor", reference.rpartition("#")[2]) <= 1
