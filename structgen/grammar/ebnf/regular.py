"""A grammar as one regular expression, where its language is regular.

A rule without recursion is put in its place.  Rules that lead to each other only at the end of what
they stand for are equations X = A X | B, whose solution is A* B (Arden); several are solved like
linear ones, by elimination.
"""

from __future__ import annotations

from collections.abc import Sequence

from structgen.errors import BeyondBackend
from structgen.grammar.ebnf.fault import GRAMMAR_FIELD, place
from structgen.grammar.ebnf.graph import components
from structgen.grammar.ebnf.tree import (
    Alternation,
    Chars,
    Concat,
    Grammar,
    Literal,
    Node,
    Reference,
    Repeat,
    references,
)
from structgen.grammar.ecma_regex import Style, Translation, Writer
from structgen.grammar.limits import MAX_GRAMMAR_REGEX

MAX_REGEX_DEPTH = 200  # groups in each other; the libraries' parsers take 250

_EMPTY = Translation("")
_Sum = dict[str | None, Translation]  # of what comes before each rule; None: before the end


def to_regex(grammar: Grammar, style: Style, reserved: str = "") -> Translation:
    """Return a regex of the texts of the grammar, none of which has a reserved character.

    Raises BeyondBackend: the grammar is not regular, as far as is seen here, or its regex is too
    large.  Raises ValueError: a class has reserved characters alone.
    """
    return _Expansion(grammar, Writer(style, reserved)).whole()


class _Expansion:
    """known: the regexes of rules."""

    def __init__(self, grammar: Grammar, writer: Writer) -> None:
        self._grammar = grammar
        self._writer = writer
        self._known: dict[str, Translation] = {}

    def whole(self) -> Translation:
        graph = self._graph()
        for component in components(graph):
            name = component[0]
            if len(component) == 1 and name not in graph[name]:
                self._known[name] = self._write(self._grammar.rules[name].body)
            else:
                self._solve(component)
        result = self._known[self._grammar.root]
        self._require_shallow(result)
        return result

    def _graph(self) -> dict[str, list[str]]:
        """Return which rules each rule leads to, as far as the root needs them."""
        graph: dict[str, list[str]] = {}
        todo = [self._grammar.root]
        while todo:
            name = todo.pop()
            if name not in graph:
                found = references(self._grammar.rules[name].body)
                graph[name] = list(dict.fromkeys(reference.name for reference in found))
                todo += graph[name]
        return graph

    def _write(self, node: Node) -> Translation:
        match node:
            case Literal(text):
                return self._writer.text(text)
            case Chars():
                return self._writer.write(node)
            case Reference(name, _):
                return self._known[name]
            case Concat(items):
                return self._join([self._write(item) for item in items])
            case Alternation(options):
                return self._either([self._write(option) for option in options])
            case Repeat(item, low, high):
                return self._repeat(self._write(item), low, high)
        raise AssertionError(node)

    # ---- recursion

    def _solve(self, component: Sequence[str]) -> None:
        inside = frozenset(component)
        sums = {name: self._sum(self._grammar.rules[name].body, inside) for name in component}
        for index, name in enumerate(component):
            sums[name] = self._without_loop(sums[name], name)
            for other in component[index + 1 :]:
                sums[other] = self._substitute(sums[other], name, sums[name])
        for name in reversed(component):
            (self._known[name],) = self._close(sums[name]).values()

    def _sum(self, node: Node, inside: frozenset[str]) -> _Sum:
        """Return what stands before each rule of `inside`, where they only stand at the end."""
        found = next((ref for ref in references(node) if ref.name in inside), None)
        if found is None:
            return {None: self._write(node)}
        match node:
            case Reference(name, _):
                return {name: _EMPTY}
            case Alternation(options):
                return self._add([self._sum(option, inside) for option in options])
            case Concat(items):
                self._refuse_recursion(items[:-1], inside)
                before = [self._write(item) for item in items[:-1]]
                return self._times(before, self._sum(items[-1], inside))
            case Repeat(_, _, 0):
                return {None: _EMPTY}
            case Repeat(item, 0, 1):
                return self._add([{None: _EMPTY}, self._sum(item, inside)])
            case Repeat(item, 1, 1):
                return self._sum(item, inside)
        raise self._not_regular(found)

    def _refuse_recursion(self, nodes: Sequence[Node], inside: frozenset[str]) -> None:
        for node in nodes:
            for reference in references(node):
                if reference.name in inside:
                    raise self._not_regular(reference)

    def _without_loop(self, terms: _Sum, name: str) -> _Sum:
        """Solve X = A X | B for the rule X of this name."""
        rest = {target: before for target, before in terms.items() if target != name}
        if name not in terms:
            return rest
        return self._times([self._repeat(terms[name], 0, None)], rest)

    def _substitute(self, terms: _Sum, name: str, value: _Sum) -> _Sum:
        rest = {target: before for target, before in terms.items() if target != name}
        if name not in terms:
            return rest
        return self._add([rest, self._times([terms[name]], value)])

    def _close(self, terms: _Sum) -> _Sum:
        """Put the known rules into a sum."""
        return self._add(
            [
                {None: before if name is None else self._join([before, self._known[name]])}
                for name, before in terms.items()
            ]
        )

    def _add(self, sums: Sequence[_Sum]) -> _Sum:
        targets = dict.fromkeys(target for terms in sums for target in terms)
        return {
            target: self._either([terms[target] for terms in sums if target in terms])
            for target in targets
        }

    def _times(self, before: Sequence[Translation], terms: _Sum) -> _Sum:
        return {target: self._join([*before, after]) for target, after in terms.items()}

    # ---- writing

    def _join(self, parts: Sequence[Translation]) -> Translation:
        self._require_small(parts)
        return self._writer.join(parts)

    def _either(self, parts: Sequence[Translation]) -> Translation:
        self._require_small(parts)
        return parts[0] if len(parts) == 1 else self._writer.either(parts)

    def _repeat(self, item: Translation, low: int, high: int | None) -> Translation:
        return self._writer.repeat(item, low, high)

    def _require_small(self, parts: Sequence[Translation]) -> None:
        if sum(len(part.text) for part in parts) > MAX_GRAMMAR_REGEX:
            raise BeyondBackend(
                f"grammar: as a regex it would have more than {MAX_GRAMMAR_REGEX} characters",
                field=GRAMMAR_FIELD,
            )

    def _require_shallow(self, regex: Translation) -> None:
        depth = deepest = 0
        for sign in regex.text:  # parentheses of a text are written as numbers
            depth += (sign == "(") - (sign == ")")
            deepest = max(deepest, depth)
        if deepest > MAX_REGEX_DEPTH:
            raise BeyondBackend(
                f"grammar: as a regex it would have more than {MAX_REGEX_DEPTH} nested groups",
                field=GRAMMAR_FIELD,
            )

    def _not_regular(self, reference: Reference) -> BeyondBackend:
        where = place(self._grammar.text, reference.at)
        return BeyondBackend(
            f"grammar {where}: the rule {reference.name!r} is recursive, which takes a library for "
            "context-free grammars",
            field=GRAMMAR_FIELD,
        )
