"""Patterns as ECMA-262 has them, in the syntax of Rust's regex crate, for a match of a whole text.

llguidance and outlines-core read (parts of) Rust's syntax, which looks the same and is not: its
classes are Unicode's, nest, and have set operations.  Every character comes out as itself only if
nothing could take it for syntax.  What a full match cannot honour is refused by name.
"""

from __future__ import annotations

import re

import msgspec

MAX_DEPTH = 100
MAX_REPETITION = 1_000_000
_QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(?:(,)(\d*))?\})\??")
_NAMED_GROUP = re.compile(r"\?P?<[A-Za-z_$][A-Za-z0-9_$]*>")
_PROPERTY = re.compile(r"\{[A-Za-z0-9_]+(=[A-Za-z0-9_]+)?\}")
_CODE_POINT = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{0*([0-9A-Fa-f]{1,6})\}")
_LOW_SURROGATE = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})")
_LOOKAROUND = {"?=": "lookahead", "?!": "lookahead", "?<=": "lookbehind", "?<!": "lookbehind"}
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D, "0": 0x00}
_SETS = {
    "d": "0-9",
    "w": "0-9A-Z_a-z",
    "s": r"\x{9}-\x{D}\x{20}\x{A0}\x{1680}\x{2000}-\x{200A}"
    r"\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}\x{FEFF}",
}
_LINE_END = r"\x{A}\x{D}\x{2028}\x{2029}"


class RustRegex(msgspec.Struct, frozen=True):
    """text: the translation.  characters, classes: how many the text has, repetitions spelt out.

    plain: no text that it matches needs an escape in a JSON string.
    """

    text: str
    characters: int
    classes: int
    plain: bool


class RegexError(ValueError):
    """The pattern is malformed, or asks for what a full match over an automaton cannot give."""


def translate(pattern: str) -> RustRegex:
    """Translate a pattern that is to match whole texts.

    Anchors at the ends of the whole pattern or of a top-level alternative go without saying.
    Raises RegexError: it is not a pattern, or uses lookaround, a backreference, an anchor or word
    boundary inside, or flags.
    """
    return _Translator(pattern).whole()


