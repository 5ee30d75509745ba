"""The texts of a structural tag as one grammar, to find the ways to their ends.

It has all texts of the tag, and more: free text may be anything, and a pattern in a schema as well.
So what completes a text by it may be refused by the masks, which know better.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

from structgen.errors import StructgenError
from structgen.grammar.ebnf.parser import parse
from structgen.grammar.ebnf.tree import (
    Alternation,
    Chars,
    Concat,
    Grammar,
    Literal,
    Node,
    Reference,
    Repeat,
    Rule,
    children,
)
from structgen.grammar.schema import charset

_ANY = Chars(charset.EVERY)
_TEXT = Repeat(_ANY, 0, None)

# What xgrammar writes into the grammars that it makes of schemas.
_UNBOUNDED = re.compile(r", -1\}")
_PATTERN = re.compile(r'Regex\("(?:[^"\\]|\\.)*", json_string=true\)')
_STRING = r'[^"\\\x00-\x1f]*'


def outline(format: Mapping[str, Any]) -> Grammar:
    """format: of a structural tag as `prepare_tag` writes it."""
    writer = _Writer()
    writer.rules["(tag)"] = Rule("(tag)", 0, writer.node(format))
    return Grammar("", writer.rules, "(tag)")


class _Writer:
    def __init__(self) -> None:
        self.rules: dict[str, Rule] = {}
        self._numbers = itertools.count()
        self._writers: Mapping[str, Callable[[Mapping[str, Any]], Node]] = {
            "const_string": lambda format: Literal(format["value"]),
            "any_text": lambda format: _TEXT,
            "grammar": self._grammar,
            "sequence": lambda format: Concat(self._all(format["elements"])),
            "or": lambda format: Alternation(self._all(format["elements"])),
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
            "optional": lambda format: Repeat(self.node(format["content"]), 0, 1),
            "plus": lambda format: Repeat(self.node(format["content"]), 1, None),
            "star": lambda format: Repeat(self.node(format["content"]), 0, None),
            "repeat": self._repeat,
        }

    def node(self, format: Mapping[str, Any]) -> Node:
        return self._writers[format["type"]](format)

    def _all(self, formats: list[Mapping[str, Any]]) -> tuple[Node, ...]:
        return tuple(map(self.node, formats))

    def _repeat(self, format: Mapping[str, Any]) -> Node:
        high = None if format["max"] == -1 else format["max"]
        return Repeat(self.node(format["content"]), format["min"], high)

    def _tag(self, format: Mapping[str, Any]) -> Node:
        end = format["end"]
        ends = [end] if isinstance(end, str) else end
        return Concat(
            (
                Literal(format["begin"]),
                self.node(format["content"]),
                Alternation(tuple(map(Literal, ends))),
            )
        )

    def _triggered_tags(self, format: Mapping[str, Any]) -> Node:
        tags = self._all(format["tags"])
        mixture = Repeat(Alternation((*tags, _ANY)), 0, None)
        return Concat((Alternation(tags), mixture)) if format["at_least_one"] else mixture

    def _tags_with_separator(self, format: Mapping[str, Any]) -> Node:
        tag = Alternation(self._all(format["tags"]))
        more = Repeat(Concat((Literal(format["separator"]), tag)), 0, None)
        several = Concat((tag, more))
        return several if format["at_least_one"] else Repeat(several, 0, 1)

    def _grammar(self, format: Mapping[str, Any]) -> Node:
        """Take in the rules of a grammar, under names of their own."""
        text = _PATTERN.sub(lambda _: _STRING, _UNBOUNDED.sub(",}", format["grammar"]))
        try:
            rules = parse(text, "root").rules
        except StructgenError:
            return _TEXT  # a notation that we do not know: then the masks must do alone
        prefix = f"{next(self._numbers)}:"
        for rule in rules.values():
            self.rules[prefix + rule.name] = Rule(
                prefix + rule.name, rule.at, _renamed(rule.body, prefix)
            )
        return Reference(f"{prefix}root", 0)


def _renamed(node: Node, prefix: str) -> Node:
    match node:
        case Reference(name, at):
            return Reference(prefix + name, at)
        case Concat(items):
            return Concat(tuple(_renamed(item, prefix) for item in items))
        case Alternation(options):
            return Alternation(tuple(_renamed(option, prefix) for option in options))
        case Repeat(item, low, high):
            return Repeat(_renamed(item, prefix), low, high)
    assert not children(node)
    return node
