"""The shortest texts of the parts of a grammar."""

from __future__ import annotations

import math

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
from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges

MAX_CHARACTERS = 512  # longer ones are not known
MAX_ROUNDS = 50_000  # looks at a rule

_PREFERRED = "0aA_- "


class Shortest:
    """Remembers nodes by their identity; they live as long as the grammar and this do."""

    def __init__(self, grammar: Grammar) -> None:
        self._rules: dict[str, str] = {}
        self._known: dict[int, tuple[Node, str | None]] = {}
        self._settle(grammar)

    def of(self, node: Node) -> str | None:
        """Return a shortest text of a node; None: it is too long to be known."""
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = node, self._find(node)
        return known[1]

    def cost(self, node: Node) -> float:
        text = self.of(node)
        return math.inf if text is None else len(text)

    def _settle(self, grammar: Grammar) -> None:
        """Find the texts of all rules: each may get shorter because one that it uses did."""
        users: dict[str, list[str]] = {}
        for rule in grammar.rules.values():
            for name in dict.fromkeys(reference.name for reference in references(rule.body)):
                users.setdefault(name, []).append(rule.name)
        todo = list(grammar.rules)
        for _ in range(MAX_ROUNDS):
            if not todo:
                return
            name = todo.pop()
            text = self._find(grammar.rules[name].body)
            before = self._rules.get(name)
            if text is not None and (before is None or len(text) < len(before)):
                self._rules[name] = text
                todo += users.get(name, [])

    def _find(self, node: Node) -> str | None:
        match node:
            case Literal(text):
                return text
            case Chars(ranges, _):
                return _representative(ranges)
            case Reference(name, _):
                return self._rules.get(name)
            case Concat(items):
                return _joined([self._find(item) for item in items])
            case Alternation(options):
                texts = [self._find(option) for option in options]
                return min((text for text in texts if text is not None), key=len, default=None)
            case Repeat(item, low, _):
                once = self._find(item) if low else ""
                return None if once is None or len(once) * low > MAX_CHARACTERS else once * low
        raise AssertionError(node)


def _joined(parts: list[str | None]) -> str | None:
    text = "".join(part or "" for part in parts)
    return None if None in parts or len(text) > MAX_CHARACTERS else text


def _representative(ranges: Ranges) -> str:
    """Return the character that looks most like an ordinary value."""
    for character in _PREFERRED:
        if charset.holds(ranges, ord(character)):
            return character
    printable = (max(low, 0x21) for low, high in ranges if high >= 0x21)
    return chr(next(printable, ranges[0][0]))
