"""What a constraint lets stand at a place, in the few texts that tell a reader most.

A mask has thousands of tokens inside a string and half a character elsewhere.  So the ways to go on
are followed, a byte at a time, for as long as they are few: `, "age": ` instead of a comma, all the
values of an enum instead of a quote.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from structgen.grammar.base import GrammarError, Matcher
from structgen.grammar.spelling import Reader, Spelling, is_allowed
from structgen.messages import MAX_EXPECTED

MAX_WAYS = 16  # followed, to choose from
MAX_BYTES = 32  # after which a way is followed to the end of a character only
MAX_CHARACTER_BYTES = 4


class Way(NamedTuple):
    """A way to go on, as far as it was followed.

    matcher: its own.  lead: the beginning of a token, read but not accepted.
    """

    text: bytes
    matcher: Matcher
    lead: bytes

    @property
    def is_whole(self) -> bool:
        """Whether the text is there, and does not end inside a character."""
        try:
            return bool(self.text.decode())
        except UnicodeDecodeError:
            return False

    @property
    def may_end(self) -> bool:
        return not self.lead and self.matcher.accepting


class Step(NamedTuple):
    """A byte that may follow; lead: with it; token: what that is, if it is one."""

    byte: int
    lead: bytes
    token: int | None


def continuations(
    matcher: Matcher, reader: Reader, spelling: Spelling, lead: bytes = b""
) -> list[str]:
    """Return what may stand where a matcher is, the most telling first; [] if nothing may.

    lead: what stands there already, the beginning of a token.  Leaves the matcher as it is.
    """
    follower = _Follower(reader, spelling)
    ways, found = [Way(b"", matcher.fork(), lead)], list[str]()
    while ways:
        way = ways.pop(0)
        try:
            steps = follower.steps(way, MAX_EXPECTED - len(ways) - len(found))
        except GrammarError:
            continue  # it fails on what might follow; that takes nothing from the text before
        if steps:
            ways += follower.take(way, steps)
        elif way.is_whole:
            found.append(way.text.decode())
    # What is long is what must come next; short is what one of many may begin with.
    return sorted(found, key=len, reverse=True)[:MAX_EXPECTED]


class _Follower:
    def __init__(self, reader: Reader, spelling: Spelling) -> None:
        self._reader = reader
        self._spelling = spelling

    def steps(self, way: Way, room: int) -> list[Step]:
        """Return the steps to take from a way; [] if it is to be left as it is.

        room: how many ways there may be instead of this one.
        """
        if not way.text:
            return sorted(self._steps(way), key=_rank)[:MAX_WAYS]
        if not way.is_whole:  # there is no choice but to go on, for a few bytes
            lost = len(way.text) >= MAX_BYTES + MAX_CHARACTER_BYTES
            return [] if lost else [*islice(self._steps(way), max(room, 1))]
        if len(way.text) >= MAX_BYTES or way.may_end:
            return []
        steps = [*islice(self._steps(way), max(room, 1) + 1)]
        return steps if len(steps) <= max(room, 1) else []

    def take(self, way: Way, steps: list[Step]) -> Iterator[Way]:
        for step in steps:
            matcher = way.matcher if len(steps) == 1 else way.matcher.fork()
            if step.token is not None:
                matcher.accept(step.token)
            lead = step.lead if step.token is None else b""
            yield Way(way.text + bytes([step.byte]), matcher, lead)

    def _steps(self, way: Way) -> Iterator[Step]:
        row = self._reader.mask(way.matcher).copy()
        for lead in self._spelling.nexts(self._spelling.allowed(row), way.lead):
            ids = self._spelling.ids(lead)
            yield Step(lead[-1], lead, next((id for id in ids if is_allowed(row, id)), None))


def _rank(step: Step) -> int:
    """Order bytes by how much they tell: what makes a structure, then what fills it."""
    if step.byte >= 0x80:
        return 3
    if chr(step.byte).isalnum():
        return 1
    return 0 if chr(step.byte).isprintable() and step.byte != 0x20 else 2
