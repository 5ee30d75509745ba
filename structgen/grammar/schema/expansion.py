"""Assertions that few libraries have, said with those that all have.

Each function takes a settled group that has the assertion and returns a schema, free of it, that
allows the same; None: that cannot be said, or takes too much.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations
from math import comb, perm

from structgen.grammar.schema import fields as objects
from structgen.grammar.schema import formats, language
from structgen.grammar.schema.algebra import Algebra
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Contains,
    Count,
    Elements,
    Fields,
    Interval,
    Members,
    Names,
    Not,
    Other,
    Required,
    Schema,
    Size,
    Types,
    Unique,
    is_nothing,
    nothing,
    of_kind,
)
from structgen.grammar.schema.group import Group, both
from structgen.grammar.schema.values import JsonValue, Kind, Value

MAX_SUBSETS = 128  # of the optional properties of an object
MAX_SEQUENCES = 2_000  # of different items of an array
MAX_POSITIONS = 6  # of the items of an array that one of them has to be at


def without(group: Group, *dropped: Assertion | None) -> Schema:
    """Return the schema of a group but for some of its assertions."""
    return tuple(one for one in group if not any(one is other for other in dropped))


def names(group: Group, names: Names, algebra: Algebra) -> Schema | None:
    """Say propertyNames by names and patterns."""
    rest = without(group, names)
    found = algebra.decided((*names.schema, of_kind(Kind.STRING)))
    if found is None:
        return (*rest, Size(interval=Interval(0, 0), places=names.places))
    if len(group.fields) > 1 or found.any_of or found.one_of or found.nots or found.opaque:
        return None
    old = group.fields[0] if group.fields else Fields()
    if found.members:
        words = [str(value.load()) for value in found.members.values]
        named = tuple((word, ()) for word in words)
        return (*rest, Fields(named=named, rest=nothing(names.places), places=names.places))
    new = _matching(old, names, found, algebra)
    return None if new is None else (*without(group, names, *group.fields), new)


def _matching(old: Fields, names: Names, found: Group, algebra: Algebra) -> Fields | None:
    verdicts = {name: algebra.judge.obeys(name, names.schema) for name, _ in old.named}
    if None in verdicts.values():
        return None
    nowhere = nothing(names.places)
    named = [(name, schema if verdicts[name] else nowhere) for name, schema in old.named]
    places = tuple(dict.fromkeys(old.places + names.places))
    if objects.closed(old):
        return Fields(named=tuple(named), rest=old.rest, places=places)
    regex = _single_pattern(found)
    if regex is None or (old.patterned and [known for known, _ in old.patterned] != [regex]):
        return None
    schema = old.patterned[0][1] if old.patterned else old.rest
    return Fields(named=tuple(named), patterned=((regex, schema),), rest=nowhere, places=places)


def _single_pattern(found: Group) -> str | None:
    """Return one pattern that says all that is said of a string."""
    regexes = [pattern.regex for pattern in found.patterns]
    for form in found.formats:
        exactly = formats.assertions(form.name, ())
        if len(exactly) != 1:
            return None
        regexes.append(getattr(exactly[0], "regex", ""))
    if not regexes:
        lengths = found.lengths
        return language.anchored(language.sized(lengths.low, lengths.high))
    return regexes[0] if len(regexes) == 1 and found.length is None else None


def unique(group: Group, assertion: Unique, algebra: Algebra) -> Schema | None:
    """Say uniqueItems by listing every array, where the items have few values."""
    elements = group.elements
    values = None if elements is None else finite(elements.rest, algebra)
    if elements is None or elements.prefix or values is None:
        return None
    most = min(len(values), len(values) if group.counts.high is None else group.counts.high)
    sizes = range(group.counts.low, most + 1)
    if sum(perm(len(values), size) for size in sizes) > MAX_SEQUENCES:
        return None
    arrays = [
        Value.of([value.load() for value in chosen])
        for size in sizes
        for chosen in permutations(values, size)
    ]
    listed: Schema = (Members(values=tuple(arrays), places=assertion.places),)
    others = group.kinds - {Kind.ARRAY}
    rest = without(group, assertion, group.count, group.elements)
    if not others:
        return (*rest, *listed)
    other = (Types(kinds=others, places=assertion.places),)
    return (*rest, AnyOf(branches=(other, listed), places=assertion.places))


def finite(schema: Schema, algebra: Algebra) -> list[Value] | None:
    """Return all values of a schema, if they are few and plain."""
    found = algebra.decided(schema)
    if found is None:
        return []
    if found.any_of or found.one_of or found.nots or found.opaque:
        return None
    if found.members:
        return list(found.members.values)
    if not found.kinds <= {Kind.NULL, Kind.BOOLEAN}:
        return None
    small: list[JsonValue] = [None] if Kind.NULL in found.kinds else []
    small += [False, True] if Kind.BOOLEAN in found.kinds else []
    return [Value.of(value) for value in small]


def contains(group: Group, assertion: Contains, algebra: Algebra) -> Schema | None:
    """Say contains by the number of items, or by the place of the one that is meant."""
    rest = without(group, assertion)
    elements = group.elements or Elements()
    other: Schema = (Not(schema=assertion.schema, places=assertion.places),)
    items = [*elements.prefix, elements.rest]
    if algebra.negated(assertion.schema, ()) is not None and all(
        algebra.empty(schema + other) for schema in items
    ):
        return (*rest, Count(interval=assertion.interval, places=assertion.places))
    longest = group.counts.high
    no_array = Types(kinds=group.kinds - {Kind.ARRAY}, places=assertion.places)
    if all(algebra.empty(schema + assertion.schema) for schema in items):
        return rest if assertion.interval.low == 0 else (*rest, no_array)
    if longest is not None and longest < assertion.interval.low:
        return (*rest, no_array)
    if longest is None or longest > MAX_POSITIONS:
        return None
    branches = tuple(_placed(assertion, other, longest))
    return (*rest, AnyOf(branches=branches, places=assertion.places))


def _placed(assertion: Contains, other: Schema, longest: int) -> Iterator[Schema]:
    """Yield for each choice of places the arrays that have a match there (and only there, if
    their number has an upper bound)."""
    low, high = assertion.interval.low, assertion.interval.high
    if low == 0:
        short = Interval(0, high)
        yield (Count(interval=short, places=assertion.places),)
    counts = [low] if high is None else range(low, min(high, longest) + 1)
    for number in counts:
        for places in combinations(range(longest), number):
            prefix = tuple(
                assertion.schema if index in places else () if high is None else other
                for index in range(longest)
            )
            least = Interval(max(places, default=-1) + 1)
            yield (
                Count(interval=least, places=assertion.places),
                Elements(prefix=prefix, places=assertion.places),
            )


def other(group: Group, other: Other, algebra: Algebra) -> Schema | None:
    """Say by its name which property it is that has to obey a schema."""
    if len(group.fields) != 1:
        return None
    (fields,) = group.fields
    unnamed = [fields.rest, *(schema for _, schema in fields.patterned)]
    meant = [(name, objects.is_meant(other, name)) for name, _ in fields.named]
    if None in dict(meant).values() or not all(
        algebra.empty(both(schema, other.schema)) for schema in unnamed
    ):
        return None
    places = other.places
    branches: list[Schema] = [
        (
            Required(names=(name,), places=places),
            Fields(named=((name, other.schema),), places=places),
        )
        for name, is_meant in meant
        if is_meant
    ]
    branches.append((Types(kinds=group.kinds - {Kind.OBJECT}, places=places),))
    return (*without(group, other), AnyOf(branches=tuple(branches), places=places))


def sizes(group: Group, size: Size) -> Schema | None:
    """Say minProperties and maxProperties by which of the optional properties there are.

    What has other properties keeps bounds, but all properties that it names are required.
    """
    if len(group.fields) > 1:
        return None
    fields = group.fields[0] if group.fields else Fields()
    optional = [
        name for name, schema in fields.named if name not in group.needed and not is_nothing(schema)
    ]
    low = max(0, size.interval.low - len(group.needed))
    high = None if size.interval.high is None else size.interval.high - len(group.needed)
    rest = without(group, size)
    chosen = _Subsets(optional, size)
    if objects.closed(fields):
        found = chosen.closed(low, high)
    else:
        found = chosen.open(low, high)
    return None if found is None else (*rest, AnyOf(branches=tuple(found), places=size.places))


def counted_plainly(group: Group) -> bool:
    """Whether every property that is named is also required, or forbidden."""
    return all(
        name in group.needed or is_nothing(schema)
        for fields in group.fields
        for name, schema in fields.named
    )


class _Subsets:
    def __init__(self, optional: list[str], size: Size) -> None:
        self._optional = optional
        self._size = size

    def closed(self, low: int, high: int | None) -> list[Schema] | None:
        """Return the choices if there are no other properties."""
        number = len(self._optional)
        if high is None or high >= number:
            return self._first(low) if comb(number, low) <= MAX_SUBSETS else None
        if low == 0:
            if comb(number, high) > MAX_SUBSETS:
                return None
            return [self._only(subset, ()) for subset in combinations(self._optional, high)]
        return self._exactly(range(low, high + 1))

    def open(self, low: int, high: int | None) -> list[Schema] | None:
        """Return the choices if there may be other properties, which the bounds then count."""
        number = len(self._optional)
        if high is not None:
            found = self._exactly(range(min(number, high) + 1))
            return None if found is None else [(*branch, self._size) for branch in found]
        few = self._exactly(range(min(low, number + 1)))
        if few is None or (low <= number and comb(number, low) > MAX_SUBSETS):
            return None
        enough = self._first(low) if low <= number else []
        return [*enough, *((*branch, self._size) for branch in few)]

    def _first(self, number: int) -> list[Schema]:
        """Return one choice for each way the first `number` of them can be."""
        found = []
        for subset in combinations(range(len(self._optional)), number):
            last = subset[-1] if subset else -1
            absent = [self._optional[index] for index in range(last + 1) if index not in subset]
            found.append(self._choice([self._optional[index] for index in subset], absent))
        return found

    def _exactly(self, numbers: range) -> list[Schema] | None:
        if sum(comb(len(self._optional), number) for number in numbers) > MAX_SUBSETS:
            return None
        return [
            self._only(subset, subset)
            for number in numbers
            for subset in combinations(self._optional, number)
        ]

    def _only(self, subset: tuple[str, ...], required: tuple[str, ...]) -> Schema:
        absent = [name for name in self._optional if name not in subset]
        return self._choice(list(required), absent)

    def _choice(self, required: list[str], absent: list[str]) -> Schema:
        places = self._size.places
        named = tuple((name, nothing(places)) for name in absent)
        return (
            Required(names=tuple(required), places=places),
            Fields(named=named, places=places),
        )
