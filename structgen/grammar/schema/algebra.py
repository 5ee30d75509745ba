"""Schemas put together, negated, and asked whether they allow anything at all.

Every answer is exact or says that it is not known.  The work of one preparation is counted: when
half of what it may take is done, nothing more is searched; when all is done, the schema is refused.
"""

from __future__ import annotations

from structgen.errors import ConstraintTooLarge
from structgen.grammar import limits
from structgen.grammar.schema import settling
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Not,
    OneOf,
    Reference,
    Schema,
    nothing,
)
from structgen.grammar.schema.fault import fault
from structgen.grammar.schema.group import Group, group
from structgen.grammar.schema.judge import Judge
from structgen.grammar.schema.negation import Negator
from structgen.grammar.schema.reader import Reader
from structgen.grammar.schema.report import Places

# How many levels of properties and items a search for emptiness goes down.
MAX_DEPTH = 5


class Algebra:
    def __init__(self, reader: Reader) -> None:
        self.judge = Judge(self.expand)
        self._reader = reader
        self._negator = Negator(self.expand)
        self._work = 0
        self._path: dict[str, None] = {}  # the targets being expanded, outermost first
        self._targets: dict[str, Schema] = {}
        self._expanded: dict[Schema, Schema] = {}
        self._groups: dict[Schema, Group | None] = {}
        self._empty: dict[tuple[Schema, int], bool] = {}

    def expand(self, schema: Schema) -> Schema:
        """Return the assertions behind a schema: no References, negations carried out.

        Raises ConstraintError: the schema is defined by itself alone.
        """
        known = self._expanded.get(schema)
        if known is None:
            parts = [self._expand(assertion) for assertion in schema]
            known = self._expanded[schema] = tuple(dict.fromkeys(sum(parts, ())))
            self.spend(len(known))
        return known

    def direct(self, schema: Schema) -> Schema:
        """Return what a schema that only refers to another one refers to in the end."""
        seen = set()
        while len(schema) == 1 and isinstance(schema[0], Reference):
            target = schema[0].target
            inner = self._reader.schema(target)
            plain = len(inner) == 1 and isinstance(inner[0], Reference)
            if not plain or target in seen:
                break
            seen.add(target)
            schema = inner
        return schema

    def group(self, schema: Schema, depth: int = MAX_DEPTH) -> Group | None:
        """Return the schema, merged and without what it implies; None: it allows nothing."""
        if depth < MAX_DEPTH:
            return self._group(schema, depth)
        if schema not in self._groups:
            self._groups[schema] = self._group(schema, depth)
        known = self._groups[schema]
        return known.copy() if known else None

    def empty(self, schema: Schema, depth: int = MAX_DEPTH) -> bool:
        """Whether the schema provably allows nothing."""
        if not schema or depth == 0 or self._work > limits.MAX_WORK // 2:
            return False
        key = (schema, depth)
        if key not in self._empty:
            self._empty[key] = False  # while it is being found out: recursion proves nothing
            self._empty[key] = self._is_empty(schema, depth)
        return self._empty[key]

    def decided(self, schema: Schema, depth: int = MAX_DEPTH) -> Group | None:
        """Return the schema as a group, with choices made that have one branch left."""
        found = self.group(schema)
        for choice in found.any_of if found and depth else ():
            rest = tuple(one for one in found or () if one is not choice)
            left = [branch for branch in choice.branches if not self.empty(rest + branch)]
            if len(left) == 1:
                return self.decided(rest + left[0], depth - 1)
        return found

    def negated(self, schema: Schema, places: Places) -> Schema | None:
        """Return the schema of all other values; None: it cannot be said."""
        return self._negator.negated(schema, places)

    def spend(self, work: int) -> None:
        """Raises ConstraintTooLarge: this was too much."""
        self._work += work
        if self._work > limits.MAX_WORK:
            raise ConstraintTooLarge(
                f"json_schema: rewriting it takes more than {limits.MAX_WORK} steps",
                field=limits.SCHEMA_FIELD,
            )

    def _is_empty(self, schema: Schema, depth: int) -> bool:
        found = self.group(schema, depth - 1)
        if found is None:
            return True
        choices = [choice.branches for choice in found.any_of]
        choices += [choice.branches for choice in found.one_of]
        if not choices:
            return False
        base = group(one for one in found if not isinstance(one, AnyOf | OneOf)).schema()
        return any(
            all(self.empty(base + branch, depth - 1) for branch in branches) for branches in choices
        )

    def _group(self, schema: Schema, depth: int) -> Group | None:
        self.spend(1)
        if _contradicts_itself(schema):
            return None
        assertions = self.expand(schema)
        found = group(assertions)
        self.spend(len(assertions) + sum(len(fields.named) for fields in found.fields))
        return found if settling.settle(found, self, depth) else None

    def _expand(self, assertion: Assertion) -> Schema:
        match assertion:
            case Reference(target=target):
                return self._behind(target)
            case AnyOf(branches=branches) if () in branches:
                return ()
            case AnyOf(branches=branches) | OneOf(branches=branches) if len(branches) < 2:
                return self.expand(branches[0] if branches else nothing(assertion.places))
            case Not(schema=schema, places=places):
                other = self._negator.negated(schema, places)
                return (assertion,) if other is None else self.expand(other)
        return (assertion,)

    def _behind(self, target: str) -> Schema:
        if target in self._targets:
            return self._targets[target]
        if target in self._path:
            raise fault("a schema that is defined by itself alone", target)
        most = limits.MAX_REFERENCE_DEPTH
        limits.within("the length of a chain of references", len(self._path), most, target)
        self._path[target] = None
        try:
            found = self.expand(self._reader.schema(target))
        finally:
            del self._path[target]
        self._targets[target] = found
        return found


def _contradicts_itself(schema: Schema) -> bool:
    """Whether it says of some schema both that it holds and that it does not."""
    negations = [assertion.schema for assertion in schema if isinstance(assertion, Not)]
    if not negations:
        return False
    said = {_target(assertion) for assertion in schema}
    return any({_target(one) for one in negation} <= said for negation in negations)


def _target(assertion: Assertion) -> Assertion | str:
    return assertion.target if isinstance(assertion, Reference) else assertion
