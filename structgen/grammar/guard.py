"""What no answer may hold, whatever its grammar allows: ill-formed UTF-8, ill-formed JSON strings,
JSON strings that could be spelt more simply.

The libraries are generous here: lone surrogates, in UTF-8 and as escapes, and raw control
characters inside JSON strings pass through some of their grammars; and a property may be called by
another spelling of its name than the one that a schema's word on it is tied to.  A guard is an
automaton over bytes, run over all tokens from all of its states ahead of time: an accept then costs
a look-up, a mask one AND.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum, auto

import numpy as np
import numpy.typing as npt

from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError, Vocabulary
from structgen.grammar.watch import StateWatch

Table = npt.NDArray[np.uint8]

TAIL = range(0x80, 0xC0)


class State(IntEnum):
    """What may come next; TEXT is where an answer begins and may end."""

    TEXT = 0
    TAIL_1 = auto()  # so many more bytes of a character
    TAIL_2 = auto()
    TAIL_3 = auto()
    AFTER_E0 = auto()  # lead bytes after which not every tail byte is well-formed
    AFTER_ED = auto()
    AFTER_F0 = auto()
    AFTER_F4 = auto()
    ESCAPE = auto()  # a backslash came
    UNICODE = auto()  # backslash u, and so many digits of a control character
    UNICODE_0 = auto()
    UNICODE_00 = auto()
    UNICODE_000 = auto()
    UNICODE_001 = auto()
    UNICODE_007 = auto()
    DEAD = auto()  # ill-formed; last, since a guard has no mask for it


def utf8_automaton() -> Table:
    """Return the moves, uint8 [states, 256], that well-formed UTF-8 makes (Unicode, table 3-7)."""
    table = np.full((len(State), 256), State.DEAD, dtype=np.uint8)
    _move(table, State.TEXT, range(0x80), State.TEXT)
    _move(table, State.TEXT, range(0xC2, 0xE0), State.TAIL_1)
    _move(table, State.TEXT, range(0xE0, 0xF0), State.TAIL_2)
    _move(table, State.TEXT, range(0xF0, 0xF5), State.TAIL_3)
    _move(table, State.TEXT, [0xE0], State.AFTER_E0)
    _move(table, State.TEXT, [0xED], State.AFTER_ED)
    _move(table, State.TEXT, [0xF0], State.AFTER_F0)
    _move(table, State.TEXT, [0xF4], State.AFTER_F4)
    _move(table, State.AFTER_E0, range(0xA0, 0xC0), State.TAIL_1)
    _move(table, State.AFTER_ED, range(0x80, 0xA0), State.TAIL_1)
    _move(table, State.AFTER_F0, range(0x90, 0xC0), State.TAIL_2)
    _move(table, State.AFTER_F4, range(0x80, 0x90), State.TAIL_2)
    _move(table, State.TAIL_3, TAIL, State.TAIL_2)
    _move(table, State.TAIL_2, TAIL, State.TAIL_1)
    _move(table, State.TAIL_1, TAIL, State.TEXT)
    return table


def json_automaton() -> Table:
    """Return the same for JSON text, each character spelt in one way: as it is if it may be, else
    by a short escape if it has one, else by its number in small letters.

    Outside strings neither control characters nor backslashes are JSON; what is inside of one and
    what is not is therefore all the same here.  JSON that structgen makes has no white space but
    blanks.
    """
    table = utf8_automaton()
    _move(table, State.TEXT, [*range(0x20), 0x7F], State.DEAD)
    _move(table, State.TEXT, b"\\", State.ESCAPE)
    _move(table, State.ESCAPE, b'"\\bfnrt', State.TEXT)
    _move(table, State.ESCAPE, b"u", State.UNICODE)
    _move(table, State.UNICODE, b"0", State.UNICODE_0)
    _move(table, State.UNICODE_0, b"0", State.UNICODE_00)
    _move(table, State.UNICODE_00, b"0", State.UNICODE_000)
    _move(table, State.UNICODE_00, b"1", State.UNICODE_001)
    _move(table, State.UNICODE_00, b"7", State.UNICODE_007)
    _move(table, State.UNICODE_000, b"01234567bef", State.TEXT)
    _move(table, State.UNICODE_001, b"0123456789abcdef", State.TEXT)
    _move(table, State.UNICODE_007, b"f", State.TEXT)
    return table


class TextGuard:
    """An automaton over the tokens of a vocabulary; immutable, shared by all matchers."""

    __slots__ = ("_ends", "masks")

    def __init__(self, vocabulary: Vocabulary, automaton: Table) -> None:
        """masks: int32 [states, W], the tokens that may follow in each state.

        A token without text may never follow.
        """
        self._ends = _run(vocabulary.token_bytes, automaton)  # uint8 [states, V]
        self.masks = np.stack(
            [bitmask.pack(np.flatnonzero(row != State.DEAD), vocabulary.size) for row in self._ends]
        )

    def advance(self, state: int, token: int) -> int:
        """Return the state after a token.  Raises GrammarError: it may not follow."""
        after = int(self._ends[state, token])
        if after == State.DEAD:
            raise GrammarError(f"token {token} would make the text ill-formed")
        return after


class TextWatch(StateWatch[int]):
    """Its states are those of a guard."""

    def __init__(self, guard: TextGuard) -> None:
        super().__init__(int(State.TEXT))
        self._guard = guard

    def after(self, token: int) -> int:
        return self._guard.advance(self.state, token)

    def restrict(self, row: bitmask.Words) -> None:
        row &= self._guard.masks[self.state]

    @property
    def may_end(self) -> bool:
        return self.state == State.TEXT


def _move(table: Table, state: State, symbols: Iterable[int], to: State) -> None:
    table[state, list(symbols)] = to


def _run(tokens: list[bytes], automaton: Table) -> Table:
    """Return uint8 [states, V]: where each token leads from each state that the automaton has.

    All tokens are run side by side, byte by byte; the longest come first, so that those which
    still have a byte are always a prefix.
    """
    lengths = np.array([len(token) for token in tokens])
    order = np.argsort(-lengths, kind="stable")
    begins = (np.cumsum(lengths) - lengths)[order]
    text = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    used = np.flatnonzero((automaton != State.DEAD).any(axis=1))
    states = used.astype(np.uint8)[:, None].repeat(len(tokens), axis=1)
    states[:, int(np.count_nonzero(lengths)) :] = State.DEAD  # tokens without text
    active = np.searchsorted(-lengths[order], -np.arange(lengths.max(initial=0)), side="left")
    for position, count in enumerate(active):
        symbols = text[begins[:count] + position]
        states[:, :count] = automaton[states[:, :count], symbols]
    ends = np.empty_like(states)
    ends[:, order] = states
    return ends
