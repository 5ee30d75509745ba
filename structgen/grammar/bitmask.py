"""Packed token bitmasks: bit (t & 31) of word (t >> 5) says whether token t is allowed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]


def num_words(vocab_size: int) -> int:
    return -(-vocab_size // 32)


def allocate(rows: int, vocab_size: int) -> Words:
    """Return int32 [rows, ceil(vocab_size / 32)] with no token allowed."""
    return np.zeros((rows, num_words(vocab_size)), dtype=np.int32)


def pack(allowed: Iterable[int], vocab_size: int) -> Words:
    """Return int32 [ceil(vocab_size / 32)] that allows exactly these tokens."""
    bits = np.zeros(num_words(vocab_size) * 32, dtype=np.uint8)
    bits[list(allowed)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def full(vocab_size: int) -> Words:
    """Return int32 [ceil(vocab_size / 32)] that allows every token and no bit beyond."""
    words = np.full(num_words(vocab_size), -1, dtype=np.int32)
    if beyond := vocab_size % 32:
        words[-1] = (1 << beyond) - 1
    return words


def unpack(words: Words, vocab_size: int) -> list[int]:
    """Return the allowed tokens of one mask row, ascending."""
    used = words.nonzero()[0]  # few, as a rule
    bits = np.unpackbits(words[used].view(np.uint8), bitorder="little").view(np.bool_).nonzero()[0]
    tokens = (used[bits >> 5] << 5) + (bits & 31)
    unpacked: list[int] = tokens[: np.searchsorted(tokens, vocab_size)].tolist()
    return unpacked


def holds(row: Words, token: int) -> bool:
    """Whether one mask row allows a token."""
    return bool(row[token >> 5] >> (token & 31) & 1)


def count(words: Words) -> npt.NDArray[np.int64]:
    """Return int64 [M], how many tokens each row of int32 [M, W] allows."""
    ones: npt.NDArray[np.int64] = np.bitwise_count(words.view(np.uint32)).sum(-1, dtype=np.int64)
    return ones


class TokenSet:
    """A small fixed set of tokens that is switched on or off in mask rows.

    Touches only the words that hold one of its tokens.
    """

    __slots__ = ("_bits", "_words")

    def __init__(self, tokens: Iterable[int]) -> None:
        bits: dict[int, int] = {}
        for token in tokens:
            bits[token >> 5] = bits.get(token >> 5, 0) | 1 << (token & 31)
        self._words = np.array(list(bits), dtype=np.intp)
        self._bits = np.array(list(bits.values()), dtype=np.uint32).view(np.int32)

    @property
    def is_empty(self) -> bool:
        return not len(self._words)

    def meets(self, row: Words) -> bool:
        """Whether one mask row allows one of the tokens."""
        return bool((row[self._words] & self._bits).any())

    def allow(self, row: Words) -> None:
        row[self._words] |= self._bits

    def ban(self, row: Words) -> None:
        row[self._words] &= ~self._bits
