"""What a conjunction implies, made plain: kinds without a value left out, bounds tightened."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from structgen.grammar.schema import fields as objects
from structgen.grammar.schema import patterns
from structgen.grammar.schema.assertions import (
    Bound,
    Count,
    Elements,
    Fields,
    Interval,
    Members,
    Multiple,
    Not,
    Range,
    Schema,
    Size,
    Types,
    is_nothing,
)
from structgen.grammar.schema.group import Group, both
from structgen.grammar.schema.group import group as merge
from structgen.grammar.schema.report import Places, union
from structgen.grammar.schema.values import NUMBERS, Kind, kind_of

if TYPE_CHECKING:
    from structgen.grammar.schema.algebra import Algebra


def settle(group: Group, algebra: Algebra, depth: int) -> bool:
    """Simplify in place; return whether the group may still allow something."""
    if group.members:
        _settle_members(group, algebra)
    if group.kinds & NUMBERS:
        _settle_numbers(group)
    if Kind.STRING in group.kinds:
        _settle_strings(group)
    if Kind.ARRAY in group.kinds:
        _settle_arrays(group, algebra, depth)
    if Kind.OBJECT in group.kinds:
        _settle_objects(group, algebra, depth)
    _forget_other_kinds(group)
    return bool(group.kinds) and (group.members is None or bool(group.members.values))


def _without(group: Group, *kinds: Kind, places: Places = ()) -> None:
    left = group.kinds - set(kinds)
    group.types = Types(kinds=left, places=union(group.types.places, places))


def _settle_members(group: Group, algebra: Algebra) -> None:
    """Leave out the values that something else forbids, and what was thereby dealt with."""
    assert group.members is not None
    others = [one for one in group if not isinstance(one, Members)]
    loaded = [value.load() for value in group.members.values]
    verdicts = [[algebra.judge.holds(one, value) for one in others] for value in loaded]
    kept = [
        value for value, own in zip(group.members.values, verdicts, strict=True) if False not in own
    ]
    unknown = {index for own in verdicts if False not in own for index in _unknown(own)}
    left = merge(one for index, one in enumerate(others) if index in unknown)
    places = group.members.places
    for index, one in enumerate(others):
        places = places if index in unknown else union(places, one.places)
    kinds = frozenset(
        kind_of(value) for value, own in zip(loaded, verdicts, strict=True) if False not in own
    )
    _replace(group, left)
    group.types = Types(kinds=kinds, places=places)
    group.members = Members(values=tuple(kept), places=places)


def _unknown(verdicts: list[bool | None]) -> list[int]:
    return [index for index, verdict in enumerate(verdicts) if verdict is None]


def _replace(group: Group, by: Group) -> None:
    for name in group.__struct_fields__:
        setattr(group, name, getattr(by, name))


def _settle_numbers(group: Group) -> None:
    if group.multiple and group.multiple.of.denominator == 1:
        _without(group, Kind.FRACTION, places=group.multiple.places)
    only_whole = Kind.FRACTION not in group.kinds
    if only_whole and group.range:
        group.range = _whole_range(group.range)
    if only_whole and group.multiple:
        step = group.multiple.of.numerator  # what whole multiples of a fraction are multiples of
        places = group.multiple.places
        group.multiple = Multiple(of=Fraction(step), places=places) if step > 1 else None
    if group.range and _no_number(group.range):
        _without(group, *NUMBERS, places=group.range.places)
    elif group.range and group.range.low and group.range.low == group.range.high:
        whole = group.range.low.value.denominator == 1
        _without(group, Kind.FRACTION if whole else Kind.INTEGER, places=group.range.places)


def _whole_range(numbers: Range) -> Range:
    """Return the range with its ends at whole numbers, and inside."""
    low, high = numbers.low, numbers.high
    if low:
        least = math.floor(low.value) + 1 if low.open else math.ceil(low.value)
        low = Bound(Fraction(least))
    if high:
        most = math.ceil(high.value) - 1 if high.open else math.floor(high.value)
        high = Bound(Fraction(most))
    return Range(low=low, high=high, places=numbers.places)


def _no_number(numbers: Range) -> bool:
    if numbers.low is None or numbers.high is None:
        return False
    low, high = numbers.low, numbers.high
    return low.value > high.value or (low.value == high.value and (low.open or high.open))


def _settle_strings(group: Group) -> None:
    places = group.length.places if group.length else ()
    for pattern in group.patterns:
        places = union(places, pattern.places)
    regexes = [pattern.regex for pattern in group.patterns]
    if group.lengths.empty or (regexes and patterns.disjoint(regexes, group.lengths.high)):
        _without(group, Kind.STRING, places=places)
    group.patterns = tuple(one for one in group.patterns if not patterns.universal(one.regex))


def _settle_arrays(group: Group, algebra: Algebra, depth: int) -> None:
    if group.elements:
        _settle_elements(group, group.elements, algebra, depth)
    for contains in group.contains:
        if contains.interval.high == 0:
            other: Schema = (Not(schema=contains.schema, places=contains.places),)
            rest = Elements(rest=other, places=contains.places)
            elements = group.elements or Elements()
            group.elements = Elements(
                prefix=tuple(both(schema, other) for schema in elements.prefix),
                rest=both(elements.rest, rest.rest),
                places=union(elements.places, rest.places),
            )
    group.contains = tuple(
        one for one in group.contains if one.interval.high != 0 and one.interval != Interval()
    )
    if group.unique and group.counts.high is not None and group.counts.high < 2:
        group.unique = None
    if group.counts.empty or any(one.interval.empty for one in group.contains):
        _without(group, Kind.ARRAY, places=group.count.places if group.count else ())


def _settle_elements(group: Group, elements: Elements, algebra: Algebra, depth: int) -> None:
    """Let the array end before the first item that cannot be."""
    schemas = [*elements.prefix, elements.rest]
    for index, schema in enumerate(schemas):
        if is_nothing(schema) or algebra.empty(schema, depth):
            met = group.counts.meet(Interval(0, index))
            places = union(elements.places, group.count.places if group.count else ())
            group.count = Count(interval=met, places=places)
            prefix = elements.prefix[:index]
            group.elements = Elements(prefix=prefix, places=places) if prefix else None
            return


def _settle_objects(group: Group, algebra: Algebra, depth: int) -> None:
    places = group.required.places if group.required else ()
    for fields in group.fields:
        for name in group.needed:
            schema = objects.of_name(fields, name)
            if schema is not None and (is_nothing(schema) or algebra.empty(schema, depth)):
                _without(group, Kind.OBJECT, places=union(places, fields.places))
                return
    most = min((_most(fields) for fields in group.fields), default=math.inf)
    sizes = group.sizes
    if sizes.empty or sizes.low > most or _above(len(group.needed), sizes.high):
        _without(group, Kind.OBJECT, places=union(places, group.size.places if group.size else ()))
    elif group.size:
        low = sizes.low if sizes.low > len(group.needed) else 0
        high = sizes.high if sizes.high is not None and sizes.high < most else None
        left = Interval(low, high)
        group.size = Size(interval=left, places=group.size.places) if left != Interval() else None


def _most(fields: Fields) -> float:
    """Return how many properties there can be."""
    if not objects.closed(fields):
        return math.inf
    return sum(not is_nothing(schema) for _, schema in fields.named)


def _above(number: int, high: int | None) -> bool:
    return high is not None and number > high


def _forget_other_kinds(group: Group) -> None:
    """Drop what is said about kinds that cannot occur."""
    if not group.kinds & NUMBERS:
        group.range = group.multiple = None
    if Kind.STRING not in group.kinds:
        group.length, group.patterns, group.formats = None, (), ()
    if Kind.ARRAY not in group.kinds:
        group.count = group.elements = group.unique = None
        group.contains = ()
    if Kind.OBJECT not in group.kinds:
        group.size = group.required = None
        group.fields, group.names, group.others = (), (), ()
