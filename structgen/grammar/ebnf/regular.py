"""A grammar as one regular expression, where its language is regular.

A rule without recursion is put in its place; rules with it are solved where that is possible.
"""

from __future__ import annotations

from collections.abc import Sequence

from structgen.errors import BeyondBackend
from structgen.grammar.ebnf.equations import Equations, NotLinear
from structgen.grammar.ebnf.fault import GRAMMAR_FIELD, place
from structgen.grammar.ebnf.graph import components
from structgen.grammar.ebnf.tree import (
    Alternation,
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
                self._known[name] = self.write(self._grammar.rules[name].body)
            else:
                self._known |= self._solve(component)
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

    def _solve(self, component: Sequence[str]) -> dict[str, Translation]:
        bodies = {name: self._grammar.rules[name].body for name in component}
        try:
            return Equations(bodies, self, mirrored=False).solve()
        except NotLinear as first:
            try:
                return Equations(bodies, self, mirrored=True).solve()
            except NotLinear:
                raise self._not_regular(first.reference) from None

    # ---- the algebra

    def write(self, node: Node) -> Translation:
        match node:
            case Literal(text):
                return self._writer.text(text)
            case Reference(name, _):
                return self._known[name]
            case Concat(items):
                return self.join([self.write(item) for item in items])
            case Alternation(options):
                return self.either([self.write(option) for option in options])
            case Repeat(item, low, high):
                return self.repeat(self.write(item), low, high)
        return self._writer.write(node)

    def join(self, parts: Sequence[Translation]) -> Translation:
        self._require_small(parts)
        return self._writer.join(parts)

    def either(self, parts: Sequence[Translation]) -> Translation:
        self._require_small(parts)
        return parts[0] if len(parts) == 1 else self._writer.either(parts)

    def repeat(self, item: Translation, low: int, high: int | None) -> Translation:
        return self._writer.repeat(item, low, high)

    # ---- limits

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
