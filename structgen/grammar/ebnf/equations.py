"""Rules that lead to each other, solved where they do so at one end only.

Rules that stand at the end of what they are used in are equations X = A X | B, whose solution is
A* B (Arden); several are solved as linear equations are, by elimination.  With the rules at the
beginning, X = X A | B, the same holds the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from structgen.grammar.ebnf.tree import (
    Alternation,
    Concat,
    Node,
    Reference,
    Repeat,
    references,
)
from structgen.grammar.ecma_regex import Translation

_EMPTY = Translation("")
_Sum = dict[str | None, Translation]  # what stands with each rule; None: with none


class Algebra(Protocol):
    """What regexes are made with.  Each raises BeyondBackend: the regex would be too large."""

    def write(self, node: Node) -> Translation: ...
    def join(self, parts: Sequence[Translation]) -> Translation: ...
    def either(self, parts: Sequence[Translation]) -> Translation: ...
    def repeat(self, item: Translation, low: int, high: int | None) -> Translation: ...


class NotLinear(Exception):
    """A rule is used elsewhere than at the end."""

    def __init__(self, reference: Reference) -> None:
        super().__init__(reference.name)
        self.reference = reference


class Equations:
    """mirrored: the rules are at the beginnings, not at the ends."""

    def __init__(self, bodies: dict[str, Node], algebra: Algebra, *, mirrored: bool) -> None:
        """bodies: of the rules that lead to each other; the algebra knows all others."""
        self._bodies = bodies
        self._algebra = algebra
        self._mirrored = mirrored

    def solve(self) -> dict[str, Translation]:
        """Raises NotLinear, BeyondBackend."""
        sums = {name: self._sum(body) for name, body in self._bodies.items()}
        names = list(sums)
        for index, name in enumerate(names):
            sums[name] = self._without_loop(sums[name], name)
            for other in names[index + 1 :]:
                sums[other] = self._substitute(sums[other], name, sums[name])
        known: dict[str, Translation] = {}
        for name in reversed(names):
            for other, value in known.items():
                sums[name] = self._substitute(sums[name], other, {None: value})
            known[name] = sums[name][None]
        return known

    def _sum(self, node: Node) -> _Sum:
        inner = next((one for one in references(node) if one.name in self._bodies), None)
        if inner is None:
            return {None: self._algebra.write(node)}
        match node:
            case Reference(name, _):
                return {name: _EMPTY}
            case Alternation(options):
                return self._add([self._sum(option) for option in options])
            case Concat(items):
                *others, last = reversed(items) if self._mirrored else items
                return self._times(self._write_all(others), self._sum(last))
            case Repeat(_, _, 0):
                return {None: _EMPTY}
            case Repeat(item, 0, 1):
                return self._add([{None: _EMPTY}, self._sum(item)])
            case Repeat(item, 1, 1):
                return self._sum(item)
        raise NotLinear(inner)

    def _write_all(self, nodes: Sequence[Node]) -> list[Translation]:
        for node in nodes:
            for reference in references(node):
                if reference.name in self._bodies:
                    raise NotLinear(reference)
        return [self._algebra.write(node) for node in nodes]

    def _without_loop(self, terms: _Sum, name: str) -> _Sum:
        """Solve X = A X | B for the rule X of this name."""
        rest = {target: part for target, part in terms.items() if target != name}
        if name not in terms:
            return rest
        return self._times([self._algebra.repeat(terms[name], 0, None)], rest)

    def _substitute(self, terms: _Sum, name: str, value: _Sum) -> _Sum:
        rest = {target: part for target, part in terms.items() if target != name}
        if name not in terms:
            return rest
        return self._add([rest, self._times([terms[name]], value)])

    def _add(self, sums: Sequence[_Sum]) -> _Sum:
        targets = dict.fromkeys(target for terms in sums for target in terms)
        return {
            target: self._algebra.either([terms[target] for terms in sums if target in terms])
            for target in targets
        }

    def _times(self, parts: Sequence[Translation], terms: _Sum) -> _Sum:
        """Put parts between the beginning and what stands with the rules, or its mirror image."""
        return {
            target: self._algebra.join(
                [inner, *reversed(parts)] if self._mirrored else [*parts, inner]
            )
            for target, inner in terms.items()
        }
