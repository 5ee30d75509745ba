"""Masks read as text: which tokens spell a place, and which texts a mask allows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from structgen.grammar import bitmask
from structgen.grammar.base import GrammarBackend, Matcher, Vocabulary

Indices = npt.NDArray[np.intp]


class Spelling:
    """The tokens of a vocabulary by their text; those without one are left out.  Immutable.

    texts: the distinct ones, in the order of their bytes.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids: dict[bytes, list[int]] = {}
        for token, text in enumerate(vocabulary.token_bytes):
            if text:
                ids.setdefault(text, []).append(token)
        self.vocab_size = vocabulary.size
        self.texts = sorted(ids)
        self._ids = ids
        # By the first two bytes, how long such texts are, longest first; a token has few rivals.
        lengths: dict[bytes, set[int]] = {}
        for text in ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        # The ids of all texts one after another, and where those of each begin.
        self._flat = np.array([id for text in self.texts for id in ids[text]], dtype=np.intp)
        self._begins = np.cumsum([0, *(len(ids[text]) for text in self.texts[:-1])])

    def ids(self, text: bytes) -> list[int]:
        """Return the tokens that alone spell a text."""
        return self._ids.get(text, [])

    def at(self, text: bytes, start: int) -> Iterator[tuple[int, list[int]]]:
        """Yield where tokens end that spell `text` from `start` on, and they; longest first."""
        for head in dict.fromkeys((text[start : start + 2], text[start : start + 1])):
            for length in self._lengths.get(head, ()):
                ids = self._ids.get(text[start : start + length])
                if ids is not None and start + length <= len(text):
                    yield start + length, ids

    def allowed(self, row: bitmask.Words) -> Indices:
        """Return the indices in `texts` of what a mask row allows, ascending."""
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        return np.flatnonzero(np.logical_or.reduceat(bits[self._flat], self._begins))

    def nexts(self, allowed: Indices, lead: bytes) -> Iterator[bytes]:
        """Yield the beginnings of allowed texts that are a byte longer than `lead`, once each."""
        begin, end = self._span(allowed, lead)
        while begin < end:
            longer = self.texts[allowed[begin]][: len(lead) + 1]
            if longer == lead:
                begin += 1
            else:
                yield longer
                _, begin = self._span(allowed, longer)

    def has_prefix(self, allowed: Indices, prefix: bytes) -> bool:
        """Whether an allowed text begins with a prefix."""
        begin, end = self._span(allowed, prefix)
        return begin < end

    def _span(self, allowed: Indices, prefix: bytes) -> tuple[int, int]:
        """Return where in `allowed` the texts with a prefix begin and end."""

        def head(index: np.intp) -> bytes:
            return self.texts[index][: len(prefix)]

        return bisect_left(allowed, prefix, key=head), bisect_right(allowed, prefix, key=head)


class Reader:
    """The masks of one backend, one at a time.  For one thread."""

    def __init__(self, backend: GrammarBackend, spelling: Spelling) -> None:
        self._backend = backend
        self._words = bitmask.allocate(1, spelling.vocab_size)
        self._full = bitmask.full(spelling.vocab_size)

    def mask(self, matcher: Matcher) -> bitmask.Words:
        """Return the row of a matcher, which the next call overwrites.  Raises GrammarError."""
        self._words[:] = 0
        self._backend.fill([matcher], self._words, [0])
        row: bitmask.Words = self._words[0]
        row &= self._full
        return row


def is_allowed(row: bitmask.Words, token: int) -> bool:
    return bool(row[token >> 5] >> (token & 31) & 1)
