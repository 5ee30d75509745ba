"""From assertions back to the text of a schema, such that one library enforces all of it."""

from __future__ import annotations

from collections.abc import Sequence

from structgen.errors import ConstraintTooLarge
from structgen.grammar import limits
from structgen.grammar.schema import expansion
from structgen.grammar.schema.algebra import Algebra
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Reference,
    Schema,
    is_nothing,
)
from structgen.grammar.schema.choices import distributed, exclusive
from structgen.grammar.schema.dialect import Dialect, Sizes
from structgen.grammar.schema.group import Group
from structgen.grammar.schema.leaf import Leaf
from structgen.grammar.schema.report import Place
from structgen.grammar.schema.sharing import DEFINITIONS, Sharing
from structgen.grammar.schema.values import ALL_KINDS, JsonValue

# Below this many levels of schemas, the next one is written elsewhere and referred to.
MAX_LEVELS = 12
MAX_LEVELS_WRITTEN_OUT = 30  # where nothing can be referred to

# Properties of one object, over all the cases that it is written in.
MAX_COPIES = 4_000

# To one schema; more only if it leads back to itself.
MAX_CHANGES = 64

# Of one schema, in the unit of the work of an algebra: an assertion taken up.
WORK_OF_WRITING = 20


class Lowering:
    """Writes one schema for one dialect."""

    def __init__(self, algebra: Algebra, dialect: Dialect) -> None:
        self.leaf = Leaf(dialect, self.lower)
        self._algebra = algebra
        self._dialect = dialect
        self._written: dict[Schema, JsonValue] = {}
        self._open: dict[Schema, None] = {}  # being written, outermost first
        self._names: dict[Schema, str] = {}
        self._waiting: list[Schema] = []

    def document(self, root: Schema) -> JsonValue:
        """Return the whole schema, with what it refers to."""
        written = self._write(root)
        definitions: dict[str, JsonValue] = {}
        while self._waiting:
            schema = self._waiting.pop()
            definitions[self._names[schema]] = self._write(schema)
        if isinstance(written, bool):
            return written
        return Sharing(self._dialect.recursion).document(written, definitions)

    def lower(self, schema: Schema) -> JsonValue:
        if not schema:
            return True
        if is_nothing(schema) or self._algebra.empty(schema):
            return False
        schema = self._algebra.direct(schema)
        if schema in self._written:
            return self._written[schema]
        if schema in self._names:
            return self._reference(schema)
        shared = len(schema) == 1 and isinstance(schema[0], Reference) and schema[0].shared
        if shared and self._dialect.recursion:
            return self._reference(schema)
        if schema in self._open or len(self._open) >= self._most_levels():
            return self._reference(schema)
        return self._write(schema)

    def _most_levels(self) -> int:
        return MAX_LEVELS if self._dialect.recursion else MAX_LEVELS_WRITTEN_OUT

    def _reference(self, schema: Schema) -> JsonValue:
        if not self._dialect.recursion:
            self._give_up_recursion(schema)
            return True
        if self._trivial(schema):
            return True
        if schema not in self._names:
            self._names[schema] = f"d{len(self._names)}"
            self._waiting.append(schema)
        return {"$ref": f"#/{DEFINITIONS}/{self._names[schema]}"}

    def _give_up_recursion(self, schema: Schema) -> None:
        targets = [one.target for one in schema if isinstance(one, Reference)]
        self.leaf.give_up(tuple(Place(target, "$ref") for target in targets or [""]))
        for assertion in schema:
            self.leaf.give_up(assertion.places)

    def _trivial(self, schema: Schema) -> bool:
        found = self._algebra.group(schema)
        return found is not None and not found.schema()

    def _write(self, schema: Schema) -> JsonValue:
        self._algebra.spend(WORK_OF_WRITING)
        outer = self._open
        # What is written elsewhere, later, starts at the top again.
        self._open = {**outer, schema: None} if outer else {schema: None}
        written = self._body(schema)
        self._open = outer
        self._written[schema] = written
        return written

    def _body(self, schema: Schema) -> JsonValue:
        found = self._resolved(self._algebra.group(schema))
        if found is None:
            return False
        if not found.any_of:
            return self.leaf.written(found)
        if self._is_plain_choice(found):
            return self._one_of(found.any_of[0].branches)
        cases = distributed(found, self._algebra)
        properties = sum(len(fields.named) for fields in found.fields)
        if cases is None or len(cases) * properties > MAX_COPIES:
            return self._side_by_side(found)
        return self._one_of(cases)

    def _one_of(self, cases: Sequence[Schema]) -> JsonValue:
        options: list[JsonValue] = []
        for case in cases:
            option = self.lower(case)
            if option is True:
                return True
            if option is not False and option not in options:
                options.append(option)
        if len(options) < 2:
            return options[0] if options else False
        return {"anyOf": options}

    def _is_plain_choice(self, found: Group) -> bool:
        """Whether there is one choice, and nothing beside it that its branches do not say."""
        rest = [one for one in found if not isinstance(one, AnyOf)]
        if len(found.any_of) > 1 or any(one is not found.types for one in rest):
            return False
        groups = [self._algebra.group(branch) for branch in found.any_of[0].branches]
        return found.kinds == ALL_KINDS or all(
            branch is None or branch.kinds <= found.kinds for branch in groups
        )

    def _side_by_side(self, found: Group) -> JsonValue:
        """Leave too many combinations to the library, if it takes choices beside others."""
        base = self._algebra.group(tuple(one for one in found if not isinstance(one, AnyOf)))
        if base is None:
            return False
        written = self.leaf.written(base)
        if not self._dialect.combines or not isinstance(written, dict):
            for choice in found.any_of:
                self.leaf.give_up(choice.places)
            return written
        every = written.get("allOf", [])
        assert isinstance(every, list)
        choices = [self._one_of(choice.branches) for choice in found.any_of]
        return {**written, "allOf": [*every, *choices]}

    def _resolved(self, found: Group | None) -> Group | None:
        """Say everything in terms that the dialect has; give up what cannot be."""
        for _ in range(MAX_CHANGES):
            changed = None if found is None else self._next(found)
            if changed is None:
                return found
            found = self._algebra.group(changed)
        raise ConstraintTooLarge(
            f"json_schema: a schema in it takes more than {MAX_CHANGES} steps to rewrite",
            field=limits.SCHEMA_FIELD,
        )

    def _next(self, found: Group) -> Schema | None:
        """Return the schema with one thing less that the dialect does not have; None: all done."""
        if found.members and (found.any_of or found.one_of or found.nots or found.opaque):
            return self._give_up(found, *found.any_of, *found.one_of, *found.nots, *found.opaque)
        if found.nots or found.opaque:
            return self._give_up(found, *found.nots, *found.opaque)
        if found.names:
            return self._or_give_up(
                found, found.names[0], expansion.names(found, found.names[0], self._algebra)
            )
        if found.others and not found.any_of:  # they may name more properties
            return self._or_give_up(
                found, found.others[0], expansion.other(found, found.others[0], self._algebra)
            )
        if found.unique:
            return self._or_give_up(
                found, found.unique, expansion.unique(found, found.unique, self._algebra)
            )
        if found.contains:
            first = found.contains[0]
            return self._or_give_up(found, first, expansion.contains(found, first, self._algebra))
        if found.one_of:
            return self._exclusive(found)
        if found.size and self._dialect.sizes is not Sizes.ANY:
            if expansion.counted_plainly(found):
                return None
            return self._or_give_up(found, found.size, expansion.sizes(found, found.size))
        return None

    def _exclusive(self, found: Group) -> Schema:
        choice = found.one_of[0]
        rest = expansion.without(found, choice)
        one, exact = exclusive(rest, choice, self._algebra)
        if not exact:
            self.leaf.give_up(choice.places)
        return (*rest, one)

    def _give_up(self, found: Group, *dropped: Assertion) -> Schema:
        for assertion in dropped:
            self.leaf.give_up(assertion.places)
        return expansion.without(found, *dropped)

    def _or_give_up(self, found: Group, old: Assertion, new: Schema | None) -> Schema:
        return self._give_up(found, old) if new is None else new
