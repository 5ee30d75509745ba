"""What came next, the last time that the same few tokens came."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

BORDER = -1  # between texts; nothing goes on across it
SIZES = (4, 3, 2)  # how many tokens must be the same, best first


class Ngrams:
    """A growing list of tokens, and what came after the last few of them."""

    __slots__ = ("_after", "_tokens")

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where a run was last gone on from

    def __len__(self) -> int:
        return len(self._tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        seen, after = self._tokens, self._after
        for token in tokens:
            for size in SIZES:
                if len(seen) >= size:
                    after[tuple(seen[-size:])] = len(seen)
            seen.append(token)

    def following(self, past: Sequence[int], limit: int) -> tuple[int, list[int]]:
        """Return at most `limit` tokens that came after the end of `past`, and how much matched."""
        for size in SIZES:
            start = self._after.get(tuple(past[-size:])) if len(past) >= size else None
            if start is not None:
                follows = self._tokens[start : start + limit]
                return size, [*takewhile(lambda token: token != BORDER, follows)]
        return 0, []
