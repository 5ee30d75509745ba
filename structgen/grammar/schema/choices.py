"""anyOf and oneOf: exclusive branches told apart, and the keywords beside them put into each."""

from __future__ import annotations

from structgen.grammar import limits
from structgen.grammar.schema import fields as objects
from structgen.grammar.schema.algebra import Algebra
from structgen.grammar.schema.assertions import (
    AnyOf,
    Assertion,
    Count,
    Fields,
    Interval,
    OneOf,
    Required,
    Schema,
    Size,
    Types,
    of_kind,
)
from structgen.grammar.schema.expansion import finite
from structgen.grammar.schema.group import Group, both
from structgen.grammar.schema.report import Places
from structgen.grammar.schema.values import ALL_KINDS, JsonValue, Kind

# More branches are not compared one by one.
MAX_RIVALS = 64


def exclusive(base: Schema, choice: OneOf, algebra: Algebra) -> tuple[AnyOf, bool]:
    """Return an anyOf that, beside `base`, allows what the oneOf does; and whether it is exact,
    or allows more."""
    branches = [branch for branch in choice.branches if not algebra.empty(both(base, branch))]
    if _told_apart([algebra.group(both(base, branch)) for branch in branches], algebra):
        return AnyOf(branches=tuple(branches), places=choice.places), True
    if len(branches) > MAX_RIVALS:
        return AnyOf(branches=tuple(branches), places=choice.places), False
    exact = True
    apart = []
    for index, branch in enumerate(branches):
        for rival in _rivals(base, branches, index, algebra):
            common = both(both(base, branch), rival)
            negation = _without_the_empty(common, choice.places, algebra)
            if negation is None:
                negation = algebra.negated(rival, choice.places)
            exact = exact and negation is not None
            branch = both(branch, negation or ())
        apart.append(branch)
    return AnyOf(branches=tuple(apart), places=choice.places), exact


def _rivals(base: Schema, branches: list[Schema], index: int, algebra: Algebra) -> list[Schema]:
    """Return the other branches that may allow the same as one does."""
    own = both(base, branches[index])
    others = branches[:index] + branches[index + 1 :]
    return [other for other in others if not algebra.empty(both(own, other))]


def _without_the_empty(common: Schema, places: Places, algebra: Algebra) -> Schema | None:
    """Return what leaves out the empty array, or object, if that is all that two branches allow in
    common; None: it is not."""
    emptiness: list[tuple[Kind, JsonValue, Assertion]] = [
        (Kind.ARRAY, [], Count(interval=Interval(1), places=places)),
        (Kind.OBJECT, {}, Size(interval=Interval(1), places=places)),
    ]
    for kind, value, filled in emptiness:
        others = of_kind(*(ALL_KINDS - {kind}))
        if (
            algebra.empty((*common, others))
            and algebra.empty((*common, filled, of_kind(kind)))
            and algebra.judge.obeys(value, common)
        ):
            return (filled,)
    return None


def _told_apart(branches: list[Group | None], algebra: Algebra) -> bool:
    """Whether the kinds, or the values of one required property, are different in all branches."""
    groups = [branch for branch in branches if branch is not None]
    if sum(len(one.kinds) for one in groups) == len(frozenset().union(*(g.kinds for g in groups))):
        return True
    if any(one.kinds != {Kind.OBJECT} or len(one.fields) != 1 for one in groups):
        return False
    names = set.intersection(*(set(one.needed) for one in groups)) if groups else set()
    return any(_discriminates(name, groups, algebra) for name in sorted(names))


def _discriminates(name: str, groups: list[Group], algebra: Algebra) -> bool:
    seen: set[str] = set()
    for one in groups:
        schema = objects.of_name(one.fields[0], name)
        values = None if schema is None else finite(schema, algebra)
        keys = set() if values is None else {value.key for value in values}
        if values is None or keys & seen:
            return False
        seen |= keys
    return True


def distributed(base: Group, algebra: Algebra) -> list[Schema] | None:
    """Return the cases of a group with its choices made: every combination of branches that
    allows something.  None: they are too many."""
    rest = tuple(one for one in base if not isinstance(one, AnyOf))
    cases: list[Schema] = [rest]
    choices = [choice for choice in base.any_of if not _is_implied(choice, base, algebra)]
    for choice in sorted(choices, key=lambda choice: len(choice.branches)):
        cases = list(
            dict.fromkeys(
                joined
                for case in cases
                for branch in choice.branches
                if not algebra.empty(joined := both(case, branch))
            )
        )
        if len(cases) > limits.MAX_BRANCHES:
            return None
    return cases


def _is_implied(choice: AnyOf, base: Group, algebra: Algebra) -> bool:
    """Whether what stands beside a choice already makes one branch true."""
    return any(
        all(_implies(base, assertion) for assertion in algebra.expand(branch))
        for branch in choice.branches
    )


def _implies(base: Group, assertion: Assertion) -> bool:
    match assertion:
        case Types(kinds=kinds):
            return base.kinds <= kinds
        case Required(names=names):
            return Kind.OBJECT not in base.kinds or set(names) <= set(base.needed)
        case Fields(named=named, patterned=(), rest=()) if base.fields:
            known = [(objects.of_name(base.fields[0], name), schema) for name, schema in named]
            return all(old is not None and set(schema) <= set(old) for old, schema in known)
    return False
