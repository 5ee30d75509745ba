"""A conjunction of assertions with those of one sort merged into one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TypeVar

import msgspec

from structgen.grammar.schema import fields as objects
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Bound,
    Contains,
    Count,
    Elements,
    Fields,
    Format,
    Interval,
    Length,
    Members,
    Multiple,
    Names,
    Not,
    OneOf,
    Opaque,
    Other,
    Pattern,
    Range,
    Required,
    Schema,
    Size,
    Types,
    Unique,
)
from structgen.grammar.schema.report import union
from structgen.grammar.schema.values import ALL_KINDS, Kind

T = TypeVar("T", Pattern, Format, Contains, Names, AnyOf, OneOf, Not, Opaque, Other)


class Group(msgspec.Struct):
    """At most one assertion of each sort that can be merged; no References."""

    types: Types = Types(kinds=ALL_KINDS)
    members: Members | None = None
    range: Range | None = None
    multiple: Multiple | None = None
    length: Length | None = None
    patterns: tuple[Pattern, ...] = ()
    formats: tuple[Format, ...] = ()
    count: Count | None = None
    elements: Elements | None = None
    contains: tuple[Contains, ...] = ()
    unique: Unique | None = None
    size: Size | None = None
    required: Required | None = None
    fields: tuple[Fields, ...] = ()  # more than one only if they cannot be said as one
    names: tuple[Names, ...] = ()
    others: tuple[Other, ...] = ()
    any_of: tuple[AnyOf, ...] = ()
    one_of: tuple[OneOf, ...] = ()
    nots: tuple[Not, ...] = ()
    opaque: tuple[Opaque, ...] = ()

    @property
    def kinds(self) -> frozenset[Kind]:
        return self.types.kinds

    @property
    def lengths(self) -> Interval:
        return self.length.interval if self.length else Interval()

    @property
    def counts(self) -> Interval:
        return self.count.interval if self.count else Interval()

    @property
    def sizes(self) -> Interval:
        return self.size.interval if self.size else Interval()

    @property
    def needed(self) -> tuple[str, ...]:
        return self.required.names if self.required else ()

    def copy(self) -> Group:
        return msgspec.structs.replace(self)

    def schema(self) -> Schema:
        return tuple(self)

    def __iter__(self) -> Iterator[Assertion]:
        if self.types.kinds != ALL_KINDS:
            yield self.types
        for name in self.__struct_fields__[1:]:
            value = getattr(self, name)
            if isinstance(value, tuple):
                yield from value
            elif value is not None:
                yield value


def group(assertions: Iterable[Assertion]) -> Group:
    """Merge assertions, none of them a Reference."""
    result = Group()
    for assertion in assertions:
        _add(result, assertion)
    return result


def _add(to: Group, new: Assertion) -> None:
    match new:
        case Types():
            places = union(to.types.places, new.places)
            to.types = Types(kinds=to.types.kinds & new.kinds, places=places)
        case Members():
            to.members = _members(to.members, new)
        case Range():
            to.range = _range(to.range, new)
        case Multiple():
            to.multiple = _multiple(to.multiple, new)
        case Length() | Count() | Size():
            _add_interval(to, new)
        case Elements():
            to.elements = _elements(to.elements, new)
        case Unique():
            to.unique = to.unique or new
        case Required():
            old = to.required or Required(names=())
            names = tuple(dict.fromkeys(old.names + new.names))
            to.required = Required(names=names, places=union(old.places, new.places))
        case Fields():
            to.fields = objects.merged(to.fields, new)
        case _:
            _collect(to, new)


def _collect(to: Group, new: Assertion) -> None:
    match new:
        case Pattern():
            to.patterns = _with(to.patterns, new)
        case Format():
            to.formats = _with(to.formats, new)
        case Contains():
            to.contains = _with(to.contains, new)
        case Names():
            to.names = _with(to.names, new)
        case Other():
            to.others = _with(to.others, new)
        case AnyOf():
            to.any_of = _with(to.any_of, new)
        case OneOf():
            to.one_of = _with(to.one_of, new)
        case Not():
            to.nots = _with(to.nots, new)
        case Opaque():
            to.opaque = _with(to.opaque, new)
        case _:
            raise AssertionError(new)


def _with(collected: tuple[T, ...], new: T) -> tuple[T, ...]:
    return collected if new in collected else collected + (new,)  # noqa: RUF005  (mypy)


def _add_interval(to: Group, new: Length | Count | Size) -> None:
    match new:
        case Length():
            old = to.length or Length(interval=Interval())
            met = old.interval.meet(new.interval)
            to.length = Length(interval=met, places=union(old.places, new.places))
        case Count():
            before = to.count or Count(interval=Interval())
            met = before.interval.meet(new.interval)
            to.count = Count(interval=met, places=union(before.places, new.places))
        case Size():
            known = to.size or Size(interval=Interval())
            met = known.interval.meet(new.interval)
            to.size = Size(interval=met, places=union(known.places, new.places))


def _members(old: Members | None, new: Members) -> Members:
    if old is None:
        return new
    keys = {value.key for value in new.values}
    values = tuple(value for value in old.values if value.key in keys)
    return Members(values=values, places=union(old.places, new.places))


def _range(old: Range | None, new: Range) -> Range:
    if old is None:
        return new
    return Range(
        low=_tighter(old.low, new.low, 1),
        high=_tighter(old.high, new.high, -1),
        places=union(old.places, new.places),
    )


def _tighter(first: Bound | None, second: Bound | None, sign: int) -> Bound | None:
    """Return the bound further along; sign: 1 for lower bounds, -1 for upper ones."""
    if first is None or second is None:
        return first or second
    return max(first, second, key=lambda bound: (sign * bound.value, bound.open))


def _multiple(old: Multiple | None, new: Multiple) -> Multiple:
    if old is None:
        return new
    common = Fraction(
        math.lcm(old.of.numerator, new.of.numerator),
        math.gcd(old.of.denominator, new.of.denominator),
    )
    return Multiple(of=common, places=union(old.places, new.places))


def _elements(old: Elements | None, new: Elements) -> Elements:
    if old is None:
        return new
    longest = max(len(old.prefix), len(new.prefix))
    return Elements(
        prefix=tuple(both(item(old, index), item(new, index)) for index in range(longest)),
        rest=both(old.rest, new.rest),
        places=union(old.places, new.places),
    )


def item(elements: Elements, index: int) -> Schema:
    """Return the schema of the item at an index."""
    return elements.prefix[index] if index < len(elements.prefix) else elements.rest


def both(first: Schema, second: Schema) -> Schema:
    """Return the conjunction of two schemas, each assertion once."""
    return objects.both(first, second)
