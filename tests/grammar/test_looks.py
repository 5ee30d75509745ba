"""How often, and for how long, a budget has a way to the end of a text looked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from structgen.grammar.budget import SHORT_LOOK_S, WITHOUT_SPARE, Budget
from structgen.grammar.closing import Closer
from structgen.grammar.walk import MAX_SECONDS, UNKNOWN, Exit, Walk

TOKEN = 7
LIMIT = 64
LEADS_OUT = [TOKEN, 8, 9]
TOO_LONG = Exit([], is_json=False, shortest=[TOKEN] * (LIMIT + 1))


class StubWalk:
    def __init__(self) -> None:
        self.max_seconds = MAX_SECONDS
        self.seconds = 0.0
        self.exhausted = False

    def accept(self, token: int) -> None:
        assert token == TOKEN

    def is_led_out(self, way: list[int]) -> bool:
        return way == LEADS_OUT


class StubCloser:
    """Finds the way that it is given, or takes all the time there is.  limits: of each look."""

    def __init__(self) -> None:
        self.way: list[int] | None = None
        self.limits: list[float] = []

    def way_out(self, walk: StubWalk, left: int) -> list[int] | None:
        self.limits.append(walk.max_seconds)
        if self.way is None:
            walk.seconds, walk.exhausted = walk.max_seconds, True
        return self.way

    def rest(self, way: list[int], token: int) -> list[int]:
        return []


def take(budget: Budget, closer: StubCloser, left: int) -> bool:
    """Ask whether a token is affordable that leaves so many."""
    make = cast(Callable[[], Walk], StubWalk)
    return budget.affords(TOKEN, left, cast(Closer, closer), make)


def test_looks_that_run_out_of_time_are_not_repeated_and_become_shorter_and_rarer() -> None:
    budget, closer = Budget(UNKNOWN, LIMIT), StubCloser()
    looked_at = []
    for left in reversed(range(LIMIT)):
        known = len(closer.limits)
        assert take(budget, closer, left)
        looked_at += [left] * (len(closer.limits) - known)
    assert looked_at == [32, 16, 8, 4, 2, 1, 0]  # not where compiling has looked
    assert closer.limits == [MAX_SECONDS / 2**look for look in range(len(looked_at))]


def test_a_way_that_is_found_near_the_limit_is_taken_whatever_was_not_found_before() -> None:
    budget, closer = Budget(TOO_LONG, LIMIT), StubCloser()
    for left in reversed(range(16, LIMIT)):
        assert take(budget, closer, left)
    closer.way = [1, 2, 3]
    assert take(budget, closer, 15)
    closer.way = None
    assert not take(budget, closer, 14)
    assert budget.way == [1, 2, 3]


def test_with_a_way_in_hand_another_is_not_looked_for_any_longer_than_that_took() -> None:
    budget, closer = Budget(TOO_LONG, LIMIT), StubCloser()
    closer.way = [1, 2, 3]
    assert take(budget, closer, LIMIT - 1)
    closer.way = None
    assert not take(budget, closer, LIMIT - 2)
    assert closer.limits == [MAX_SECONDS, SHORT_LOOK_S]


def test_where_none_may_be_longer_than_the_way_in_hand_the_look_is_shorter() -> None:
    budget, closer = Budget(TOO_LONG, LIMIT), StubCloser()
    closer.way = [1, 2, 3]
    assert take(budget, closer, LIMIT - 1)
    closer.way = None
    assert not take(budget, closer, 2)
    assert closer.limits == [MAX_SECONDS, SHORT_LOOK_S * WITHOUT_SPARE]


def test_a_token_that_takes_the_place_of_the_first_of_the_way_needs_no_look() -> None:
    budget, closer = Budget(TOO_LONG, LIMIT), StubCloser()
    closer.way = [1, 8, 9]
    assert take(budget, closer, LIMIT - 1)
    assert take(budget, closer, LIMIT - 2)
    assert budget.way == LEADS_OUT[1:]
    assert len(closer.limits) == 1
