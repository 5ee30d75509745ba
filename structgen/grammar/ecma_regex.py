"""ECMA-262 patterns, rewritten for the libraries, for a match of a whole text.

The libraries' own dialects look the same and are not: in some, classes are Unicode's, nest, and
have set operations, in others "\\x41B" is one character and an anchor inside is passed over.  So
every character comes out as its number, every class as its ranges, and anchors not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges
from structgen.grammar.schema.language import whole
from structgen.grammar.schema.regex import (
    Alternation,
    Chars,
    Concat,
    Node,
    RegexError,
    RegexUnsupported,
    Repeat,
    parse,
)

_SCALARS = charset.complement(((0xD800, 0xDFFF),))  # surrogates are no characters
_PLAIN = charset.complement(((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C)))


class Style(Enum):
    """How a dialect writes a character by its number."""

    ECMA = r"\u{{{:X}}}"
    RUST = r"\x{{{:X}}}"  # of the regex crate


class Translation(msgspec.Struct, frozen=True):
    """text: the pattern.  characters, classes: how many it has, with repetitions spelt out.

    plain: no text that it matches needs an escape in a JSON string.
    """

    text: str
    characters: int = 0
    classes: int = 0
    plain: bool = True


def translate(pattern: str, style: Style, reserved: str = "") -> Translation:
    """Translate a pattern that is to match whole texts, none of which has a reserved character.

    Raises ValueError: it is not a pattern, is beyond what an automaton can do, or matches nothing.
    """
    try:
        parse(pattern)  # for errors that count characters in this text, not in the next
        node = whole(f"^(?:{pattern})$")
    except RegexUnsupported as error:
        raise ValueError(f"regex: {error} is not supported") from None
    except RegexError as error:
        raise ValueError(f"regex: {error}") from None
    if node is None:
        raise ValueError("regex: its anchors rule out every text")
    return Writer(style, reserved).write(node)


def escape(text: str, style: Style) -> str:
    """Return a pattern of exactly this text."""
    return "".join(_number(ord(character), style) for character in text)


class Writer:
    """Writes patterns in a style; no text that they match has a reserved character."""

    def __init__(self, style: Style, reserved: str = "") -> None:
        self._style = style
        self._usable = charset.meet(_SCALARS, charset.complement(charset.of(reserved)))

    def write(self, node: Node) -> Translation:
        """Raises ValueError: a class has reserved characters alone."""
        match node:
            case Chars(ranges, class_text):
                return self._property(class_text) if class_text else self._set(ranges)
            case Concat(items):
                return self.join([self.write(item) for item in items])
            case Alternation(options):
                return self.either([self.write(option) for option in options])
            case Repeat(item, low, high):
                return self.repeat(self.write(item), low, high)
        raise AssertionError(node)

    def text(self, text: str) -> Translation:
        """Write exactly this text.  Raises ValueError: it has a reserved character."""
        return self.join([self._set(charset.of(character)) for character in text])

    def join(self, parts: Sequence[Translation]) -> Translation:
        return self._sum(parts, "".join(part.text for part in parts))

    def either(self, parts: Sequence[Translation]) -> Translation:
        return self._sum(parts, f"(?:{'|'.join(part.text for part in parts)})")

    def repeat(self, item: Translation, low: int, high: int | None) -> Translation:
        copies = low + 1 if high is None else high
        return Translation(
            f"(?:{item.text}){{{low},{'' if high is None else high}}}",
            item.characters * copies,
            item.classes * copies,
            item.plain,
        )

    def _sum(self, parts: Sequence[Translation], text: str) -> Translation:
        return Translation(
            text,
            sum(part.characters for part in parts),
            sum(part.classes for part in parts),
            all(part.plain for part in parts),
        )

    def _set(self, ranges: Ranges) -> Translation:
        members = charset.meet(ranges, self._usable)
        if not members:
            raise ValueError("regex: a class has no character that a text may have")
        plain = charset.meet(members, _PLAIN) == members
        if members[0][0] == members[-1][1]:
            return Translation(_number(members[0][0], self._style), characters=1, plain=plain)
        return Translation(self._class(members), classes=1, plain=plain)

    def _property(self, class_text: str) -> Translation:
        """Write a class with Unicode properties, whose characters only the library knows."""
        if self._style is not Style.RUST:
            raise ValueError("regex: a Unicode property is not supported")
        return Translation(f"[{class_text}&&{self._class(self._usable)}]", classes=1, plain=False)

    def _class(self, ranges: Ranges) -> str:
        ends = [(_number(low, self._style), _number(high, self._style)) for low, high in ranges]
        return f"[{''.join(low if low == high else f'{low}-{high}' for low, high in ends)}]"


def _number(code: int, style: Style) -> str:
    """Spare letters and digits, which are themselves everywhere."""
    character = chr(code)
    return character if character.isalnum() else style.value.format(code)
