"""Properties of objects: which schema a name has, and two sets of properties made one."""

from __future__ import annotations

from structgen.grammar.schema import patterns
from structgen.grammar.schema.assertions import Fields, Other, Schema, is_nothing
from structgen.grammar.schema.report import union


def both(first: Schema, second: Schema) -> Schema:
    """Return the conjunction of two schemas, each assertion once."""
    if first == second or not second:
        return first
    return tuple(dict.fromkeys(first + second)) if first else second


def of_name(fields: Fields, name: str) -> Schema | None:
    """Return the schema of a property; None: not known."""
    for known, schema in fields.named:
        if known == name:
            return schema
    return of_other_name(fields, name)


def of_other_name(fields: Fields, name: str) -> Schema | None:
    """Return the schema of a property that has none by name; None: not known."""
    if not fields.patterned:
        return fields.rest
    hits = [patterns.found_in(regex, name) for regex, _ in fields.patterned]
    if None in hits:
        return None
    if not any(hits):
        return fields.rest
    result: Schema = ()
    for (_, schema), hit in zip(fields.patterned, hits, strict=True):
        result = both(result, schema) if hit else result
    return result


def is_meant(other: Other, name: str) -> bool | None:
    """Whether a property of this name is one of those meant; None: not known."""
    if name in other.besides:
        return False
    hits = [patterns.found_in(regex, name) for regex in other.apart_from]
    match = True if other.matching is None else patterns.found_in(other.matching, name)
    if match is False or True in hits:
        return False
    return None if match is None or None in hits else True


def closed(fields: Fields) -> bool:
    """Whether there is no property but the named ones."""
    return is_nothing(fields.rest) and all(is_nothing(schema) for _, schema in fields.patterned)


def merged(known: tuple[Fields, ...], new: Fields) -> tuple[Fields, ...]:
    """Merge with the first of those known that it can be said as one with."""
    for index, old in enumerate(known):
        one = _merged(old, new)
        if one is not None:
            return (*known[:index], one, *known[index + 1 :])
    return (*known, new)


def _merged(first: Fields, second: Fields) -> Fields | None:
    patterned = _patterned(first, second)
    if patterned is None:
        return None
    one, two = dict(first.named), dict(second.named)
    named = []
    for name in {**one, **two}:
        left = one[name] if name in one else of_other_name(first, name)
        right = two[name] if name in two else of_other_name(second, name)
        if left is None or right is None:
            return None
        named.append((name, both(left, right)))
    return Fields(
        named=tuple(named),
        patterned=patterned,
        rest=both(first.rest, second.rest),
        places=union(first.places, second.places),
    )


def _patterned(first: Fields, second: Fields) -> tuple[tuple[str, Schema], ...] | None:
    """Return the patterns of both; None: some name would get what neither says."""
    one, two = dict(first.patterned), dict(second.patterned)
    strangers = [(a, b) for a in one for b in two if a != b]
    open_ends = first.rest == () and second.rest == ()
    same = one.keys() == two.keys()
    if not (open_ends or same or all(patterns.disjoint(pair) for pair in strangers)):
        return None
    return tuple(
        (regex, both(one.get(regex, first.rest), two.get(regex, second.rest)))
        for regex in dict.fromkeys([*one, *two])
    )
