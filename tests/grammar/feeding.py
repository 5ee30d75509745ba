"""Feed whole texts through the masks of a grammar, token by token, as generation would.

A text can be spelt a byte at a time, or in the longest tokens that fit.  For the latter the
vocabulary is made of pieces of the texts themselves: they know nothing of the grammar, so they
straddle its strings, numbers and punctuation.
"""

from __future__ import annotations

from collections.abc import Iterable

from structgen.constraints import Constraint
from structgen.grammar import bitmask, build_backend
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends, Chosen

BYTES = [bytes([byte]) for byte in range(256)]
CONTROL_TOKEN = b""
MAX_PIECE_BYTES = 5


def byte_vocabulary() -> Vocabulary:
    """Return a vocabulary of the bytes, by id, and a control token."""
    return Vocabulary([*BYTES, CONTROL_TOKEN])


def piece_vocabulary(texts: Iterable[str]) -> Vocabulary:
    """Return one of the bytes and of every piece of the texts up to MAX_PIECE_BYTES."""
    pieces = {
        data[start : start + size]
        for data in (text.encode() for text in texts)
        for size in range(2, MAX_PIECE_BYTES + 1)
        for start in range(len(data) - size + 1)
    }
    return Vocabulary([*BYTES, CONTROL_TOKEN, *sorted(pieces)])


class Judge:
    """Tells which texts obey a constraint, by the masks of one backend over one vocabulary."""

    def __init__(
        self, constraint: Constraint, vocabulary: Vocabulary, backend: str | None = None
    ) -> None:
        """Compile with a backend that is given the constraint as it is; None: as for a request.

        Raises ConstraintError: the constraint is refused.
        """
        if backend is None:
            chosen = Backends(vocabulary).compile(constraint)
            self._backend, self._compiled = chosen.backend, chosen.grammar
        else:
            self._backend = build_backend(backend, vocabulary)
            self._compiled = self._backend.compile(constraint)
        self._words = bitmask.allocate(1, vocabulary.size)
        self._ids = {text: id for id, text in enumerate(vocabulary.token_bytes) if text}
        self._longest = max(map(len, self._ids))

    def obeys(self, text: str) -> bool:
        """Whether every mask allows the text's next token, and the text may end where it does."""
        matcher = self._compiled.new_matcher()
        for token in self._tokenise(text.encode()):
            self._backend.fill([matcher], self._words, [0])
            if not self._words[0, token >> 5] >> (token & 31) & 1:
                return False
            matcher.accept(token)
        return matcher.accepting

    def _tokenise(self, data: bytes) -> Iterable[int]:
        """Yield the ids of the longest tokens that fit, from the left."""
        start = 0
        while start < len(data):
            sizes = range(min(self._longest, len(data) - start), 0, -1)
            size = next(size for size in sizes if data[start : start + size] in self._ids)
            yield self._ids[data[start : start + size]]
            start += size


def obeys(chosen: Chosen, text: bytes, vocabulary_size: int = 257) -> bool:
    """Whether a text, byte by byte, obeys what has been compiled over a vocabulary of bytes."""
    matcher = chosen.grammar.new_matcher()
    words = bitmask.allocate(1, vocabulary_size)
    for byte in text:
        chosen.backend.fill([matcher], words, [0])
        if not bitmask.holds(words[0], byte):
            return False
        matcher.accept(byte)
    return matcher.accepting
