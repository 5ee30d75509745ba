"""How far guesses at the next tokens of a request are worth their computing."""

from __future__ import annotations

import math

MAX_DRAFTS = 8  # in a step

MIN_COST, MAX_COST = 0.02, 0.9  # of a guess, of what it saves if it is right
MEMORY = 0.9  # how much of what was learnt of a request's guesses lasts from one to the next
PROBE_EVERY = 24  # tokens after which a request whose guesses failed gets another
MAX_PROBE_EVERY = 192  # it is twice as many each time, as long as none is right
ASK_EVERY = 8  # tokens, whether what a guess costs is what it is worth meanwhile
MAX_FRUITLESS = 32  # looks that found nothing in a row, after which some tokens go without one:
MIN_REST, MAX_REST = 3, 15  # more and more; what is copied is mostly longer


class Confidence:
    """How often the guesses for one request were right, of late, and whether any was found."""

    __slots__ = ("_fruitless", "_hits", "_patience", "_rest", "_since_last", "_tries")

    def __init__(self) -> None:
        self._hits = 1.0
        self._tries = 2.0
        self._since_last = 0
        self._patience = PROBE_EVERY
        self._fruitless = 0
        self._rest = 0

    def rests(self) -> bool:
        """Whether the next token goes without a look in any case; asked for each."""
        if self._rest:
            self._rest -= 1
            return True
        return False

    def wants_look(self, cost: float) -> bool:
        """Whether to look for a guess before the next step.  cost: as below."""
        if self._hits >= _bounded(cost) * self._tries:
            return True
        self._since_last += ASK_EVERY
        if self._since_last <= self._patience:
            self._rest = ASK_EVERY - 1
            return False
        self._patience = min(2 * self._patience, MAX_PROBE_EVERY)
        self._since_last = 0  # also if none is found: to look for one takes a while
        return True

    def looked(self, *, found: bool) -> None:
        """Take in whether there was anything to guess."""
        self._fruitless = 0 if found else self._fruitless + 1
        more = self._fruitless - MAX_FRUITLESS
        self._rest = min(MIN_REST + more // 2, MAX_REST) if more >= 0 else 0

    def length(self, cost: float) -> int:
        """Return how many tokens to draft: 1 at least, to see whether it is kept.

        cost: of a draft, of what it saves if it is kept: it must be that likely.
        """
        cost = _bounded(cost)
        rate = min(self._hits / self._tries, 0.98)
        if rate < cost:
            return 1
        return min(int(math.log(cost) / math.log(rate)), MAX_DRAFTS)

    def judged(self, drafted: int, kept: int) -> None:
        """Take in how many of the drafts of a step, if there were any, were kept."""
        if drafted:
            self._hits = self._hits * MEMORY + kept
            self._tries = self._tries * MEMORY + kept + (kept < drafted)
            self._since_last = 0
            if kept:
                self._patience = PROBE_EVERY


def _bounded(cost: float) -> float:
    return MIN_COST if cost < MIN_COST else MAX_COST if cost > MAX_COST else cost
