"""Expressions for what some expressions match and others do not, by a deterministic automaton.

    expressions ──side by side──► states ──those wanted accept──► as few as do ──left out one by
    one──► one expression

Bounded in states and in the size of what is written: both can grow without end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from structgen.grammar.schema import charset, language
from structgen.grammar.schema.automaton import Automaton, TooLarge
from structgen.grammar.schema.charset import Ranges
from structgen.grammar.schema.regex import EMPTY, Alternation, Chars, Concat, Node, Repeat

MAX_STATES = 60
MAX_NODES = 3_000

Signature = tuple[bool, ...]
_States = tuple[frozenset[int], ...]


class Deterministic:
    """Of several automata at once.  signatures[state]: which of them accept there.  moves[state]:
    where each character leads; every character leads somewhere.

    Raises TooLarge: there are too many states, or a set of characters is not known.
    """

    def __init__(self, automata: Sequence[Automaton]) -> None:
        if not all(automaton.exact for automaton in automata):
            raise TooLarge
        self._automata = automata
        self._numbers: dict[_States, int] = {}
        self.signatures: list[Signature] = []
        self.moves: list[dict[int, Ranges]] = []
        waiting = [tuple(automaton.first for automaton in automata)]
        self._number(waiting[0])
        while waiting:
            states = waiting.pop()
            found = self._steps(states)
            waiting += [target for target in found if target not in self._numbers]
            self.moves[self._numbers[states]] = {
                self._number(target): ranges for target, ranges in found.items()
            }

    def _number(self, states: _States) -> int:
        if states not in self._numbers:
            if len(self._numbers) >= MAX_STATES:
                raise TooLarge
            self._numbers[states] = len(self._numbers)
            self.moves.append({})
            self.signatures.append(
                tuple(a.accepting(own) for a, own in zip(self._automata, states, strict=True))
            )
        return self._numbers[states]

    def _steps(self, states: _States) -> dict[_States, Ranges]:
        """Return where each character leads from some states."""
        own = [a.moves(one) for a, one in zip(self._automata, states, strict=True)]
        ends = {low for moves in own for ranges, _ in moves for low, _ in ranges}
        ends |= {high + 1 for moves in own for ranges, _ in moves for _, high in ranges}
        cuts = sorted((ends | {0}) - {charset.LAST + 1})
        found: dict[_States, list[tuple[int, int]]] = {}
        for low, after in zip(cuts, [*cuts[1:], charset.LAST + 1], strict=True):
            target = tuple(
                frozenset().union(*(to for ranges, to in moves if charset.holds(ranges, low)))
                for moves in own
            )
            found.setdefault(target, []).append((low, after - 1))
        return {target: charset.normal(ranges) for target, ranges in found.items()}

    def expression(self, wanted: Callable[[Signature], bool]) -> Node | None:
        """Return an expression for the texts whose signature is wanted; None: there are none.

        Raises TooLarge.
        """
        accepting = [wanted(signature) for signature in self.signatures]
        if not any(accepting):
            return None
        return _Elimination(*_smallest(self.moves, accepting)).run()


def _smallest(
    moves: list[dict[int, Ranges]], accepting: list[bool]
) -> tuple[list[dict[int, Ranges]], list[bool]]:
    """Merge the states that cannot be told apart; state 0 stays the first."""
    classes = [int(one) for one in accepting]
    while True:
        keys = [(classes[state], _by_class(moves[state], classes)) for state in range(len(moves))]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        refined = [numbers[key] for key in keys]
        if len(numbers) == len(set(classes)):
            break
        classes = refined
    firsts = {number: state for state, number in reversed(list(enumerate(refined)))}
    merged = [dict(_by_class(moves[firsts[number]], refined)) for number in range(len(firsts))]
    return merged, [accepting[firsts[number]] for number in range(len(firsts))]


def _by_class(moves: dict[int, Ranges], classes: list[int]) -> tuple[tuple[int, Ranges], ...]:
    found: dict[int, list[tuple[int, int]]] = {}
    for target, ranges in moves.items():
        found.setdefault(classes[target], []).extend(ranges)
    return tuple(sorted((target, charset.normal(ranges)) for target, ranges in found.items()))


class _Elimination:
    """Leaves out state after state, those first that have the fewest ways through them."""

    def __init__(self, moves: list[dict[int, Ranges]], accepting: list[bool]) -> None:
        self._start, self._end = len(moves), len(moves) + 1
        self._ways: dict[int, dict[int, Node]] = {
            state: {target: Chars(ranges) for target, ranges in own.items()}
            for state, own in enumerate(moves)
        }
        self._ways[self._start] = {0: EMPTY}
        self._ways[self._end] = {}
        for state, accepts in enumerate(accepting):
            if accepts:
                self._ways[state][self._end] = EMPTY

    def run(self) -> Node:
        self._forget_dead_ends()
        inner = set(self._ways) - {self._start, self._end}
        while inner:
            state = min(inner, key=self._weight)
            inner.discard(state)
            self._leave_out(state)
        return self._ways[self._start][self._end]

    def _forget_dead_ends(self) -> None:
        alive = {self._end}
        while True:
            more = {state for state, own in self._ways.items() if own.keys() & alive} - alive
            if not more:
                break
            alive |= more
        self._ways = {
            state: {target: node for target, node in own.items() if target in alive}
            for state, own in self._ways.items()
            if state in alive
        }

    def _weight(self, state: int) -> tuple[int, int]:
        into = sum(state in own for other, own in self._ways.items() if other != state)
        return into * len(self._ways[state]), state

    def _leave_out(self, state: int) -> None:
        own = self._ways.pop(state)
        loop = own.pop(state, None)
        around = [] if loop is None else [Repeat(loop, 0, None)]
        befores = [(other, ways.pop(state)) for other, ways in self._ways.items() if state in ways]
        for (before, into), (after, out) in product(befores, own.items()):
            node = language.join(into, *around, out)
            known = self._ways[before].get(after)
            self._ways[before][after] = node if known is None else _either(known, node)
            if _size(self._ways[before][after]) > MAX_NODES:
                raise TooLarge


def _either(first: Node, second: Node) -> Node:
    options: list[Node] = []
    for node in (first, second):
        options += node.options if isinstance(node, Alternation) else [node]
    sets = [one for one in options if isinstance(one, Chars)]
    others = [one for one in options if not isinstance(one, Chars)]
    if sets:
        both = charset.normal(pair for one in sets for pair in one.ranges)
        others.insert(0, Chars(both))
    return language.either(*others)


def _size(node: Node) -> int:
    match node:
        case Concat(items) | Alternation(items):
            return 1 + sum(map(_size, items))
        case Repeat(item, _, _):
            return 1 + _size(item)
    return 1
