"""A schema as what it is: a conjunction of independent assertions.

    Schema = tuple[Assertion, ...]       () allows everything

Keywords that only mean something together (properties, patternProperties, additionalProperties)
are one assertion.  Sub-schemas that are more than `true` or `false` stand as a Reference to where
they are in the document, so that a Schema is shallow, cheap to hash, and recursion needs no care.
An assertion about one kind of value says nothing about the others, as in JSON Schema.  Each knows
which keywords of the client it stands for: `places`.
"""

from __future__ import annotations

from fractions import Fraction

import msgspec

from structgen.grammar.schema.report import Places
from structgen.grammar.schema.values import Kind, Value


class Assertion(msgspec.Struct, frozen=True, kw_only=True):
    places: Places = ()


Schema = tuple[Assertion, ...]


class Types(Assertion, frozen=True):
    """The value is of one of these kinds; of none: nothing is allowed."""

    kinds: frozenset[Kind]


class Members(Assertion, frozen=True):
    """The value is one of these."""

    values: tuple[Value, ...]


class Bound(msgspec.Struct, frozen=True):
    """One end of a range of numbers; open: the end itself is outside."""

    value: Fraction
    open: bool = False


class Range(Assertion, frozen=True):
    low: Bound | None = None
    high: Bound | None = None


class Multiple(Assertion, frozen=True):
    of: Fraction


class Interval(msgspec.Struct, frozen=True):
    """Whole numbers in [low, high], both inside; high None: no end."""

    low: int = 0
    high: int | None = None

    @property
    def empty(self) -> bool:
        return self.high is not None and self.high < self.low

    def meet(self, other: Interval) -> Interval:
        highs = [high for high in (self.high, other.high) if high is not None]
        return Interval(max(self.low, other.low), min(highs) if highs else None)

    def outside(self) -> list[Interval]:
        """Return what is left of [0, infinity)."""
        below = [Interval(0, self.low - 1)] if self.low > 0 else []
        above = [Interval(self.high + 1)] if self.high is not None else []
        return below + above


class Length(Assertion, frozen=True):
    """The characters of a string."""

    interval: Interval


class Pattern(Assertion, frozen=True):
    """A string in which the ECMA-262 expression is found."""

    regex: str


class Format(Assertion, frozen=True):
    """A format that the validator knows."""

    name: str


class Count(Assertion, frozen=True):
    """The items of an array."""

    interval: Interval


class Elements(Assertion, frozen=True):
    """The first items of an array one by one, and all that follow."""

    prefix: tuple[Schema, ...] = ()
    rest: Schema = ()


class Contains(Assertion, frozen=True):
    """How many items of an array obey a schema."""

    schema: Schema
    interval: Interval


class Unique(Assertion, frozen=True):
    """No two items of an array are equal."""


class Size(Assertion, frozen=True):
    """The properties of an object."""

    interval: Interval


class Required(Assertion, frozen=True):
    names: tuple[str, ...]


class Fields(Assertion, frozen=True):
    """The properties of an object, in the order in which they are written.

    Unlike in JSON Schema, `patterned` (expression, schema) says nothing about a property that is
    `named`, and all those that match apply to one that is not; `rest` is for what matches none.
    """

    named: tuple[tuple[str, Schema], ...] = ()
    patterned: tuple[tuple[str, Schema], ...] = ()
    rest: Schema = ()


class Other(Assertion, frozen=True):
    """Some property of an object obeys a schema: one that has none of the names `besides`, in whose
    name `matching` is found (None: anything) and none of `apart_from` is."""

    besides: tuple[str, ...]
    matching: str | None
    apart_from: tuple[str, ...]
    schema: Schema


class Names(Assertion, frozen=True):
    """The name of every property of an object, as a string, obeys a schema."""

    schema: Schema


class AnyOf(Assertion, frozen=True):
    branches: tuple[Schema, ...]


class OneOf(Assertion, frozen=True):
    branches: tuple[Schema, ...]


class Not(Assertion, frozen=True):
    schema: Schema


class Reference(Assertion, frozen=True):
    """The schema at a pointer of the document; shared: by $ref, so others may have it too."""

    target: str
    shared: bool = False


class Opaque(Assertion, frozen=True):
    """Something that nothing here can express: a look-ahead, unevaluatedItems, ..."""


def nothing(places: Places = ()) -> Schema:
    return (Types(kinds=frozenset(), places=places),)


NOTHING = nothing()


def is_nothing(schema: Schema) -> bool:
    """Whether the schema plainly says `false`."""
    return any(isinstance(assertion, Types) and not assertion.kinds for assertion in schema)


def of_kind(*kinds: Kind, places: Places = ()) -> Types:
    return Types(kinds=frozenset(kinds), places=places)