class _Translator:
    """A recursive descent over the pattern; _characters, _classes and _plain sum up on the way."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._characters = 0
        self._classes = 0
        self._plain = True

    def whole(self) -> RustRegex:
        text = self._alternatives()
        if self._at < len(self._pattern):
            raise self._error("unmatched )")
        return RustRegex(text, self._characters, self._classes, self._plain)

    def _alternatives(self) -> str:
        branches = [self._branch()]
        while self._take("|"):
            branches.append(self._branch())
        return "|".join(branches)

    def _branch(self) -> str:
        terms = []
        if self._depth == 0:
            self._take("^")
        while self._at < len(self._pattern) and self._peek() not in "|)":
            if self._depth == 0 and self._is_at_last_anchor():
                self._at += 1
            else:
                terms.append(self._term())
        return "".join(terms)

    def _is_at_last_anchor(self) -> bool:
        rest = self._pattern[self._at : self._at + 2]
        return rest in ("$", "$|")

    def _term(self) -> str:
        before = self._characters, self._classes
        atom = self._atom()
        quantifier = _QUANTIFIER.match(self._pattern, self._at)
        if quantifier is None:
            return atom
        self._at = quantifier.end()
        # Lazy or not, the texts are the same.
        return f"(?:{atom}){self._repeat(quantifier, before)}"

    def _repeat(self, quantifier: re.Match[str], before: tuple[int, int]) -> str:
        sign, least, comma, most = quantifier.groups()
        if least is None:
            return str(sign)
        low, high = int(least), int(most) if most else None
        if comma is None:
            high = low
        if high is not None and high < low:
            raise self._error(f"the bounds of {sign} are out of order")
        copies = low + 1 if high is None else high
        if copies > MAX_REPETITION:
            raise self._error(f"a repetition must be at most {MAX_REPETITION}, got {sign}")
        self._characters = before[0] + (self._characters - before[0]) * copies
        self._classes = before[1] + (self._classes - before[1]) * copies
        return f"{{{low},{'' if high is None else high}}}"

    def _atom(self) -> str:
        symbol = self._next()
        match symbol:
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return self._set(f"[^{_LINE_END}]", plain=False)
            case "\\":
                return self._escape()
            case "^" | "$":
                raise self._error(f"anchor {symbol} inside the pattern")
            case "*" | "+" | "?":
                raise self._error(f"nothing for {symbol} to repeat")
            case _:
                if _QUANTIFIER.match(self._pattern, self._at - 1):
                    raise self._error("nothing for a {} to repeat")
                return self._character(ord(symbol))

    def _group(self) -> str:
        for sign, name in _LOOKAROUND.items():
            if self._pattern.startswith(sign, self._at):
                raise self._error(f"{name} (?{sign[1:]}) is not supported")
        named = _NAMED_GROUP.match(self._pattern, self._at)
        if named is not None:
            self._at = named.end()
        elif self._pattern.startswith("?:", self._at):
            self._at += 2
        elif self._pattern.startswith("?", self._at):
            raise self._error("flags in a group are not supported")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"groups are nested deeper than {MAX_DEPTH}")
        inside = self._alternatives()
        self._depth -= 1
        if not self._take(")"):
            raise self._error("unclosed (")
        return f"(?:{inside})"

    def _escape(self) -> str:
        symbol = self._peek()
        if symbol in "123456789" or symbol == "k":
            raise self._error(f"backreference \\{symbol} is not supported")
        if symbol in "bB":
            raise self._error(f"word boundary \\{symbol} is not supported")
        special = self._set_escape()
        if special is not None:
            return self._set(special, plain=symbol in "dw")
        return self._character(self._code_point())

    def _set_escape(self) -> str | None:
        """Take an escape that stands for several characters; return it as a class, or None."""
        symbol = self._peek()
        if symbol.lower() in _SETS:
            self._at += 1
            return f"[{'^' if symbol.isupper() else ''}{_SETS[symbol.lower()]}]"
        if symbol in "pP":
            name = _PROPERTY.match(self._pattern, self._at + 1)
            if name is None:
                raise self._error(f"\\{symbol} needs a property, as in \\{symbol}{{L}}")
            self._at = name.end()
            return f"\\{symbol}{name[0]}"
        return None

    def _code_point(self) -> int:
        """Take the rest of an escape that stands for one character."""
        number = _CODE_POINT.match(self._pattern, self._at)
        if number is not None:
            self._at = number.end()
            return self._scalar(int(number[1] or number[2] or number[3], 16))
        symbol = self._next()
        if symbol == "c" and (letter := self._peek()).isascii() and letter.isalpha():
            self._at += 1
            return ord(letter) & 0x1F
        if symbol in _CONTROLS:
            return _CONTROLS[symbol]
        if symbol.isascii() and symbol.isalnum():
            raise self._error(f"unknown escape \\{symbol}")
        return ord(symbol)

    def _scalar(self, code: int) -> int:
        """Join a surrogate with the one after it, as JSON and JavaScript write such characters."""
        low = _LOW_SURROGATE.match(self._pattern, self._at) if 0xD800 <= code < 0xDC00 else None
        if low is not None:
            self._at = low.end()
            return 0x10000 + (code - 0xD800 << 10) + int(low[1], 16) - 0xDC00
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise self._error(f"\\u{code:04x} is no character")
        return code

    def _class(self) -> str:
        negated = self._take("^")
        items: list[str] = []
        plain = not negated
        while not self._take("]"):
            if self._at >= len(self._pattern):
                raise self._error("unclosed [")
            item, item_plain = self._class_item()
            items.append(item)
            plain = plain and item_plain
        if not items and not negated:
            raise self._error("[] matches nothing")
        inside = "".join(items)
        text = f"[{'^' if negated else ''}{inside}]" if items else r"[\x{0}-\x{10FFFF}]"
        return self._set(text, plain=plain)

    def _class_item(self) -> tuple[str, bool]:
        low = self._class_atom()
        if isinstance(low, str):
            return low, low in (f"[{_SETS['d']}]", f"[{_SETS['w']}]")
        if self._peek() != "-" or self._pattern.startswith("-]", self._at):
            return _literal(low), _is_plain(low, low)
        self._at += 1
        high = self._class_atom()
        if isinstance(high, str):  # [a-\d]: three members, by Annex B
            return f"{_literal(low)}{_literal(ord('-'))}{high}", False
        if high < low:
            raise self._error("a range in a class is out of order")
        return f"{_literal(low)}-{_literal(high)}", _is_plain(low, high)

    def _class_atom(self) -> int | str:
        symbol = self._next()
        if symbol != "\\":
            return ord(symbol)
        if self._take("b"):
            return 0x08
        return self._set_escape() or self._code_point()

    def _set(self, text: str, *, plain: bool) -> str:
        self._classes += 1
        self._plain = self._plain and plain
        return text

    def _character(self, code: int) -> str:
        self._characters += 1
        self._plain = self._plain and _is_plain(code, code)
        return _literal(code)

    def _peek(self) -> str:
        """Return the next character, or NUL at the end, which nothing here looks for."""
        return self._pattern[self._at] if self._at < len(self._pattern) else "\0"

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._error("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, symbol: str) -> bool:
        taken = self._pattern.startswith(symbol, self._at)
        self._at += taken
        return taken

    def _error(self, what: str) -> RegexError:
        return RegexError(f"regex: {what}, at character {self._at}")


def _literal(code: int) -> str:
    character = chr(code)
    if character.isascii() and not character.isalnum() and character != "_":
        return f"\\x{{{code:X}}}"
    return character


def _is_plain(low: int, high: int) -> bool:
    """Whether a JSON string holds every character of [low, high] as it is."""
    return low >= 0x20 and not (low <= 0x22 <= high or low <= 0x5C <= high)


def escape(text: str) -> str:
    """Return a pattern, in Rust's syntax, of exactly this text."""
    return "".join(_literal(ord(character)) for character in text)
