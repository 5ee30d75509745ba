"""Texts of a grammar by the dullest code: all the places where each part of it may end."""

from __future__ import annotations

import random
from functools import cache

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
from structgen.grammar.schema import charset


def recognises(grammar: Grammar, text: str) -> bool:
    """Whether a text is one of the grammar, which is not left-recursive."""

    @cache
    def rule(name: str, start: int) -> frozenset[int]:
        return frozenset(ends(grammar.rules[name].body, {start}))

    def ends(node: Node, starts: set[int]) -> set[int]:
        match node:
            case Literal(part):
                return {at + len(part) for at in starts if text.startswith(part, at)}
            case Chars(ranges, _):
                return {
                    at + 1
                    for at in starts
                    if at < len(text) and charset.holds(ranges, ord(text[at]))
                }
            case Reference(name, _):
                return {end for at in starts for end in rule(name, at)}
            case Concat(items):
                for item in items:
                    starts = ends(item, starts)
                return starts
            case Alternation(options):
                return {end for option in options for end in ends(option, starts)}
            case Repeat(item, low, high):
                for _ in range(low):
                    starts = ends(item, starts)
                found, new = set(starts), starts
                for _ in range(len(text) + 1 if high is None else high - low):
                    new = ends(item, new) - found
                    found |= new
                return found
        raise AssertionError(node)

    return len(text) in ends(grammar.rules[grammar.root].body, {0})


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
