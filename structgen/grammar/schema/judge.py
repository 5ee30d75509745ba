"""Whether one value obeys a schema, as far as that can be told here."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from structgen.grammar.schema import fields as objects
from structgen.grammar.schema import formats, patterns
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
    Other,
    Pattern,
    Range,
    Required,
    Schema,
    Size,
    Types,
    Unique,
)
from structgen.grammar.schema.group import item
from structgen.grammar.schema.values import JsonValue, exact, identity, kind_of

# True, False, or None: not known.
Verdict = bool | None

# Patterns are tried on texts up to this long; automata are slow.
MAX_TEXT = 2_000

# Schemas and values are followed inwards this far.
MAX_DEPTH = 32


class Judge:
    """expand: gives the assertions behind a schema, References resolved."""

    def __init__(self, expand: Callable[[Schema], Iterable[Assertion]]) -> None:
        self._expand = expand
        self._known: dict[tuple[Schema, int], Verdict] = {}  # by value's id, while it is judged
        self._keys: dict[int, tuple[Members, frozenset[str]]] = {}
        self._depth = 0

    def obeys(self, value: JsonValue, schema: Schema) -> Verdict:
        key = (schema, id(value))
        if key not in self._known:
            self._known[key] = None  # what depends on itself is not known
            self._depth += 1
            holds = (self.holds(assertion, value) for assertion in self._expand(schema))
            self._known[key] = _all(holds) if self._depth < MAX_DEPTH else None
            self._depth -= 1
        verdict = self._known[key]
        if self._depth == 0:
            self._known.clear()
        return verdict

    def holds(self, assertion: Assertion, value: JsonValue) -> Verdict:
        match assertion:
            case Types(kinds=kinds):
                return kind_of(value) in kinds
            case Members():
                return identity(value) in self._keys_of(assertion)
            case AnyOf(branches=branches):
                return _any(self.obeys(value, branch) for branch in branches)
            case OneOf(branches=branches):
                return _one([self.obeys(value, branch) for branch in branches])
            case Not(schema=schema):
                return _inverse(self.obeys(value, schema))
        match value:
            case bool() | None:
                return True
            case int() | float():
                return _number_holds(assertion, value)
            case str():
                return _text_holds(assertion, value)
            case list():
                return self._array_holds(assertion, value)
            case dict():
                return self._object_holds(assertion, value)

    def _keys_of(self, members: Members) -> frozenset[str]:
        # By identity, as hashing a long enumeration costs as much as reading it.
        known = self._keys.get(id(members))
        if known is None or known[0] is not members:
            known = self._keys[id(members)] = (
                members,
                frozenset(one.key for one in members.values),
            )
        return known[1]

    def _array_holds(self, assertion: Assertion, array: list[JsonValue]) -> Verdict:
        match assertion:
            case Count(interval=interval):
                return _inside(len(array), interval)
            case Elements():
                return _all(
                    self.obeys(one, item(assertion, index)) for index, one in enumerate(array)
                )
            case Contains(schema=schema, interval=interval):
                verdicts = [self.obeys(one, schema) for one in array]
                if None in verdicts:
                    return None
                return _inside(sum(map(bool, verdicts)), interval)
            case Unique():
                return len({identity(one) for one in array}) == len(array)
        return _elsewhere(assertion)

    def _object_holds(self, assertion: Assertion, value: dict[str, JsonValue]) -> Verdict:
        match assertion:
            case Size(interval=interval):
                return _inside(len(value), interval)
            case Required(names=names):
                return all(name in value for name in names)
            case Names(schema=schema):
                return _all(self.obeys(name, schema) for name in value)
            case Other():
                return self._other_holds(assertion, value)
            case Fields():
                return _all(
                    self._field_obeys(assertion, name, inner) for name, inner in value.items()
                )
        return _elsewhere(assertion)

    def _other_holds(self, other: Other, value: dict[str, JsonValue]) -> Verdict:
        verdicts: list[Verdict] = []
        for name, inner in value.items():
            meant = objects.is_meant(other, name)
            verdicts.append(_all([meant, self.obeys(inner, other.schema)]))
        return _any(verdicts)

    def _field_obeys(self, fields: Fields, name: str, value: JsonValue) -> Verdict:
        schema = objects.of_name(fields, name)
        return None if schema is None else self.obeys(value, schema)


def within(value: int | float, low: Bound | None, high: Bound | None) -> bool:
    number = exact(value)
    above = low is None or number > low.value or (number == low.value and not low.open)
    return above and (
        high is None or number < high.value or (number == high.value and not high.open)
    )


def _number_holds(assertion: Assertion, value: int | float) -> Verdict:
    match assertion:
        case Range(low=low, high=high):
            return within(value, low, high)
        case Multiple(of=multiple):
            return (exact(value) / multiple).denominator == 1
    return _elsewhere(assertion)


def _text_holds(assertion: Assertion, value: str) -> Verdict:
    match assertion:
        case Length(interval=interval):
            return _inside(len(value), interval)
        case Pattern(regex=regex):
            return patterns.found_in(regex, value) if len(value) <= MAX_TEXT else None
        case Format():
            # What is described is valid; what is not may be all the same.
            return formats.describes(assertion, value) or None
    return _elsewhere(assertion)


_ABOUT = (
    Range,
    Multiple,
    Length,
    Pattern,
    Format,
    Count,
    Elements,
    Contains,
    Unique,
    Size,
    Required,
)


def _elsewhere(assertion: Assertion) -> Verdict:
    """Return True for assertions about values of another kind, None for those not understood."""
    return True if isinstance(assertion, (*_ABOUT, Names, Fields, Other)) else None


def _inside(number: int, interval: Interval) -> bool:
    return number >= interval.low and (interval.high is None or number <= interval.high)


def _all(verdicts: Iterable[Verdict]) -> Verdict:
    result: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        result = None if verdict is None else result
    return result


def _any(verdicts: Iterable[Verdict]) -> Verdict:
    return _inverse(_all(_inverse(verdict) for verdict in verdicts))


def _one(verdicts: list[Verdict]) -> Verdict:
    if verdicts.count(True) > 1:
        return False
    return None if None in verdicts else verdicts.count(True) == 1


def _inverse(verdict: Verdict) -> Verdict:
    return None if verdict is None else not verdict
