"""Automata of regular expressions: does a text match, have several expressions a text in common.

Bounded: an expression of more than MAX_STATES states has none, and a search that takes more than
MAX_STEPS gives up; either way the answer is "not known".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges
from structgen.grammar.schema.regex import Alternation, Chars, Concat, Node, Repeat

MAX_STATES = 6_000
MAX_STEPS = 2_000
MAX_KNOWN = 10_000  # sets of states whose moves are kept, and steps from them


class TooLarge(Exception):
    pass


class Automaton:
    """Of one expression without anchors, for whole texts.  exact: every set of characters is
    known; if not, it accepts more than the expression does.

    Raises TooLarge.
    """

    def __init__(self, node: Node) -> None:
        self.exact = True
        self._empty: list[list[int]] = []
        self._moves: list[list[tuple[Ranges, int]]] = []
        self._known: dict[frozenset[int], list[tuple[Ranges, frozenset[int]]]] = {}
        self._steps: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self._start = self._state()
        self._end = self._build(node, self._start)
        self.first = self._closure({self._start})

    @property
    def num_states(self) -> int:
        return len(self._empty)

    def accepts(self, text: str) -> bool:
        return self.accepting(self.after(text))

    def after(self, text: str) -> frozenset[int]:
        """Return the states that reading a text leads to; none: nothing accepted begins so."""
        states = self.first
        for character in text:
            states = self._step(states, ord(character))
        return states

    def accepting(self, states: frozenset[int]) -> bool:
        return self._end in states

    def moves(self, states: frozenset[int]) -> list[tuple[Ranges, frozenset[int]]]:
        """Return what can be read from here and where each leads."""
        if states not in self._known:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[states] = [
                (ranges, self._closure({target}))
                for state in states
                for ranges, target in self._moves[state]
            ]
        return self._known[states]

    def _step(self, states: frozenset[int], code: int) -> frozenset[int]:
        after = self._steps.get((states, code))
        if after is None:
            if len(self._steps) >= MAX_KNOWN:
                self._steps.clear()
            targets = {
                target
                for state in states
                for ranges, target in self._moves[state]
                if charset.holds(ranges, code)
            }
            after = self._steps[states, code] = self._closure(targets)
        return after

    def _closure(self, states: set[int]) -> frozenset[int]:
        waiting = list(states)
        while waiting:
            for target in self._empty[waiting.pop()]:
                if target not in states:
                    states.add(target)
                    waiting.append(target)
        return frozenset(states)

    def _state(self) -> int:
        if len(self._empty) >= MAX_STATES:
            raise TooLarge
        self._empty.append([])
        self._moves.append([])
        return len(self._empty) - 1

    def _build(self, node: Node, start: int) -> int:
        """Add the states of an expression from `start`; return where it ends."""
        match node:
            case Chars(ranges, class_text):
                self.exact = self.exact and not class_text
                end = self._state()
                self._moves[start].append((ranges, end))
                return end
            case Concat(items):
                for item in items:
                    start = self._build(item, start)
                return start
            case Alternation(options):
                end = self._state()
                for option in options:
                    self._empty[self._build(option, self._entry(start))].append(end)
                return end
            case Repeat(item, low, high):
                return self._repeat(item, low, high, start)
        raise AssertionError(node)

    def _repeat(self, item: Node, low: int, high: int | None, start: int) -> int:
        for _ in range(low):
            start = self._build(item, start)
        if high is None:
            hub = self._entry(start)
            self._empty[self._build(item, hub)].append(hub)
            return hub
        end = self._state()
        self._empty[start].append(end)
        for _ in range(high - low):
            start = self._build(item, self._entry(start))
            self._empty[start].append(end)
        return end

    def _entry(self, start: int) -> int:
        """Return a fresh state reached from `start` for nothing, so that loops stay apart."""
        state = self._state()
        self._empty[start].append(state)
        return state


def shortest_common(automata: Sequence[Automaton], longest: int | None) -> int | None:
    """Return the length of the shortest text, of at most `longest` characters, that all accept;
    None: provably none.  Raises TooLarge: not known.
    """
    first = tuple(automaton.first for automaton in automata)
    seen = {first}
    waiting = deque([(first, 0)])
    steps = 0
    while waiting:
        states, length = waiting.popleft()
        if all(a.accepting(s) for a, s in zip(automata, states, strict=True)):
            return length
        if longest is not None and length >= longest:
            continue
        for target in _common_moves(automata, states):
            steps += 1
            if steps > MAX_STEPS:
                raise TooLarge
            if target not in seen:
                seen.add(target)
                waiting.append((target, length + 1))
    return None


def shortest_ending(automaton: Automaton, text: str) -> str | None:
    """Return the shortest text with which the automaton accepts `text`; None: there is none.

    Raises TooLarge: not known.
    """
    states = automaton.after(text)
    reached: dict[frozenset[int], _Arrival | None] = {states: None}  # and how it was
    waiting = deque([states])
    while waiting:
        states = waiting.popleft()
        if automaton.accepting(states):
            return _text_of(reached, states)
        for ranges, target in automaton.moves(states):
            if target not in reached:
                if len(reached) > MAX_STEPS:
                    raise TooLarge
                reached[target] = states, ranges
                waiting.append(target)
    return None


_Arrival = tuple[frozenset[int], Ranges]


def _text_of(reached: Mapping[frozenset[int], _Arrival | None], states: frozenset[int]) -> str:
    """Return what is read on the way to some states."""
    read: list[str] = []
    while (arrival := reached[states]) is not None:
        states, ranges = arrival
        read.append(_pleasant(ranges))
    return "".join(reversed(read))


def _pleasant(ranges: Ranges) -> str:
    """Return a character of a set that looks well in a text that nobody wrote."""
    codes = (ord(character) for character in "0a-")
    return chr(next((code for code in codes if charset.holds(ranges, code)), ranges[0][0]))


def _common_moves(
    automata: Sequence[Automaton], states: tuple[frozenset[int], ...]
) -> list[tuple[frozenset[int], ...]]:
    found: list[tuple[Ranges, tuple[frozenset[int], ...]]] = [(charset.EVERY, ())]
    for automaton, own in zip(automata, states, strict=True):
        found = [
            (common, (*targets, target))
            for ranges, targets in found
            for more, target in automaton.moves(own)
            if (common := charset.meet(ranges, more))
        ]
        if len(found) > MAX_STEPS:
            raise TooLarge
    return [targets for _, targets in found]
