"""A group without choices, written in the JSON Schema of one dialect."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from structgen.grammar.schema import formats, patterns
from structgen.grammar.schema.assertions import (
    Assertion,
    Elements,
    Fields,
    Format,
    Interval,
    Length,
    Members,
    Pattern,
    Range,
    Types,
)
from structgen.grammar.schema.dialect import Dialect, Sizes
from structgen.grammar.schema.group import Group
from structgen.grammar.schema.properties import JsonObject, Lower, Properties
from structgen.grammar.schema.report import Place, Places
from structgen.grammar.schema.values import (
    ALL_KINDS,
    BY_NUMBER,
    NUMBERS,
    JsonValue,
    Kind,
    number_of,
    strings_in,
)

# The largest double within int64.
LARGEST_BOUND = 2**63 - 1024


class Leaf:
    """lower: writes sub-schemas.  Grows `unenforced` and `verified` by what is left out."""

    def __init__(self, dialect: Dialect, lower: Lower) -> None:
        self.unenforced: dict[Place, None] = {}
        self.verified: dict[Place, None] = {}
        self._dialect = dialect
        self._lower = lower

    def give_up(self, places: Places) -> None:
        self.unenforced.update(dict.fromkeys(places))

    def written(self, group: Group) -> JsonValue:
        if group.members:
            return self._members(group)
        parts = self._parts(group)
        plain = [kind for kind in Kind if kind in group.kinds and not parts.get(_basic(kind))]
        if self._dialect.combines:
            return _combined(self._types(group, group.kinds), parts.values())
        options: list[JsonValue] = [
            {**self._types(group, group.kinds & kinds), **part}
            for kinds, part in ((_all_of(kind), part) for kind, part in parts.items())
            if part
        ]
        if plain:
            options.insert(0, self._types(group, frozenset(plain)))
        return options[0] if len(options) == 1 else {"anyOf": options}

    def _members(self, group: Group) -> JsonValue:
        """Write an enumeration.  Of values that may have a format or not, those are left that are
        known to; what else could not be told of all of them is given up."""
        assert group.members is not None
        values = [value.load() for value in group.members.values]
        for assertion in group:
            if isinstance(assertion, Format):
                described = [one for one in values if formats.describes(assertion, one)]
                if not described:
                    self.give_up(assertion.places)
                values = described or values
            elif not isinstance(assertion, Types | Members):
                self.give_up(assertion.places)
        if not self._dialect.numbered_escapes and _needs_numbers(values):
            self.give_up(group.members.places)
        return {"const": values[0]} if len(values) == 1 else {"enum": values}

    def _types(self, group: Group, kinds: frozenset[Kind]) -> JsonObject:
        if kinds == ALL_KINDS:
            return {}
        if Kind.FRACTION in kinds and Kind.INTEGER not in kinds:
            self.give_up(group.types.places)
        names: list[JsonValue] = [
            "number" if kind is Kind.FRACTION else kind.value
            for kind in Kind
            if kind in kinds and not (kind is Kind.INTEGER and Kind.FRACTION in kinds)
        ]
        return {"type": names[0] if len(names) == 1 else names}

    def _parts(self, group: Group) -> dict[Kind, JsonObject]:
        """Return what is said about the values of each kind; numbers are one kind here."""
        parts: dict[Kind, JsonObject] = {}
        if group.kinds & NUMBERS:
            parts[Kind.INTEGER] = self._number(group)
        if Kind.STRING in group.kinds:
            parts[Kind.STRING] = self._string(group)
        if Kind.ARRAY in group.kinds:
            parts[Kind.ARRAY] = self._array(group)
        if Kind.OBJECT in group.kinds:
            parts[Kind.OBJECT] = self._object(group)
        return parts

    def _number(self, group: Group) -> JsonObject:
        part = _bounds(group.range) if group.range else {}
        if part and group.range and not self._dialect.bounds:
            self.give_up(group.range.places)
            part = {}
        if group.multiple:
            of = group.multiple.of
            whole = of.denominator == 1
            fits = of <= self._dialect.largest_multiple
            alone = not part or self._dialect.bounded_multiples
            if fits and alone and (whole or self._dialect.fractional_multiples):
                part["multipleOf"] = number_of(of)
            else:
                self.give_up(group.multiple.places)
        return part

    def _string(self, group: Group) -> JsonObject:
        about: list[Assertion] = list(group.patterns)
        about += [group.length] if group.length else []
        for form in group.formats:
            exact = formats.assertions(form.name, form.places)
            near = formats.simple(form.name, form.places)
            if all(map(self._takes, exact)):
                about += exact
            elif near is not None and self._takes(near):
                about.append(near)
                self.verified.update(dict.fromkeys(form.places))
            elif form.name in self._dialect.formats and not about and len(group.formats) == 1:
                self.verified.update(dict.fromkeys(form.places))
                return {"format": form.name}
            else:
                self.give_up(form.places)
        return self._text(about)

    def _takes(self, assertion: Assertion) -> bool:
        """Whether the dialect has an assertion about strings, by itself."""
        if not isinstance(assertion, Pattern):
            return self._dialect.patterns_combine  # it would not be by itself
        return patterns.written(assertion.regex, self._dialect) is not None

    def _text(self, about: list[Assertion]) -> JsonObject:
        interval = Interval()
        lengths: Places = ()
        regexes: list[JsonValue] = []
        for assertion in about:
            match assertion:
                case Length(interval=more):
                    interval, lengths = interval.meet(more), lengths + assertion.places
                case Pattern(regex=regex):
                    written = patterns.written(regex, self._dialect)
                    full = bool(regexes) and not self._dialect.patterns_combine
                    if written is None or full:
                        self.give_up(assertion.places)
                    elif written not in regexes:
                        regexes.append(written)
        part: JsonObject = _interval(interval, "minLength", "maxLength")
        if part and regexes and not self._dialect.patterns_combine:
            self.give_up(lengths)
            part = {}
        if len(regexes) == 1:
            part["pattern"] = regexes[0]
        elif regexes:
            part["allOf"] = [{"pattern": regex} for regex in regexes]
        return part

    def _array(self, group: Group) -> JsonObject:
        elements = group.elements or Elements()
        most = group.counts.high
        prefix = [self._lower(schema) for schema in elements.prefix[:most]]
        prefix = [{} if schema is True else schema for schema in prefix]  # xgrammar wants objects
        if prefix and not (self._dialect.partial_tuples or group.counts.low == most == len(prefix)):
            self.give_up(elements.places)
            return _interval(group.counts, "minItems", "maxItems")
        part: JsonObject = {"prefixItems": prefix} if prefix else {}
        if prefix and most is not None and most <= len(prefix):
            part["items"] = False
            most = None
        elif (rest := self._lower(elements.rest)) is not True:
            part["items"] = rest
        part.update(_interval(Interval(group.counts.low, most), "minItems", "maxItems"))
        return part

    def _object(self, group: Group) -> JsonObject:
        for unsaid in group.others:
            self.give_up(unsaid.places)
        first, *others = group.fields or (Fields(),)
        part = Properties(self._dialect, self._lower, self.give_up).written(first, group)
        if others and self._dialect.combines:
            bare = Group()
            part["allOf"] = [
                Properties(self._dialect, self._lower, self.give_up).written(other, bare)
                for other in others
            ]
        elif others:
            for other in others:
                self.give_up(other.places)
        if group.size:
            if self._dialect.sizes is Sizes.NONE:
                self.give_up(group.size.places)
            else:
                part.update(_interval(group.sizes, "minProperties", "maxProperties"))
        return part


def _needs_numbers(values: list[JsonValue]) -> bool:
    return any(not BY_NUMBER.isdisjoint(text) for text in strings_in(values))


def _bounds(numbers: Range) -> JsonObject:
    part: JsonObject = {}
    if numbers.low:
        keyword = "exclusiveMinimum" if numbers.low.open else "minimum"
        part[keyword] = -_at_most(-numbers.low.value)
    if numbers.high:
        keyword = "exclusiveMaximum" if numbers.high.open else "maximum"
        part[keyword] = _at_most(numbers.high.value)
    return part


def _at_most(bound: Fraction) -> int | float:
    """Return the bound as the libraries can hold it: as a double, and within int64; if that is
    not exact, some of the largest numbers are lost."""
    if bound.denominator > 1:
        return float(bound)
    nearest = int(float(bound if bound < LARGEST_BOUND else LARGEST_BOUND))
    return nearest if nearest <= bound else int(math.nextafter(float(nearest), -math.inf))


def _interval(interval: Interval, low: str, high: str) -> JsonObject:
    part: JsonObject = {low: interval.low} if interval.low else {}
    if interval.high is not None:
        part[high] = interval.high
    return part


def _combined(first: JsonObject, parts: Iterable[JsonObject]) -> JsonObject:
    """Put parts into one object; only `allOf` can be in several."""
    result = dict(first)
    every: list[JsonValue] = []
    for part in parts:
        conjuncts = part.pop("allOf", [])
        assert isinstance(conjuncts, list)
        every += conjuncts
        result.update(part)
    return {**result, "allOf": every} if every else result


def _basic(kind: Kind) -> Kind:
    return Kind.INTEGER if kind is Kind.FRACTION else kind


def _all_of(kind: Kind) -> frozenset[Kind]:
    return NUMBERS if kind is Kind.INTEGER else frozenset({kind})
