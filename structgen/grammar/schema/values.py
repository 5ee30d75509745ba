"""JSON values as JSON Schema compares them: 1 equals 1.0, true does not, keys have no order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from fractions import Fraction
from typing import TypeAlias

import msgspec

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"


class Kind(StrEnum):
    """The types of JSON Schema, made disjoint: a number is an INTEGER or a FRACTION."""

    NULL = "null"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FRACTION = "fraction"
    STRING = "string"
    ARRAY = "array"
    OBJECT = "object"


ALL_KINDS = frozenset(Kind)
NUMBERS = frozenset({Kind.INTEGER, Kind.FRACTION})
TYPES: dict[str, frozenset[Kind]] = {
    "null": frozenset({Kind.NULL}),
    "boolean": frozenset({Kind.BOOLEAN}),
    "integer": frozenset({Kind.INTEGER}),
    "number": NUMBERS,
    "string": frozenset({Kind.STRING}),
    "array": frozenset({Kind.ARRAY}),
    "object": frozenset({Kind.OBJECT}),
}


class Value(msgspec.Struct, frozen=True):
    """A JSON value that can be hashed.  text: compact JSON, keys in the client's order; key:
    equal for equal values."""

    text: str
    key: str

    @classmethod
    def of(cls, value: JsonValue) -> Value:
        return cls(dump(value), identity(value))

    def load(self) -> JsonValue:
        loaded: JsonValue = json.loads(self.text)
        return loaded


def dump(value: JsonValue) -> str:
    """Return compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


# What stands in a JSON string as an escape; of that, what has no short one.
ESCAPED = frozenset(map(chr, [*range(0x20), 0x7F])) | frozenset('"\\')
BY_NUMBER = ESCAPED - frozenset('"\\\b\t\n\f\r')


def strings_in(value: JsonValue) -> Iterator[str]:
    """Yield every string in a value, names of properties among them."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from strings_in(item)
        case dict():
            yield from value
            for item in value.values():
                yield from strings_in(item)


def identity(value: JsonValue) -> str:
    """Return a text that is equal for equal values, and only for those."""
    return dump(_canonical(value))


def kind_of(value: JsonValue) -> Kind:
    match value:
        case None:
            return Kind.NULL
        case bool():
            return Kind.BOOLEAN
        case int() | float():
            return Kind.INTEGER if is_whole(value) else Kind.FRACTION
        case str():
            return Kind.STRING
        case list():
            return Kind.ARRAY
        case dict():
            return Kind.OBJECT


def is_whole(value: int | float) -> bool:
    return isinstance(value, int) or value.is_integer()


def exact(value: int | float) -> Fraction:
    """Return the number that the shortest decimal text of `value` denotes."""
    return Fraction(value) if isinstance(value, int) else Fraction(repr(value))


def number_of(value: Fraction) -> int | float:
    """Return the JSON number nearest to `value`."""
    return value.numerator if value.denominator == 1 else float(value)


def _canonical(value: JsonValue) -> JsonValue:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_canonical(item) for item in value]
        case dict():
            return {name: _canonical(value[name]) for name in sorted(value)}
    return value
