"""The tokens of a vocabulary by their texts."""

from __future__ import annotations

import bisect

from structgen.grammar import bitmask
from structgen.grammar.base import Vocabulary


class Pieces:
    """Immutable (takes 0.1 s to make for 50,000 tokens)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.texts = vocabulary.token_bytes
        self.full = bitmask.full(vocabulary.size)
        self._ids = {text: token for token, text in enumerate(self.texts) if text}
        self._order = sorted(range(vocabulary.size), key=self.texts.__getitem__)
        self._by_length = sorted(range(vocabulary.size), key=lambda token: len(self.texts[token]))
        self._longest = max(map(len, self.texts), default=0)

    def holding(self, part: bytes) -> list[int]:
        """Return the tokens that have a text inside, and more behind it."""
        longer = bisect.bisect_right(
            self._by_length, len(part), key=lambda token: len(self.texts[token])
        )
        return [token for token in self._by_length[longer:] if part in self.texts[token][:-1]]

    def beginning_with(self, start: bytes) -> list[int]:
        """Return the tokens that begin with a text and are longer."""
        low = bisect.bisect_right(self._order, start, key=self.texts.__getitem__)
        high = bisect.bisect_left(
            self._order, True, low, key=lambda token: not self.texts[token].startswith(start)
        )
        return self._order[low:high]

    def spell(self, text: bytes) -> list[int] | None:
        """Return tokens that spell a text, the longest first; None: these do not."""
        spelt = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self._ids), None)
            if size is None:
                return None
            spelt.append(self._ids[text[:size]])
            text = text[size:]
        return spelt
