"""Sets of characters as ranges of code points."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]  # sorted, apart, both ends inside

LAST = 0x10FFFF
EVERY: Ranges = ((0, LAST),)


def normal(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Sort and join."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return tuple(joined)


def complement(ranges: Ranges) -> Ranges:
    result = []
    start = 0
    for low, high in ranges:
        if start < low:
            result.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        result.append((start, LAST))
    return tuple(result)


def meet(first: Ranges, second: Ranges) -> Ranges:
    """Return the characters in both."""
    result = []
    i = j = 0
    while i < len(first) and j < len(second):
        low = max(first[i][0], second[j][0])
        high = min(first[i][1], second[j][1])
        if low <= high:
            result.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return tuple(result)


def of(characters: str) -> Ranges:
    return normal((ord(character), ord(character)) for character in characters)


def holds(ranges: Ranges, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges)


# ECMA-262: \d and \w are ASCII; \s is white space and line ends of all Unicode.
DIGIT: Ranges = ((0x30, 0x39),)
WORD = normal([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)])
LINE_ENDS = of("\n\r\u2028\u2029")
SPACE = normal(
    [
        *((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
        *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
        (0xFEFF, 0xFEFF),
    ]
)
DOT = complement(LINE_ENDS)
