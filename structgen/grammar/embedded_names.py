"""No object inside free text names a property twice, where a structural tag has objects whose names
are left open.

    free text ──{──► a beginning ──a byte of JSON──► …──the brace that closes it──► free text
                         └──a byte that JSON cannot have there──► it was none

Where the text is in its tag only the library knows.  So every brace may begin an object, and what
goes on as JSON is held to it; several may be open, one in a string of the other.  The oldest is
believed: what comes inside of it dies with its end.
"""

from __future__ import annotations

import msgspec

from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError
from structgen.grammar.bitmask import Words
from structgen.grammar.unique_names import Frame, Mode, Names, Place
from structgen.grammar.watch import StateWatch

_BLANKS = b" \t\n\r"
_BARE = b"0123456789+-.Eaeflnrstu"  # of numbers, true, false and null
_VALUE = b'"{[' + _BARE
_MAX_OPEN = 8  # beginnings; one in a string of another is rarely an object


class Beginning(msgspec.Struct, frozen=True):
    """What may be an object.  follows: what JSON has next there, outside strings."""

    place: Place
    follows: bytes


Open = tuple[Beginning, ...]  # oldest first

_NEW = Beginning(Place(Frame(None, frozenset()), Mode.NAME), b'"}')


class Duplicate(Exception):
    """A name is there already."""


def after(text: bytes, begun: Open) -> Open:
    """Return what may be open after more text.

    Raises Duplicate: the oldest that is an object names a property twice.
    """
    if not begun and b"{" not in text:
        return begun
    for byte in text:
        begun = _after_byte(byte, begun)
    return begun


def _after_byte(byte: int, begun: Open) -> Open:
    still: list[Beginning] = []
    for one in begun:
        try:
            next_one = _step(one, byte)
        except Duplicate:
            if not still:
                raise
            continue
        if next_one is None:
            continue
        if next_one.place.frame is None:
            if not still:
                return ()
            continue
        still.append(next_one)
    believed = bool(still) and still[0].place.mode < Mode.IN_VALUE
    if byte == ord("{") and not believed and len(still) < _MAX_OPEN:
        still.append(_NEW)
    return tuple(still)


def _step(one: Beginning, byte: int) -> Beginning | None:
    """Return it a byte further; None: it was no JSON.  Raises Duplicate."""
    text = bytes([byte])
    if one.place.mode >= Mode.IN_VALUE:
        return _step_in_string(one, text)
    if text in _BLANKS:
        return one
    if text not in one.follows:
        return None
    place = one.place.after(text)
    assert place is not None
    return Beginning(place, _follows(text, place))


def _step_in_string(one: Beginning, text: bytes) -> Beginning | None:
    if text < b" ":
        return None
    place = one.place.after(text)
    if place is None:
        raise Duplicate
    if place.mode >= Mode.IN_VALUE:
        return Beginning(place, b"")
    return Beginning(place, b":" if one.place.mode is Mode.IN_NAME else _after_value(place))


def _follows(text: bytes, place: Place) -> bytes:
    match text:
        case b"{":
            return b'"}'
        case b"[":
            return _VALUE + b"]"
        case b",":
            return b'"' if place.mode is Mode.NAME else _VALUE
        case b":":
            return _VALUE
        case b"}" | b"]":
            return _after_value(place)
    return _BARE + _after_value(place)


def _after_value(place: Place) -> bytes:
    if place.frame is None:
        return b""
    return b",]" if place.frame.names is None else b",}"


class EmbeddedNameWatch(StateWatch[Open]):
    def __init__(self, names: Names) -> None:
        super().__init__(())
        self._names = names

    def after(self, token: int) -> Open:
        try:
            return after(self._names.texts[token], self.state)
        except Duplicate:
            raise GrammarError(f"token {token} would name a property twice") from None

    def restrict(self, row: Words) -> None:
        suspects = set(self._names.objects)
        for one in self.state:
            suspects.update(self._names.repeating(one.place, row))
        repeating = [token for token in suspects if self._repeats(token)]
        if repeating:
            bitmask.TokenSet(repeating).ban(row)

    def _repeats(self, token: int) -> bool:
        try:
            self.after(token)
        except GrammarError:
            return True
        return False

    @property
    def may_end(self) -> bool:
        return True
