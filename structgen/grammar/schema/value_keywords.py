"""Keywords about values as a whole, numbers and strings."""

from __future__ import annotations

from collections.abc import Iterator

from structgen.grammar.schema import formats, patterns
from structgen.grammar.schema.assertions import (
    Assertion,
    Bound,
    Format,
    Length,
    Members,
    Multiple,
    Opaque,
    Pattern,
    Range,
    Types,
)
from structgen.grammar.schema.keywords import Keywords
from structgen.grammar.schema.report import Places, Treatment
from structgen.grammar.schema.values import TYPES, Kind, Value, exact


def types(keywords: Keywords) -> Iterator[Assertion]:
    value = keywords.value("type")
    names = value if isinstance(value, list) else [value]
    kinds: frozenset[Kind] = frozenset().union(*(TYPES[str(name)] for name in names))
    yield Types(kinds=kinds, places=keywords.places("type"))


def members(keywords: Keywords) -> Iterator[Assertion]:
    if keywords.places("enum"):
        values = tuple(dict.fromkeys(Value.of(value) for value in keywords.list("enum")))
        yield Members(values=values, places=keywords.places("enum"))
    if keywords.places("const"):
        value = Value.of(keywords.keywords["const"])
        yield Members(values=(value,), places=keywords.places("const"))


def multiple(keywords: Keywords) -> Iterator[Assertion]:
    value = keywords.number("multipleOf")
    assert value is not None
    yield Multiple(of=exact(value), places=keywords.places("multipleOf"))


def lows(keywords: Keywords) -> Iterator[Assertion]:
    for bound, places in _bounds(keywords, "minimum", "exclusiveMinimum"):
        yield Range(low=bound, places=places)


def highs(keywords: Keywords) -> Iterator[Assertion]:
    for bound, places in _bounds(keywords, "maximum", "exclusiveMaximum"):
        yield Range(high=bound, places=places)


def _bounds(keywords: Keywords, closed: str, opened: str) -> Iterator[tuple[Bound, Places]]:
    end = keywords.number(closed)
    if end is not None:
        is_open = keywords.value(opened) is True  # draft 4
        names = (closed, opened) if is_open else (closed,)
        yield Bound(exact(end), is_open), keywords.places(*names)
    beyond = keywords.number(opened)
    if beyond is not None:
        yield Bound(exact(beyond), True), keywords.places(opened)


def lengths(keywords: Keywords) -> Iterator[Assertion]:
    interval = keywords.interval("minLength", "maxLength")
    yield Length(interval=interval, places=keywords.places("minLength", "maxLength"))


def pattern(keywords: Keywords) -> Iterator[Assertion]:
    regex = patterns.without_looks(str(keywords.value("pattern")))
    if keywords.supported(regex, keywords.at("pattern")):
        yield Pattern(regex=regex, places=keywords.places("pattern"))
    else:
        yield Opaque(places=keywords.places("pattern"))


def format(keywords: Keywords) -> Iterator[Assertion]:
    name = str(keywords.value("format"))
    if name in formats.KNOWN:
        yield Format(name=name, places=keywords.places("format"))
    else:
        keywords.note("format", Treatment.ANNOTATION)
