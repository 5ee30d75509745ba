"""Texts of a grammar by dull code: all the places where each part of it may end."""

from __future__ import annotations

import random
from collections.abc import Sequence

from structgen.grammar.ebnf import Grammar
from structgen.grammar.ebnf.tree import (
    Alternation,
    Chars,
    Concat,
    Literal,
    Node,
    Reference,
    Repeat,
)
from structgen.grammar.lark.parser import is_terminal
from structgen.grammar.schema import charset


def recognises(grammar: Grammar, text: str, ignored: Sequence[Node] = ()) -> bool:
    """Whether a text is one of the grammar.  ignored: what may stand between Lark's terminals."""
    return _Recogniser(grammar, text, ignored).holds()


class _Recogniser:
    """found: where each rule ends that begins at some place, as far as is known.

    Rules may begin with themselves: the table grows until nothing is new.
    """

    def __init__(self, grammar: Grammar, text: str, ignored: Sequence[Node]) -> None:
        self.grammar = grammar
        self.text = text
        self.ignored = ignored
        self.found: dict[tuple[str, int], set[int]] = {}

    def holds(self) -> bool:
        self.rule(self.grammar.root, 0)
        size = -1
        while size < sum(map(len, self.found.values())) + len(self.found):
            size = sum(map(len, self.found.values())) + len(self.found)
            for name, start in list(self.found):
                inside = is_terminal(name) or not self.ignored
                body = self.grammar.rules[name].body
                self.found[name, start] |= self.ends(body, {start}, inside=inside)
        return len(self.text) in self.rule(self.grammar.root, 0)

    def rule(self, name: str, start: int) -> set[int]:
        return self.found.setdefault((name, start), set())

    def ends(self, node: Node, starts: set[int], *, inside: bool) -> set[int]:
        """Return where a node may end.  inside: of a terminal, where nothing is ignored."""
        match node:
            case Reference(name, _) if inside or not is_terminal(name):
                return {end for at in starts for end in self.rule(name, at)}
            case Concat(items):
                for item in items:
                    starts = self.ends(item, starts, inside=inside)
                return starts
            case Alternation(options):
                return {end for one in options for end in self.ends(one, starts, inside=inside)}
            case Repeat(item, low, high):
                for _ in range(low):
                    starts = self.ends(item, starts, inside=inside)
                found, new = set(starts), starts
                for _ in range(len(self.text) + 1 if high is None else high - low):
                    new = self.ends(item, new, inside=inside) - found
                    found |= new
                return found
        if not inside and node != Literal(""):
            return self.ends(node, self.spaced(starts), inside=True)
        match node:
            case Literal(part):
                return {at + len(part) for at in starts if self.text.startswith(part, at)}
            case Chars(ranges, _):
                return {at + 1 for at in starts if self.is_in(ranges, at)}
        raise AssertionError(node)

    def is_in(self, ranges: charset.Ranges, at: int) -> bool:
        return at < len(self.text) and charset.holds(ranges, ord(self.text[at]))

    def spaced(self, starts: set[int]) -> set[int]:
        """Pass over what is ignored, which nothing is before the first terminal."""
        any_number = Repeat(Alternation(tuple(self.ignored)), 0, None)
        return starts & {0} | self.ends(any_number, starts - {0}, inside=True)


def sample(grammar: Grammar, rng: random.Random, most_rules: int = 60) -> str | None:
    """Draw a text of the grammar; None if it would take more rules than that."""
    left = most_rules

    def draw(node: Node) -> str:
        nonlocal left
        match node:
            case Literal(text):
                return text
            case Chars(ranges, _):
                low, high = rng.choice(ranges)
                return chr(rng.choice([low, high, rng.randint(low, high)]))
            case Reference(name, _):
                left -= 1
                if left < 0:
                    raise OverflowError
                return draw(grammar.rules[name].body)
            case Concat(items):
                return "".join(map(draw, items))
            case Alternation(options):
                return draw(rng.choice(options))
            case Repeat(item, low, high):
                most = low + 3 if high is None else min(high, low + 3)
                return "".join(draw(item) for _ in range(rng.randint(low, most)))
        raise AssertionError(node)

    try:
        return draw(grammar.rules[grammar.root].body)
    except OverflowError:
        return None
