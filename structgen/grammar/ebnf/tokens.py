"""The words of a grammar's text: names, texts, classes of characters, numbers, signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from structgen.grammar.ebnf.fault import malformed
from structgen.grammar.ebnf.words import Word, words
from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges


class Kind(Enum):
    NAME = "a name"
    ASSIGN = "::="
    TEXT = "a text in quotes"
    CLASS = "a class of characters"
    NUMBER = "a number"
    SIGN = "a sign"
    END = "the end"


Token = Word[Kind]

_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\r\n]*)*")
_WORD = re.compile(
    r'(?P<ASSIGN>::=)|(?P<TEXT>"(?:[^"\\\r\n]|\\[^\r\n])*")|(?P<CLASS>\[(?:[^\]\\\r\n]|\\[^\r\n])*\])'
    r"|(?P<NAME>[A-Za-z_.-][A-Za-z0-9_.-]*)|(?P<NUMBER>[0-9]+)|(?P<SIGN>\(=|[(){},|*+?])"
)
_UNCLOSED = {'"': 'a text without its closing "', "[": "a class without its closing ]"}

_CODE = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})")
_ESCAPES = {"n": 10, "r": 13, "t": 9, "b": 8, "f": 12, "v": 11, "0": 0, "a": 7, "e": 27} | {
    sign: ord(sign) for sign in "'?\"\\/"
}
_CLASS_ESCAPES = _ESCAPES | {sign: ord(sign) for sign in "^$.*+?()[]{}|-"}


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens, and one of kind END.  Raises ConstraintError: something is none."""
    return words(text, Kind, space=_SPACE, word=_WORD, what_is_wrong=_what_is_wrong)


def _what_is_wrong(character: str) -> str:
    return _UNCLOSED.get(character, f"unexpected {character!r}")


def text_of(token: Token, text: str) -> str:
    """Return what a TEXT spells.  Raises ConstraintError: a bad escape."""
    return unquoted(text, token.at + 1, token.at + len(token.spelling) - 1)


def unquoted(text: str, start: int, end: int) -> str:
    """Return what text[start:end] spells.  Raises ConstraintError: a bad escape."""
    return "".join(chr(code) for code, _ in _codes(text, start, end, _ESCAPES))


def class_of(token: Token, text: str) -> Ranges:
    """Return the characters of a CLASS.

    Raises ConstraintError: a bad escape, a range out of order, or no character.
    """
    inverted = token.spelling.startswith("[^")
    start, end = token.at + 1 + inverted, token.at + len(token.spelling) - 1
    codes = list(_codes(text, start, end, _CLASS_ESCAPES))
    ranges: list[tuple[int, int]] = []
    position = 0
    while position < len(codes):
        low, at = codes[position]
        is_range = codes[position + 1 : position + 2] and text[codes[position + 1][1]] == "-"
        high = codes[position + 2][0] if is_range and position + 2 < len(codes) else low
        position += 3 if is_range and position + 2 < len(codes) else 1
        if high < low:
            raise malformed(text, at, f"the range {chr(low)}-{chr(high)} is out of order")
        ranges.append((low, high))
    found = charset.normal(ranges)
    if not (charset.complement(found) if inverted else found):
        raise malformed(text, token.at, "a class without any character")
    return charset.complement(found) if inverted else found


def _codes(text: str, at: int, end: int, escapes: dict[str, int]) -> Iterator[tuple[int, int]]:
    """Yield the code point of each character of text[at:end], and where it is."""
    while at < end:
        start = at
        code, at = _code(text, at, escapes)
        if 0xD800 <= code < 0xDC00 and text[at : at + 2] in ("\\u", "\\U"):
            low, at = _code(text, at, escapes)
            code = 0x10000 + (code - 0xD800 << 10) + low - 0xDC00 if 0xDC00 <= low < 0xE000 else -1
        if not 0 <= code <= charset.LAST or 0xD800 <= code < 0xE000:
            raise malformed(text, start, f"{text[start:at]} is no character")
        yield code, start


def _code(text: str, at: int, escapes: dict[str, int]) -> tuple[int, int]:
    """Return the code point of the character at `at`, escaped or not, and where the next is."""
    if text[at] != "\\":
        return ord(text[at]), at + 1
    if text[at + 1] in escapes:
        return escapes[text[at + 1]], at + 2
    number = _CODE.match(text, at + 1)
    if number is None:
        raise malformed(text, at, f"\\{text[at + 1]} is no escape")
    return int(number[1] or number[2] or number[3], 16), number.end()
