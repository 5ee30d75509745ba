"""Regular expressions of ECMA-262, as JSON Schema uses them, parsed.

Not taken, because no automaton has them: look-around, back-references, word boundaries, flags.
Two faults are told apart: what is no expression at all, and what is one that is not taken.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import msgspec

from structgen.grammar.schema import charset
from structgen.grammar.schema.charset import Ranges

MAX_NESTING = 50
MAX_REPEAT = 100_000


class RegexError(ValueError):
    """Not a regular expression."""


class RegexUnsupported(RegexError):
    """A regular expression, but beyond what an automaton can do."""


class Node(msgspec.Struct, frozen=True):
    pass


class Chars(Node, frozen=True):
    """One character of a set; class_text: how it was written, if `ranges` only bounds the set
    (Unicode properties)."""

    ranges: Ranges
    class_text: str = ""


class Concat(Node, frozen=True):
    items: tuple[Node, ...] = ()


class Alternation(Node, frozen=True):
    options: tuple[Node, ...]


class Repeat(Node, frozen=True):
    item: Node
    low: int
    high: int | None


class Start(Node, frozen=True):
    pass


class End(Node, frozen=True):
    pass


EMPTY = Concat()
ANY = Chars(charset.EVERY)
ANYTHING = Repeat(ANY, 0, None)


@lru_cache(maxsize=1024)
def parse(text: str) -> Node:
    """Raises RegexUnsupported, RegexError."""
    parser = _Parser(text)
    node = parser.alternation(0)
    if parser.position < len(text):
        raise RegexError(f"unmatched ) at character {parser.position}")
    return node


def nullable(node: Node) -> bool:
    """Whether it matches the empty text (with anchors taken as met)."""
    match node:
        case Concat(items):
            return all(nullable(item) for item in items)
        case Alternation(options):
            return any(nullable(option) for option in options)
        case Repeat(item, low, _):
            return low == 0 or nullable(item)
        case Chars():
            return False
    return True


class _Parser:
    ESCAPED_SETS: ClassVar[dict[str, Ranges]] = {
        "d": charset.DIGIT,
        "w": charset.WORD,
        "s": charset.SPACE,
        "D": charset.complement(charset.DIGIT),
        "W": charset.complement(charset.WORD),
        "S": charset.complement(charset.SPACE),
    }
    CONTROLS: ClassVar[dict[str, int]] = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def peek(self) -> str:
        return self.text[self.position : self.position + 1]

    def take(self) -> str:
        if self.position >= len(self.text):
            raise RegexError("unexpected end")
        self.position += 1
        return self.text[self.position - 1]

    def skip(self, text: str) -> bool:
        found = self.text.startswith(text, self.position)
        self.position += len(text) if found else 0
        return found

    def alternation(self, depth: int) -> Node:
        if depth > MAX_NESTING:
            raise RegexUnsupported(f"nested deeper than {MAX_NESTING}")
        options = [self.concat(depth)]
        while self.skip("|"):
            options.append(self.concat(depth))
        return options[0] if len(options) == 1 else Alternation(tuple(options))

    def concat(self, depth: int) -> Node:
        items = []
        while self.peek() not in ("", "|", ")"):
            items.append(self.quantified(depth))
        return items[0] if len(items) == 1 else Concat(tuple(items))

    def quantified(self, depth: int) -> Node:
        is_anchor = self.peek() in ("^", "$")
        node = self.atom(depth)
        bounds = self.quantifier()
        if bounds is None:
            return node
        if is_anchor:
            raise RegexError("nothing to repeat")
        self.skip("?")  # lazy: the same texts
        if self.peek() and self.peek() in "*+?":
            raise RegexUnsupported("a repeated repetition")
        return Repeat(node, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        match self.peek():
            case "*":
                bounds: tuple[int, int | None] = (0, None)
            case "+":
                bounds = (1, None)
            case "?":
                bounds = (0, 1)
            case "{":
                return self.counted()
            case _:
                return None
        self.take()
        return bounds

    def counted(self) -> tuple[int, int | None]:
        end = self.text.find("}", self.position)
        low, comma, high = self.text[self.position + 1 : end].partition(",")
        if end < 0 or not _is_count(low) or not (high == "" or _is_count(high)):
            raise RegexError(f"bad repetition at character {self.position}")
        self.position = end + 1
        if len(low) > 9 or len(high) > 9 or int(low) > MAX_REPEAT or int(high or 0) > MAX_REPEAT:
            raise RegexUnsupported(f"a repetition of more than {MAX_REPEAT}")
        bounds = (int(low), int(high) if high else None if comma else int(low))
        if bounds[1] is not None and bounds[1] < bounds[0]:
            raise RegexError("repetition out of order")
        return bounds

    def atom(self, depth: int) -> Node:
        character = self.take()
        match character:
            case "^":
                return Start()
            case "$":
                return End()
            case ".":
                return Chars(charset.DOT)
            case "(":
                return self.group(depth)
            case "[":
                return self.set()
            case "\\":
                return self.escape()
            case "*" | "+" | "?" | "{":
                raise RegexError(f"nothing to repeat at character {self.position - 1}")
        return Chars(charset.of(character))

    def group(self, depth: int) -> Node:
        if self.skip("?"):
            self.group_kind()
        node = self.alternation(depth + 1)
        if not self.skip(")"):
            raise RegexError("missing )")
        return node

    def group_kind(self) -> None:
        for look in ("=", "!", "<=", "<!"):
            if self.skip(look):
                raise RegexUnsupported("look-around")
        if self.skip("P<") or self.skip("<"):
            end = self.text.find(">", self.position)
            if end < 0:
                raise RegexError("bad group name")
            self.position = end + 1
        elif not self.skip(":"):
            raise RegexUnsupported("group options")

    def escape(self) -> Node:
        character = self.take()
        if character in self.ESCAPED_SETS:
            return Chars(self.ESCAPED_SETS[character])
        if character in "bB":
            raise RegexUnsupported("a word boundary")
        if character in "123456789k":
            raise RegexUnsupported("a back-reference")
        if character in "pP":
            name = self.property_name()
            return Chars(charset.EVERY, f"\\{character}{{{name}}}")
        return Chars(_single(self.code(character)))

    def property_name(self) -> str:
        end = self.text.find("}", self.position)
        name = self.text[self.position + 1 : end]
        if self.peek() != "{" or end < 0 or not name.replace("=", "").replace("_", "").isalnum():
            raise RegexError("bad Unicode property")
        self.position = end + 1
        return name

    def code(self, character: str) -> int:
        """Return the code point of an escape, of which the first character is taken."""
        if character in self.CONTROLS:
            return self.CONTROLS[character]
        if character == "c":
            return ord(self.take()) % 32
        if character == "x":
            return self.hexadecimal(2)
        if character == "u":
            return self.unicode()
        if character.isascii() and character.isalnum():
            raise RegexError(f"bad escape \\{character}")
        return ord(character)

    def unicode(self) -> int:
        if self.skip("{"):
            end = self.text.find("}", self.position)
            code = _hexadecimal(self.text[self.position : end] if end >= 0 else "")
            self.position = end + 1
            return code
        code = self.hexadecimal(4)
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.position):
            self.position += 2
            low = self.hexadecimal(4)
            if not 0xDC00 <= low < 0xE000:
                raise RegexError("a lone surrogate")
            return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        return code

    def hexadecimal(self, digits: int) -> int:
        text = self.text[self.position : self.position + digits]
        self.position += digits
        if len(text) < digits:
            raise RegexError("unexpected end")
        return _hexadecimal(text)

    def set(self) -> Node:
        start = self.position - 1
        inverted = self.skip("^")
        ranges: list[tuple[int, int]] = []
        inexact = False
        while not self.skip("]"):
            low = self.set_item()
            if isinstance(low, str):
                inexact = True
                continue
            is_range = (
                self.peek() == "-" and self.text[self.position + 1 : self.position + 2] != "]"
            )
            if isinstance(low, tuple) or not is_range:
                ranges += low if isinstance(low, tuple) else [(low, low)]
                continue
            self.take()
            high = self.set_item()
            if not isinstance(high, int):
                raise RegexError("a class at the end of a range")
            if high < low:
                raise RegexError("range out of order")
            ranges.append((low, high))
        if inexact:
            return Chars(charset.EVERY, self.text[start : self.position])
        if not ranges:
            raise RegexUnsupported("an empty class")
        found = charset.normal(ranges)
        return Chars(charset.complement(found) if inverted else found)

    def set_item(self) -> int | Ranges | str:
        """Return a code point, a set, or the text of a Unicode property."""
        character = self.take()
        if character != "\\":
            return ord(character)
        character = self.take()
        if character in self.ESCAPED_SETS:
            return self.ESCAPED_SETS[character]
        if character in "pP":
            return self.property_name()
        return 8 if character == "b" else self.code(character)


def _single(code: int) -> Ranges:
    return ((code, code),)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _hexadecimal(text: str) -> int:
    if not text or len(text) > 6 or any(digit not in "0123456789abcdefABCDEF" for digit in text):
        raise RegexError("bad hexadecimal escape")
    code = int(text, 16)
    if code > charset.LAST:
        raise RegexError("no such character")
    return code
