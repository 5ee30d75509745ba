"""What came next, the last time that the same few tokens came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

BORDER = -1  # between texts; nothing goes on across it
SHORTEST, LONGEST = 2, 4  # how many tokens must be the same at least, and are looked at
MAX_LOOKS = 32  # at places where a pair has come, the last ones


class Ngrams:
    """A growing list of tokens; for each pair of them, the places behind it, as a chain.

    Nearly always a text's last pair is new, so that one look tells that there is nothing.
    """

    __slots__ = ("_before", "_last", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._last: dict[int, int] = {}  # by pair: the place behind it, where it came last
        self._before: list[int] = []  # by place: the one before it behind the same pair, or -1

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        seen, last, before = self._tokens, self._last, self._before
        first, second = (BORDER, BORDER, *seen[-2:])[-2:]
        for token in tokens:
            pair = _pair(first, second)
            before.append(last.get(pair, -1))
            last[pair] = len(seen)
            seen.append(token)
            first, second = second, token

    def following(self, past: Sequence[int], limit: int) -> tuple[int, list[int]]:
        """Return at most `limit` tokens that came after the end of `past`, and how much matched."""
        place = self._last.get(_pair(past[-2], past[-1]), -1) if len(past) >= SHORTEST else -1
        if place < 0:
            return 0, []
        longest, start = self._best(past, place)
        follows = self._tokens[start : start + limit]
        return longest, [*takewhile(lambda token: token != BORDER, follows)]

    def _best(self, past: Sequence[int], place: int) -> tuple[int, int]:
        """Return how much of `past` matches where most does, and that place, the last such."""
        longest, best = 0, place
        for _ in range(MAX_LOOKS):
            length = self._match(past, place)
            if length > longest:
                longest, best = length, place
            place = self._before[place]
            if longest == LONGEST or place < 0:
                break
        return longest, best

    def _match(self, past: Sequence[int], place: int) -> int:
        """Return how many tokens before a place are the last of `past`, of which two are."""
        limit = min(LONGEST, len(past), place)
        for length in range(SHORTEST, limit):
            if self._tokens[place - 1 - length] != past[-1 - length]:
                return length
        return limit


def _pair(first: int, second: int) -> int:
    return (first << 32) + second
