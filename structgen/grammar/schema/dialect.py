"""What one library enforces of JSON Schema, as measured."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Sizes(StrEnum):
    """Which objects can have minProperties and maxProperties: none, those whose named properties
    are all required, any."""

    NONE = "none"
    PLAIN = "plain"
    ANY = "any"


class PatternProperties(StrEnum):
    """Not at all; one pattern and nothing else; any number that have no name in common."""

    NONE = "none"
    ALONE = "alone"
    APART = "apart"


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What may stand in a schema so that the library neither refuses nor drops it.

    combines: keywords for several kinds of value, or several allOf, may stand in one schema.
    patterns_combine: several patterns, and bounds of the length, on one string.
    not_in_patterns: characters that no string with a pattern can have.
    quotes_slip_in: a set that has all control characters, or all but the line feed, is taken to
    have a quote and a backslash too.
    intricate_patterns: what is repeated a number of times, or may be left out of alternatives that
    begin alike, may be any expression.
    formats: those of its own, for what no expression here will do; not relied on, but verified.
    numbered_escapes: strings may hold what JSON can only write by number.
    any_names: beside properties that are left open, others may have names that are not of ASCII, or
    that JSON escapes.
    partial_tuples: arrays may have fewer or more items than have a schema of their own.
    largest_multiple: of whole numbers; 0: none.  bounded_multiples: with other bounds beside them.
    """

    name: str
    combines: bool
    patterns_combine: bool
    not_in_patterns: frozenset[str]
    quotes_slip_in: bool = False
    intricate_patterns: bool
    unicode_properties: bool
    formats: frozenset[str] = frozenset()
    numbered_escapes: bool
    any_names: bool
    bounds: bool
    largest_multiple: int
    fractional_multiples: bool
    bounded_multiples: bool
    partial_tuples: bool
    sizes: Sizes
    pattern_properties: PatternProperties
    forbidden_properties: bool
    recursion: bool
