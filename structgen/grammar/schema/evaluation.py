"""Which properties and items the keywords of a schema have looked at: what unevaluatedProperties
and unevaluatedItems leave out.

    alternatives of a schema = [(conditions, evaluated), ...]

If the conditions hold of a value, then that is evaluated of it.  More may be: whenever several
branches of an anyOf hold, there is an alternative for all of them too, with more conditions.  As
what is evaluated needs not obey the unevaluated keyword, any alternative that holds is as good as
all that do, and none has to say that a branch does not hold (but for `else`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations

import msgspec

from structgen.grammar.schema import patterns
from structgen.grammar.schema.assertions import Not, Required, Schema
from structgen.grammar.schema.drafts import Draft
from structgen.grammar.schema.keywords import Keywords
from structgen.grammar.schema.references import target_of

MAX_ALTERNATIVES = 64


class TooMany(Exception):
    """There are too many alternatives, or it cannot be told what is evaluated."""


class Evaluated(msgspec.Struct, frozen=True):
    """names, regexes: of properties.  first: items; matching: schemas of other items.  all: every
    property, or every item."""

    names: frozenset[str] = frozenset()
    regexes: frozenset[str] = frozenset()
    first: int = 0
    matching: frozenset[Schema] = frozenset()
    all: bool = False

    def __or__(self, other: Evaluated) -> Evaluated:
        return Evaluated(
            self.names | other.names,
            self.regexes | other.regexes,
            max(self.first, other.first),
            self.matching | other.matching,
            self.all or other.all,
        )

    def __le__(self, other: Evaluated) -> bool:
        return other.all or self | other == other


NOTHING = Evaluated()
Alternative = tuple[Schema, Evaluated]
Own = Callable[[Keywords], Evaluated]


def of_properties(keywords: Keywords) -> list[Alternative]:
    """Return the alternatives of a schema but for its unevaluatedProperties.  Raises TooMany."""
    return _Evaluation(_own_properties).of(keywords, inner=False)


def of_items(keywords: Keywords) -> list[Alternative]:
    """Return the alternatives of a schema but for its unevaluatedItems.  Raises TooMany."""
    return _Evaluation(_own_items).of(keywords, inner=False)


class _Evaluation:
    """own: what the keywords of a schema evaluate that have no schemas for the value itself."""

    def __init__(self, own: Own) -> None:
        self._own = own
        self._unevaluated = (
            "unevaluatedProperties" if own is _own_properties else "unevaluatedItems"
        )
        self._open: set[str] = set()

    def of(self, keywords: Keywords, *, inner: bool = True) -> list[Alternative]:
        if keywords.pointer in self._open:
            raise TooMany
        if inner and keywords.value(self._unevaluated) is not None:
            return [((), Evaluated(all=True))]
        self._open.add(keywords.pointer)
        found: list[Alternative] = [((), self._own(keywords))]
        for part in self._parts(keywords):
            found = _simplified((a + b, one | two) for a, one in found for b, two in part)
        self._open.discard(keywords.pointer)
        return found

    def _parts(self, keywords: Keywords) -> Iterable[list[Alternative]]:
        """Yield the alternatives of each keyword that has schemas for the value itself."""
        for index in range(len(keywords.list("allOf"))):
            yield self._at(keywords, "allOf", index)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keywords.value(keyword) is not None:
                target = target_of(keywords, keyword)
                if target is None:
                    raise TooMany
                yield self._of_pointer(keywords, target)
        yield self._some(keywords, "anyOf")
        yield [((), NOTHING), *(one for part in self._branches(keywords, "oneOf") for one in part)]
        if keywords.value("if") is not None:
            yield self._condition(keywords)
        yield from self._dependent(keywords)

    def _at(self, keywords: Keywords, *tokens: str | int) -> list[Alternative]:
        return self._of_pointer(keywords, keywords.at(str(tokens[0]), *tokens[1:]))

    def _of_pointer(self, keywords: Keywords, pointer: str) -> list[Alternative]:
        raw = keywords.document.at(pointer)
        if not isinstance(raw, dict):
            return [((), NOTHING)]
        return self.of(Keywords(keywords.document, pointer, raw))

    def _branches(self, keywords: Keywords, keyword: str) -> list[list[Alternative]]:
        """Return the alternatives of the branches that evaluate something, each with the branch
        among its conditions."""
        found = []
        for index, schema in enumerate(keywords.children(keyword)):
            part = self._at(keywords, keyword, index)
            found.append([(schema + more, one) for more, one in part if one != NOTHING])
        return [part for part in found if part]

    def _some(self, keywords: Keywords, keyword: str) -> list[Alternative]:
        branches = self._branches(keywords, keyword)
        if 2 ** len(branches) > MAX_ALTERNATIVES:
            raise TooMany
        found: list[Alternative] = []
        for number in range(len(branches) + 1):
            for chosen in combinations(branches, number):
                joined: list[Alternative] = [((), NOTHING)]
                for part in chosen:
                    joined = [(a + b, one | two) for a, one in joined for b, two in part]
                found += joined
        return found

    def _condition(self, keywords: Keywords) -> list[Alternative]:
        test = keywords.child("if")
        found: list[Alternative] = [((), NOTHING)]
        then: list[Alternative] = [((), NOTHING)]
        if keywords.value("then") is not None:
            schema = keywords.child("then")
            then = [(schema + more, one) for more, one in self._at(keywords, "then")]
        for more, one in self._at(keywords, "if"):
            found += [(test + more + last, one | two) for last, two in then]
        if keywords.value("else") is not None:
            unmet = (Not(schema=test, places=keywords.places("if")), *keywords.child("else"))
            found += [(unmet + more, one) for more, one in self._at(keywords, "else")]
        return found

    def _dependent(self, keywords: Keywords) -> Iterable[list[Alternative]]:
        if any(isinstance(then, dict) for then in keywords.map("dependencies").values()):
            raise TooMany  # of an older draft: validators do not agree on what it evaluates
        for name in keywords.map("dependentSchemas"):
            present = Required(names=(name,), places=keywords.places("dependentSchemas"))
            schema = keywords.child("dependentSchemas", name)
            found = self._at(keywords, "dependentSchemas", name)
            yield [((), NOTHING), *(((present, *schema, *more), one) for more, one in found)]


def _own_properties(keywords: Keywords) -> Evaluated:
    regexes = frozenset(keywords.map("patternProperties"))
    for regex in regexes:
        if not keywords.supported(regex, keywords.at("patternProperties", regex)):
            raise TooMany
    return Evaluated(
        names=frozenset(keywords.map("properties")),
        regexes=regexes,
        all=keywords.value("additionalProperties") is not None
        or any(map(patterns.universal, regexes)),
    )


def _own_items(keywords: Keywords) -> Evaluated:
    items = keywords.value("items")
    prefix = items if isinstance(items, list) else keywords.list("prefixItems")
    rest = "additionalItems" if isinstance(items, list) else "items"
    contains = keywords.value("contains") is not None
    if contains and keywords.draft < Draft.DRAFT_2020:
        raise TooMany  # validators do not agree on whether it evaluates
    return Evaluated(
        first=len(prefix),
        matching=frozenset([keywords.child("contains")] if contains else []),
        all=keywords.value(rest) is not None,
    )


def _simplified(found: Iterable[Alternative]) -> list[Alternative]:
    """Leave out what another alternative says under fewer conditions.  Raises TooMany."""
    kept: list[Alternative] = []
    for conditions, evaluated in found:
        conditions = tuple(dict.fromkeys(conditions))
        if any(_covers(other, (conditions, evaluated)) for other in kept):
            continue
        kept = [other for other in kept if not _covers((conditions, evaluated), other)]
        kept.append((conditions, evaluated))
        if len(kept) > MAX_ALTERNATIVES:
            raise TooMany
    return kept


def _covers(one: Alternative, other: Alternative) -> bool:
    return set(one[0]) <= set(other[0]) and other[1] <= one[1]
