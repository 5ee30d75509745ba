"""What a schema does not allow, where a schema can say it.

Negation goes one level deep: what is said of items and properties is left as a Not, to be taken up
when they are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, pairwise

from structgen.grammar.schema import language, patterns
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Bound,
    Contains,
    Count,
    Elements,
    Fields,
    Interval,
    Length,
    Members,
    Not,
    OneOf,
    Other,
    Pattern,
    Range,
    Required,
    Schema,
    Size,
    Types,
    is_nothing,
    nothing,
    of_kind,
)
from structgen.grammar.schema.report import Places, union
from structgen.grammar.schema.values import (
    ALL_KINDS,
    NUMBERS,
    JsonValue,
    Kind,
    Value,
    exact,
    kind_of,
)

Expand = Callable[[Schema], Iterable[Assertion]]
Alternatives = list[Schema]


class Negator:
    """expand: gives the assertions behind a schema, References resolved."""

    def __init__(self, expand: Expand) -> None:
        self.expand = expand
        self._open: set[Schema] = set()
        self._known: dict[tuple[Schema, Places], Schema | None] = {}

    def negated(self, schema: Schema, places: Places) -> Schema | None:
        """Return the schema of all other values; None: it cannot be said.

        places: what is reported for the assertions made here, beside those they come from.
        """
        key = (schema, places)
        if key in self._known:
            return self._known[key]
        if schema in self._open:
            return None  # negating it leads back to it
        self._open.add(schema)
        self._known[key] = found = self._negated(schema, places)
        self._open.discard(schema)
        return found

    def all_negated(self, branches: tuple[Schema, ...], places: Places) -> Schema | None:
        """Return the schema of the values that none of the branches allows.

        The negations stand in it undone: carried out in each other, they would double in size
        with every level.
        """
        if any(self.negated(branch, places) is None for branch in branches):
            return None
        return tuple(Not(schema=branch, places=places) for branch in dict.fromkeys(branches))

    def _negated(self, schema: Schema, places: Places) -> Schema | None:
        found: Alternatives = []
        for assertion in self.expand(schema):
            alternatives = _Negation(self, places, assertion.places).of(assertion)
            if alternatives is None:
                return None
            found += alternatives
        return alternatives_of(found, places)


def alternatives_of(found: Alternatives, places: Places) -> Schema:
    if not found:
        return nothing(places)
    return found[0] if len(found) == 1 else (AnyOf(branches=tuple(found), places=places),)


class _Negation:
    """Of one assertion.  outer: the places of the negation; own: those of the assertion."""

    def __init__(self, negator: Negator, outer: Places, own: Places) -> None:
        self._negator = negator
        self._outer = outer
        self._places = union(outer, own)

    def of(self, assertion: Assertion) -> Alternatives | None:
        """Return schemas that together allow what the assertion does not; None: unknown."""
        match assertion:
            case Types(kinds=kinds):
                return [(Types(kinds=ALL_KINDS - kinds, places=self._places),)]
            case Members(values=values):
                return self._members([value.load() for value in values])
            case Range(low=low, high=high):
                return self._range(low, high)
            case Pattern(regex=regex):
                return self._pattern(regex)
            case Length() | Count() | Size():
                return self._interval(assertion)
            case Elements():
                return self._elements(assertion)
            case Contains(schema=schema, interval=interval):
                return [
                    (self._kind(Kind.ARRAY), self._contains(schema, outside))
                    for outside in interval.outside()
                ]
            case Required(names=names):
                return [self._without(name) for name in names]
            case Fields():
                return self._fields(assertion)
        return self._combined(assertion)

    def _combined(self, assertion: Assertion) -> Alternatives | None:
        match assertion:
            case AnyOf(branches=branches):
                every = self._negator.all_negated(branches, self._outer)
                return None if every is None else [every]
            case OneOf(branches=branches):
                every = self._negator.all_negated(branches, self._outer)
                pairs = [one + other for one, other in combinations(branches, 2)]
                return None if every is None else [every, *pairs]
            case Not(schema=schema):
                return [schema]
        return None

    def _kind(self, *kinds: Kind) -> Types:
        return of_kind(*kinds, places=self._places)

    def _range(self, low: Bound | None, high: Bound | None) -> Alternatives:
        found: Alternatives = []
        numbers = self._kind(*NUMBERS)
        if low:
            end = Bound(low.value, not low.open)
            found.append((numbers, Range(high=end, places=self._places)))
        if high:
            end = Bound(high.value, not high.open)
            found.append((numbers, Range(low=end, places=self._places)))
        return found

    def _pattern(self, regex: str) -> Alternatives | None:
        node = language.whole(regex)
        if node is None:
            return [(self._kind(Kind.STRING),)]
        if patterns.universal(regex):
            return []
        other = patterns.complement(regex)
        if other is None:
            return None
        return [(self._kind(Kind.STRING), Pattern(regex=other, places=self._places))]

    def _interval(self, assertion: Length | Count | Size) -> Alternatives:
        kinds = {Length: Kind.STRING, Count: Kind.ARRAY, Size: Kind.OBJECT}
        cls = type(assertion)
        return [
            (self._kind(kinds[cls]), cls(interval=outside, places=self._places))
            for outside in assertion.interval.outside()
        ]

    def _elements(self, elements: Elements) -> Alternatives | None:
        array = self._kind(Kind.ARRAY)
        found: Alternatives = []
        for index, schema in enumerate(elements.prefix):
            if schema:
                prefix = (*([()] * index), self._not(schema))
                wrong = Elements(prefix=prefix, places=self._places)
                found.append((array, self._at_least(index + 1), wrong))
        if is_nothing(elements.rest):
            found.append((array, self._at_least(len(elements.prefix) + 1)))
        elif elements.rest and elements.prefix:
            return None
        elif elements.rest:
            found.append((array, self._contains(self._not(elements.rest), Interval(1))))
        return found

    def _at_least(self, items: int) -> Count:
        return Count(interval=Interval(items), places=self._places)

    def _contains(self, schema: Schema, interval: Interval) -> Contains:
        return Contains(schema=schema, interval=interval, places=self._places)

    def _not(self, schema: Schema) -> Schema:
        return (Not(schema=schema, places=self._places),)

    def _without(self, name: str) -> Schema:
        absent = Fields(named=((name, nothing(self._places)),), places=self._places)
        return (self._kind(Kind.OBJECT), absent)

    def _with(self, name: str, schema: Schema) -> Schema:
        field = Fields(named=((name, schema),), places=self._places)
        required = Required(names=(name,), places=self._places)
        return (self._kind(Kind.OBJECT), required, field)

    def _fields(self, fields: Fields) -> Alternatives | None:
        found = [self._with(name, self._not(schema)) for name, schema in fields.named if schema]
        regexes = tuple(regex for regex, _ in fields.patterned)
        for regex, schema in fields.patterned:
            if schema:
                found.append(self._another(fields, regex, (), schema))
        if fields.rest:
            found.append(self._another(fields, None, regexes, fields.rest))
        return found

    def _another(
        self, fields: Fields, matching: str | None, apart_from: tuple[str, ...], schema: Schema
    ) -> Schema:
        """Return the objects with a property that has no schema by name, and does not obey one."""
        other = Other(
            besides=tuple(name for name, _ in fields.named),
            matching=matching,
            apart_from=apart_from,
            schema=() if is_nothing(schema) else self._not(schema),
            places=self._places,
        )
        return (self._kind(Kind.OBJECT), other)

    def _members(self, values: list[JsonValue]) -> Alternatives | None:
        kinds = {kind_of(value) for value in values}
        kinds |= NUMBERS if kinds & NUMBERS else set()
        others = ALL_KINDS - kinds
        found: Alternatives = [(Types(kinds=others, places=self._places),)] if others else []
        for kind in (Kind.BOOLEAN, Kind.INTEGER, Kind.STRING, Kind.ARRAY, Kind.OBJECT):
            if kind in kinds:
                rest = self._other(kind, values)
                if rest is None:
                    return None
                found += rest
        return found

    def _other(self, kind: Kind, values: list[JsonValue]) -> Alternatives | None:
        """Return what there is of a kind beside those of the values that are of it."""
        if kind is Kind.BOOLEAN:
            left = [Value.of(one) for one in (False, True) if one not in map(_boolean, values)]
            return [(Members(values=tuple(left), places=self._places),)] if left else []
        if kind is Kind.INTEGER:
            return self._other_numbers(values)
        if kind is Kind.STRING:
            return self._other_strings([value for value in values if isinstance(value, str)])
        containers: Schema = (self._kind(kind),)
        for value in values:
            if isinstance(value, list) and kind is Kind.ARRAY:
                containers += alternatives_of(self._other_arrays(value), self._places)
            elif isinstance(value, dict) and kind is Kind.OBJECT:
                containers += alternatives_of(self._other_objects(value), self._places)
        return [containers]

    def _other_numbers(self, values: list[JsonValue]) -> Alternatives:
        points = sorted(
            exact(value)
            for value in values
            if isinstance(value, int | float) and not isinstance(value, bool)
        )
        bounds = [None, *(Bound(point, True) for point in dict.fromkeys(points)), None]
        return [
            (self._kind(*NUMBERS), Range(low=low, high=high, places=self._places))
            for low, high in pairwise(bounds)
        ]

    def _other_strings(self, words: list[str]) -> Alternatives | None:
        if sum(map(len, words)) > language.MAX_EXCLUDED_CHARACTERS:
            return None
        regex = language.excluding(tuple(words))
        return [(self._kind(Kind.STRING), Pattern(regex=regex, places=self._places))]

    def _other_arrays(self, array: list[JsonValue]) -> Alternatives:
        size = Count(interval=Interval(len(array), len(array)), places=self._places)
        found = self._interval(size)
        for index, value in enumerate(array):
            prefix = (*([()] * index), self._not((self._only(value),)))
            found.append((size, Elements(prefix=prefix, places=self._places)))
        return found

    def _other_objects(self, value: dict[str, JsonValue]) -> Alternatives:
        more = Size(interval=Interval(len(value) + 1), places=self._places)
        found: Alternatives = [(self._kind(Kind.OBJECT), more)]
        for name, inner in value.items():
            found.append(self._without(name))
            found.append(self._with(name, self._not((self._only(inner),))))
        return found

    def _only(self, value: JsonValue) -> Members:
        return Members(values=(Value.of(value),), places=self._places)


def _boolean(value: JsonValue) -> bool | None:
    return value if isinstance(value, bool) else None
