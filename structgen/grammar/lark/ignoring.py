"""What `%ignore` allows between terminals, written out.

Each rule becomes two: "first", its texts but the empty one, with the ignored before each terminal
except the first; and "rest", all of them, with the ignored before every terminal.
"""

from __future__ import annotations

from collections.abc import Sequence

from structgen.grammar.ebnf.checks import closure, nullable
from structgen.grammar.ebnf.fault import malformed
from structgen.grammar.ebnf.tree import (
    EMPTY,
    Alternation,
    Concat,
    Grammar,
    Literal,
    Node,
    Reference,
    Repeat,
    Rule,
)
from structgen.grammar.lark.parser import is_terminal

_IGNORED = "(ignored)"  # names that no rule of a text has
_ROOT = "(root)"


def without_ignored(grammar: Grammar, ignored: Sequence[Node]) -> Grammar:
    """Return a grammar of the same texts that ignores nothing.  The given one is checked.

    Raises ConstraintError: a terminal may be empty, so that there is no telling what is between.
    """
    if not ignored:
        return grammar
    return _Spacing(grammar, ignored).grammar()


class _Spacing:
    def __init__(self, grammar: Grammar, ignored: Sequence[Node]) -> None:
        self._given = grammar
        self._empty = closure(grammar, nullable)
        self._filled = closure(grammar, _has_text)
        self._refuse_empty_terminals()
        self._at = grammar.rules[grammar.root].at
        pieces = tuple(map(self._piece, ignored))
        self._ignored = Repeat(Alternation(pieces) if len(pieces) > 1 else pieces[0], 0, None)

    def grammar(self) -> Grammar:
        given = self._given
        rules = [rule for rule in given.rules.values() if is_terminal(rule.name)]
        for rule in given.rules.values():
            if not is_terminal(rule.name):
                rules += self._pair(rule)
        first = self._first(Reference(given.root, self._at)) or EMPTY
        options = (first, EMPTY) if given.root in self._empty else (first,)
        rules.append(Rule(_ROOT, self._at, Alternation(options)))
        rules.append(Rule(_IGNORED, self._at, self._ignored))
        return Grammar(given.text, {rule.name: rule for rule in rules}, _ROOT)

    def _pair(self, rule: Rule) -> list[Rule]:
        rest = Rule(_rest_name(rule.name), rule.at, self._rest(rule.body))
        first = self._first(rule.body)
        return [rest] if first is None else [rest, Rule(_first_name(rule.name), rule.at, first)]

    def _first(self, node: Node) -> Node | None:
        """Return the texts but the empty one; None: there are no others."""
        match node:
            case Literal(""):
                return None
            case Reference(name, at) if not is_terminal(name):
                return Reference(_first_name(name), at) if name in self._filled else None
            case Concat(items):
                return self._first_of_several(items)
            case Alternation(options):
                found = [first for option in options if (first := self._first(option))]
                return Alternation(tuple(found)) if found else None
            case Repeat(_, _, 0):
                return None
            case Repeat(item, low, high):
                first = self._first(item)
                least = 0 if nullable(item, self._empty) else max(low - 1, 0)
                more = Repeat(self._rest(item), least, None if high is None else high - 1)
                return first and Concat((first, more))
        return node

    def _first_of_several(self, items: Sequence[Node]) -> Node | None:
        """Let each item begin before which all others may be empty."""
        options = []
        for index, item in enumerate(items):
            first = self._first(item)
            if first is not None:
                options.append(Concat((first, *map(self._rest, items[index + 1 :]))))
            if not nullable(item, self._empty):
                break
        if len(options) <= 1:
            return options[0] if options else None
        return Alternation(tuple(options))

    def _rest(self, node: Node) -> Node:
        match node:
            case Literal(""):
                return node
            case Reference(name, at) if not is_terminal(name):
                return Reference(_rest_name(name), at)
            case Concat(items):
                return Concat(tuple(map(self._rest, items)))
            case Alternation(options):
                return Alternation(tuple(map(self._rest, options)))
            case Repeat(item, low, high):
                return Repeat(self._rest(item), low, high)
        return Concat((Reference(_IGNORED, self._at), node))

    def _piece(self, node: Node) -> Node:
        """Return what is ignored once where a node says any number, since any number may come."""
        while isinstance(node, Reference):
            if node.name not in self._given.rules:
                raise malformed(
                    self._given.text, node.at, f"the terminal {node.name!r} is not defined"
                )
            node = self._given.rules[node.name].body
        match node:
            case Repeat(item, 0 | 1, None):
                return item
        return node

    def _refuse_empty_terminals(self) -> None:
        for name in self._given.rules:
            if is_terminal(name) and name in self._empty:
                raise malformed(
                    self._given.text,
                    self._given.rules[name].at,
                    "a terminal that may be empty does not go with %ignore",
                )


def _has_text(node: Node, rules: set[str]) -> bool:
    """Whether a node has a text that is not empty; rules: those that have one."""
    match node:
        case Literal(text):
            return bool(text)
        case Reference(name, _):
            return name in rules
        case Concat(items):
            return any(_has_text(item, rules) for item in items)
        case Alternation(options):
            return any(_has_text(option, rules) for option in options)
        case Repeat(item, _, high):
            return high != 0 and _has_text(item, rules)
    return True


def _first_name(name: str) -> str:
    return f"{name} (first)"


def _rest_name(name: str) -> str:
    return f"{name} (rest)"
