"""A grammar as a tree.

The nodes of regular expressions, and two of their own: a text, and a reference to a rule.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from structgen.grammar.schema.regex import Alternation, Chars, Concat, Node, Repeat

__all__ = [
    "EMPTY",
    "Alternation",
    "Chars",
    "Concat",
    "Grammar",
    "Literal",
    "Node",
    "Reference",
    "Repeat",
    "Rule",
    "children",
    "references",
    "repeat",
]


class Literal(Node, frozen=True):
    text: str


class Reference(Node, frozen=True):
    """at: where it stands, by character of the grammar's text."""

    name: str
    at: int


class Rule(msgspec.Struct, frozen=True):
    """at: where its name stands, by character of the grammar's text."""

    name: str
    at: int
    body: Node


class Grammar(msgspec.Struct, frozen=True):
    """rules: by name, in the order of the text.  root: the name of the one to start from."""

    text: str
    rules: dict[str, Rule]
    root: str


EMPTY = Literal("")


def repeat(item: Node, low: int, high: int | None) -> Node:
    """Repeat a node; a repetition of a repetition is one where the numbers leave no gap.

    Written as it is, the two levels are ambiguous in every way to cut the text into pieces, and
    the libraries follow them all.
    """
    if not isinstance(item, Repeat):
        return Repeat(item, low, high)
    gapless = item.low <= 1 or (
        low > 0 and (item.high is None or (item.high - item.low) * low >= item.low - 1)
    )
    if not gapless or high == 0 or item.high == 0:
        return Repeat(item, low, high)
    most = None if item.high is None or high is None else item.high * high
    return Repeat(item.item, item.low * low, most)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Concat(items):
            return items
        case Alternation(options):
            return options
        case Repeat(item, _, _):
            return (item,)
    return ()


def references(node: Node) -> Iterator[Reference]:
    """Yield the references below a node, itself included, in the order of the text."""
    todo = [node]
    while todo:
        node = todo.pop()
        if isinstance(node, Reference):
            yield node
        todo += reversed(children(node))
