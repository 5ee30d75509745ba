"""Bad words -> the token sequences that spell them inside a text.

Each word is bad in two forms, as it is and after a space: many vocabularies have a token for the
word with its space, and spell the bare word otherwise.  What counts is the spelling in the middle
of a text.  A SentencePiece-style tokenizer puts a space before the beginning of a text, so that the
bare form cannot be had by encoding the word alone; it is encoded behind another character instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from structgen.errors import InvalidRequest

# Characters to encode a word behind, tried in turn until no token spans both.  Hardly a vocabulary
# joins a line break to what follows.
BEFORE = ("\n", "a", ".")


class Encoder(Protocol):
    """What is used of a Tokenizer."""

    @property
    def token_bytes(self) -> Sequence[bytes]: ...

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]: ...


def forms(word: str) -> tuple[str, str]:
    """Return the texts that a bad word forbids."""
    bare = word.lstrip()
    return bare, f" {bare}"


def bad_sequences(
    words: Sequence[str], token_ids: Sequence[int], tokenizer: Encoder
) -> list[list[int]]:
    """Return the sequences of token ids that may not be answered, each once.

    Raises InvalidRequest: a word cannot be encoded.
    """
    sequences: dict[tuple[int, ...], None] = dict.fromkeys((id,) for id in token_ids)
    for index, word in enumerate(words):
        for form in forms(word):
            sequences[tuple(_encode(form, index, tokenizer))] = None
    sequences.pop((), None)
    return [list(ids) for ids in sequences]


def _encode(form: str, index: int, tokenizer: Encoder) -> list[int]:
    try:
        return _encode_inside(form, tokenizer)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=f"input.sampling.bad_words[{index}]") from None


def _encode_inside(text: str, tokenizer: Encoder) -> list[int]:
    """Return the ids of `text` where something stands before it."""
    for before in BEFORE:
        ids = tokenizer.encode(before + text, add_bos=False)
        if tail := _tail(ids, text.encode(), tokenizer.token_bytes):
            return tail
    return tokenizer.encode(text, add_bos=False)


def _tail(ids: list[int], end: bytes, token_bytes: Sequence[bytes]) -> list[int]:
    """Return the last ids, those that spell exactly `end`; none if it begins inside a token."""
    size = 0
    for start in range(len(ids) - 1, -1, -1):
        size += len(token_bytes[ids[start]])
        if size >= len(end):
            tail = ids[start:]
            return tail if b"".join([token_bytes[id] for id in tail]) == end else []
    return []
