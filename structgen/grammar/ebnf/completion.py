"""The shortest way to complete a text of a grammar.

The text is read by a pushdown automaton whose stacks hold what is still to come:

    sum ::= number ("+" number)*          behind "12+":   number  ("+" number)*  ⊥

All stacks that fit are followed side by side.  What completes one is the shortest text of each
part on it, so the cheapest stack has the shortest way, without any search.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from structgen.grammar.ebnf.shortest import Shortest
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
)
from structgen.grammar.schema import charset
from structgen.grammar.schema.automaton import TooLarge

MAX_STACKS = 400  # followed side by side
MAX_MOVES = 30_000  # for one text: a thousand characters take some 10,000, and 20 ms
MAX_REMEMBERED = 20_000  # stacks, some 200 bytes each
MAX_KEPT = 32  # texts whose stacks are kept, to go on from


class _Stack:
    """node: what comes next, before all of `below`; None: nothing.  cost: characters, at least."""

    __slots__ = ("below", "cost", "node")

    def __init__(self, node: Node, below: _Stack | None, cost: float) -> None:
        self.node = node
        self.below = below
        self.cost = cost


_Stacks = list[_Stack | None]


class Completion:
    """Of one grammar; only one thread at a time may use it."""

    def __init__(self, grammar: Grammar) -> None:
        self._bodies = {rule.name: _without_left_recursion(rule) for rule in grammar.rules.values()}
        self._root = grammar.root
        self._shortest = Shortest(grammar)
        self._moves = 0
        self._forget()

    def _forget(self) -> None:
        self._stacks: dict[tuple[int, int], _Stack] = {}  # by identity of node and below
        self._parts: dict[tuple[int, int, int | None], Repeat] = {}
        self._texts: dict[str, Literal] = {}
        root = self._push(self._bodies[self._root], None)
        self._kept: OrderedDict[str, _Stacks] = OrderedDict({"": [root]})

    def endings(self, text: str, most: int = 1) -> list[str]:
        """Return texts with which `text` is one of the grammar, the shortest way of each stack.

        The shortest of all comes first.  None: there is no such text.  Raises TooLarge: not known.
        """
        stacks = self._after(text)
        found: dict[str, None] = {}
        for stack in sorted(stacks, key=lambda stack: 0 if stack is None else stack.cost):
            if len(found) == most:
                break
            found[self._ending(stack)] = None
        return list(found)

    def _ending(self, stack: _Stack | None) -> str:
        parts: list[str] = []
        while stack is not None:
            shortest = self._shortest.of(stack.node)
            if shortest is None:
                raise TooLarge
            parts.append(shortest)
            stack = stack.below
        return "".join(parts)

    def _after(self, text: str) -> _Stacks:
        if len(self._stacks) > MAX_REMEMBERED:
            self._forget()
        known = max((kept for kept in self._kept if text.startswith(kept)), key=len)
        stacks = self._kept[known]
        self._moves = 0
        for character in text[len(known) :]:
            stacks = self._step(stacks, ord(character))
        self._kept[text] = stacks
        if len(self._kept) > MAX_KEPT:
            oldest = next(kept for kept in self._kept if kept)
            del self._kept[oldest]
        return stacks

    def _step(self, stacks: _Stacks, code: int) -> _Stacks:
        after: dict[int, _Stack | None] = {}
        for stack in self._leaves(stacks):
            match stack.node:
                case Literal(text) if ord(text[0]) == code:
                    rest = self._push(self._literal(text[1:]), stack.below)
                    after[id(rest)] = rest
                case Chars(ranges, _) if charset.holds(ranges, code):
                    after[id(stack.below)] = stack.below
        if len(after) > MAX_STACKS:
            raise TooLarge
        return list(after.values())

    def _leaves(self, stacks: _Stacks) -> Iterable[_Stack]:
        """Yield the stacks with a character to read on top that these come to."""
        seen: set[int] = set()
        todo = [stack for stack in stacks if stack is not None]
        while todo:
            stack = todo.pop()
            if id(stack) in seen:
                continue
            seen.add(id(stack))
            self._moves += 1
            if self._moves > MAX_MOVES:
                raise TooLarge
            if isinstance(stack.node, Chars) or (
                isinstance(stack.node, Literal) and stack.node.text
            ):
                yield stack
            else:
                todo += [one for one in self._opened(stack) if one is not None]

    def _opened(self, stack: _Stack) -> _Stacks:
        """Return a stack with what is on top taken apart."""
        below = stack.below
        match stack.node:
            case Reference(name, _):
                return [self._push(self._bodies[name], below)]
            case Alternation(options):
                return [self._push(option, below) for option in options]
            case Concat(items):
                for item in reversed(items):
                    below = self._push(item, below)
                return [below]
            case Repeat(item, low, high):
                opened: _Stacks = [below] if low == 0 else []
                if high != 0:
                    rest = self._repeat(stack.node, item, low, high)
                    opened.append(self._push(item, self._push(rest, below)))
                return opened
        return [below]  # the empty text

    def _repeat(self, node: Repeat, item: Node, low: int, high: int | None) -> Repeat:
        """Return what is left of a repetition after one more time."""
        if low == 0 and high is None:
            return node
        key = (id(item), max(low - 1, 0), None if high is None else high - 1)
        if key not in self._parts:
            self._parts[key] = Repeat(item, *key[1:])
        return self._parts[key]

    def _literal(self, text: str) -> Literal:
        if text not in self._texts:
            self._texts[text] = Literal(text)
        return self._texts[text]

    def _push(self, node: Node, below: _Stack | None) -> _Stack:
        """Return the one stack of these: stacks are equal where they are the same."""
        key = (id(node), id(below))
        stack = self._stacks.get(key)
        if stack is None:
            cost = self._shortest.cost(node) + (0 if below is None else below.cost)
            stack = self._stacks[key] = _Stack(node, below, cost)
        return stack


def _without_left_recursion(rule: Rule) -> Node:
    """Return the body of a rule, X = X A | B as B A*; what is not as plain as this stays."""
    heads, tails = [], []
    for option in _options(rule.body):
        items = option.items if isinstance(option, Concat) else (option,)
        if items and isinstance(items[0], Reference) and items[0].name == rule.name:
            tails.append(Concat(items[1:]))
        else:
            heads.append(option)
    if not tails or not heads:
        return rule.body
    return Concat((Alternation(tuple(heads)), Repeat(Alternation(tuple(tails)), 0, None)))


def _options(node: Node) -> Iterator[Node]:
    if isinstance(node, Alternation):
        for option in node.options:
            yield from _options(option)
    else:
        yield node
