"""Keeping a request able to complete its text within the tokens that it has left.

    far from the limit      looked at now and then
    near                    after each token a way to the end is known, and short enough
    a token that would      is not taken: the known way is, to the end of the text
    leave none

Loop thread only.  A way costs a look over masks, some milliseconds; one that still leads out after
another token, as the end of a string does while the string grows, costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from structgen.grammar.base import GrammarError
from structgen.grammar.closing import Closer
from structgen.grammar.walk import MAX_SECONDS as MAX_LOOK_S
from structgen.grammar.walk import Exit, Walk

# What the way out may grow by from one look to the next: half of the tokens to spare are spent
# before the next look, as long as there are twice as many.
RESERVE = 48

# With a way in hand, one behind another token is looked for in so many times what that way took to
# find, or in the least of time: what costs more is hardly there, and the way in hand will do.
MORE_THAN_FOUND = 4
SHORT_LOOK_S = 0.01
WITHOUT_SPARE = 0.25  # of that, where it may not be longer than the way in hand: few are not

# Spent on looks for one request; who needs more is completed at once, or cut.
MAX_SECONDS = 0.5


class Budget:
    """way: known to complete the text from where it is; None: not known.

    following: nothing but the way may be answered any more.
    """

    __slots__ = (
        "_found_s",
        "_look_at",
        "_look_s",
        "_ran_out",
        "_seconds",
        "exit",
        "following",
        "way",
    )

    def __init__(self, exit: Exit, limit: int) -> None:
        """limit: the most tokens that may be answered."""
        self.exit = exit
        way = exit.shortest
        self.way = way if way is not None and len(way) <= limit else None
        self.following = False
        self._seconds = 0.0
        self._look_s = MAX_LOOK_S  # what one look may take
        self._found_s = 0.0  # what the last one took that found a way
        self._ran_out = False  # the last one did: another from nearby would too
        # What compiling has not found, in more time than a look has, will not be found from the
        # same place now.
        is_known = exit.shortest is not None
        self._look_at = limit if is_known and self.way is None else self._next_look(limit)

    def affords(self, token: int, left: int, closer: Closer, walk: Callable[[], Walk]) -> bool:
        """Whether the text can still be completed once this token is taken, or could not before.

        left: tokens that may follow it.  If False, `way` leads out instead.
        """
        if self.way and token == self.way[0]:
            self.way = self.way[1:]
            return True
        if left > self._look_at:
            self.way = None
            return True
        way = self._way_after(token, left, closer, walk)
        if way is None and self.way is None and not self._ran_out:
            self.way = self._look(walk(), left + 1, closer)
        if way is None and self.way is not None and left < 2 * (len(self.way) + RESERVE):
            return False
        self.way = way
        self._look_at = self._next_look(left)
        return True

    def way_out(self, left: int, closer: Closer, walk: Callable[[], Walk]) -> list[int] | None:
        """Return at most `left` tokens that complete the text from where it is now."""
        if self.way is not None and len(self.way) > left:
            self.way = None
        if self.way is None:
            self.way = self._look(walk(), left, closer)
        return self.way

    def _way_after(
        self, token: int, left: int, closer: Closer, walk: Callable[[], Walk]
    ) -> list[int] | None:
        after = walk()
        known: list[list[int]] = [[]]
        if self.way:  # the token may come before it, be part of it, or take its first one's place
            known += [self.way, closer.rest(self.way, token), self.way[1:]]
        for way in known:
            if len(way) <= left and after.is_led_out([token, *way]):
                return way
        try:
            after.accept(token)
        except GrammarError:
            return self.way  # the matcher itself will say so
        return self._look(after, left, closer)

    def _look(self, walk: Walk, left: int, closer: Closer) -> list[int] | None:
        if self._seconds >= MAX_SECONDS:
            self._ran_out = True
            return None
        walk.max_seconds = self._look_s
        if self.way is not None:
            usual_s = max(SHORT_LOOK_S, MORE_THAN_FOUND * self._found_s)
            if left < len(self.way):
                usual_s *= WITHOUT_SPARE
            walk.max_seconds = min(self._look_s, usual_s)
        way = closer.way_out(walk, left)
        took_s, self._ran_out = walk.seconds, way is None and walk.exhausted
        self._seconds += took_s
        if way is not None:
            self._found_s = took_s
        elif self._ran_out and self.way is None:  # the next will have to look only half as far
            self._look_s /= 2
        return way

    def _next_look(self, left: int) -> int:
        """Return how many tokens are left when a way is wanted next."""
        if self.way is None:
            return left // 2  # none is short enough, or the library fails: do not insist
        spare = left - len(self.way)
        return left - spare // 2 if spare >= 2 * RESERVE else left
