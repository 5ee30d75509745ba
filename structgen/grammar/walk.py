"""A matcher to be tried out: where does it lead, and what may come there?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from structgen.grammar import bitmask, gate
from structgen.grammar.base import GrammarBackend, Matcher
from structgen.grammar.endings import Patterns

Restrict = Callable[[bitmask.Words, Sequence[int]], None]

# What one walk may look at, and take for all that it does.  Masks take some 50 us; a grammar may
# make them take a thousand times as long, and automata of thousands of states take milliseconds;
# and the loop thread waits.  It is the thread's own time, and the longest pause between two masks
# does not count: no text is closed early because the machine is busy, or garbage is collected.
MAX_MASKS = 600
MAX_SECONDS = 0.05


class Exit(msgspec.Struct, frozen=True):
    """What helps to find the end of a constraint's texts.

    patterns: what strings may have to match.  is_json: strings can be told from the rest.
    shortest: the way from the beginning that was found, if any.  at_least: tokens that every text
    has.
    """

    patterns: Patterns
    is_json: bool
    shortest: list[int] | None = None
    at_least: int = 0

    def behind(self, lead_in: list[int]) -> Exit:
        """Return the same for texts that these tokens lead in."""
        if self.shortest is None:
            return self
        return msgspec.structs.replace(self, shortest=lead_in + self.shortest)


UNKNOWN = Exit([], is_json=False)


class Walk:
    """From where a matcher is, which stays there.  Begins when it is made.

    full: the mask of the whole vocabulary.  tokens: of prompt and output so far, the first
    num_prompt of them the prompt's.  restrict: folds into a mask row what besides the grammar rules
    tokens out, given all tokens so far; None: nothing does.
    """

    def __init__(
        self,
        backend: GrammarBackend,
        matcher: Matcher,
        exit: Exit,
        full: bitmask.Words,
        tokens: Sequence[int] = (),
        num_prompt: int = 0,
        restrict: Restrict | None = None,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        self.exit = exit
        self.max_seconds = max_seconds
        self._began = self._last = time.thread_time()
        self._longest = 0.0  # between two masks
        self._num_masks = 0
        self._backend = backend
        self._matcher = matcher
        self._is_copy = False
        self._restrict = restrict
        self._tokens = list(tokens)
        self._num_prompt = num_prompt
        self._full = full
        self._row = np.zeros((1, len(full)), dtype=np.int32)

    @property
    def output(self) -> list[int]:
        """The tokens that the constraint speaks of."""
        return self._tokens[self._num_prompt + self._matcher.num_free :]

    @property
    def lead_in(self) -> list[int]:
        return self._matcher.lead_in

    def forced(self) -> bytes:
        return self._matcher.forced()

    @property
    def accepting(self) -> bool:
        return self._matcher.accepting

    def allowed(self) -> bitmask.Words:
        """Return int32 [W], owned by the walk, valid until the next call.

        Raises GrammarError: the library failed.
        """
        self._row[:] = 0
        gate.fill(self._backend, [self._matcher], self._row, [0])
        row: bitmask.Words = self._row[0]
        row &= self._full
        if self._restrict is not None:
            self._restrict(row, self._tokens)
        self._num_masks += 1
        now = time.thread_time()
        self._longest, self._last = max(self._longest, now - self._last), now
        return row

    @property
    def seconds(self) -> float:
        """What its thread has taken since it began."""
        return time.thread_time() - self._began

    @property
    def exhausted(self) -> bool:
        """Whether enough was looked at."""
        now = time.thread_time()
        longest = max(self._longest, now - self._last)
        return self._num_masks >= MAX_MASKS or now - self._began - longest >= self.max_seconds

    def accept(self, *tokens: int) -> None:
        if not self._is_copy:  # made when it is first needed: that takes a while
            self._matcher, self._is_copy = self._matcher.fork(), True
        for token in tokens:
            self._matcher.accept(token)
            self._tokens.append(token)

    def back(self, count: int) -> None:
        self._matcher.rollback(count)
        del self._tokens[len(self._tokens) - count :]

    def is_led_by(self, way: Sequence[int]) -> bool:
        """Whether these tokens are legal; leaves the walk where it was."""
        return self._matcher.allows(way) and self.is_open(way)

    def is_led_out(self, way: Sequence[int]) -> bool:
        """Whether these tokens are legal and complete the text; leaves the walk where it was."""
        return self._matcher.is_completed_by(way) and self.is_open(way)

    def is_open(self, way: Sequence[int]) -> bool:
        """Whether nothing besides the grammar rules out one of these tokens."""
        if self._restrict is None:
            return True
        tokens = list(self._tokens)
        for token in way:
            self._row[0] = self._full
            self._restrict(self._row[0], tokens)
            if not bitmask.holds(self._row[0], token):
                return False
            tokens.append(token)
        return True
