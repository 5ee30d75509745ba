"""No object names a property twice.

A grammar cannot remember the names that a schema leaves open, so they are remembered here, and the
tokens that would complete one a second time are taken out of the mask.  Texts are JSON in which
every string is spelt in one way only (the guard of JSON text, or the grammar, sees to it), so that
equal names are equal bytes.

    place ──text of a token──► place        a place is immutable; a stack of objects, and where in
                                            the innermost the text is
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from enum import IntEnum, auto

import msgspec

from structgen.constraints import Constraint, JsonObject, JsonSchema
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError, Vocabulary
from structgen.grammar.bitmask import Words
from structgen.grammar.watch import StateWatch

_OUTSIDE = re.compile(rb'["\[\]{},]')
_INSIDE = re.compile(rb'["\\]')
_MARKS = re.compile(rb'["\\\[\]{},]')


class Mode(IntEnum):
    VALUE = 0  # outside strings; a string that begins here is a value
    NAME = auto()  # the same, but it is a name
    IN_VALUE = auto()
    IN_NAME = auto()


class Frame(msgspec.Struct, frozen=True):
    """An object that is open, with the names that it has, or an array (names None)."""

    outer: Frame | None
    names: frozenset[bytes] | None


class Place(msgspec.Struct, frozen=True):
    """name: as far as it is written, between its quotes.  escaped: a backslash came last."""

    frame: Frame | None = None
    mode: Mode = Mode.VALUE
    name: bytes = b""
    escaped: bool = False

    def after(self, text: bytes) -> Place | None:
        """Return where the text leads; None: to a name that is there already."""
        place: Place | None = self
        at = 0
        while place is not None and at < len(text):
            if place.mode >= Mode.IN_VALUE:
                place, at = place._within(text, at)
            else:
                place, at = place._outside(text, at)
        return place

    def _within(self, text: bytes, at: int) -> tuple[Place | None, int]:
        if self.escaped:
            return self._with(text[at : at + 1], False), at + 1
        mark = _INSIDE.search(text, at)
        if mark is None:
            return self._with(text[at:], False), len(text)
        before = text[at : mark.start()]
        if mark[0] == b"\\":
            return self._with(before + b"\\", True), mark.end()
        return self._closed(self.name + before), mark.end()

    def _with(self, more: bytes, escaped: bool) -> Place:
        name = self.name + more if self.mode is Mode.IN_NAME else b""
        return Place(self.frame, self.mode, name, escaped)

    def _closed(self, name: bytes) -> Place | None:
        if self.mode is Mode.IN_VALUE:
            return Place(self.frame)
        assert self.frame is not None
        assert self.frame.names is not None
        if name in self.frame.names:
            return None
        return Place(Frame(self.frame.outer, self.frame.names | {name}))

    def _outside(self, text: bytes, at: int) -> tuple[Place, int]:
        mark = _OUTSIDE.search(text, at)
        if mark is None:
            return self, len(text)
        return self._past(mark[0]), mark.end()

    def _past(self, mark: bytes) -> Place:
        frame = self.frame
        match mark:
            case b'"':
                return Place(frame, Mode.IN_NAME if self.mode is Mode.NAME else Mode.IN_VALUE)
            case b"{":
                return Place(Frame(frame, frozenset()), Mode.NAME)
            case b"[":
                return Place(Frame(frame, None))
            case b",":
                in_object = frame is not None and frame.names is not None
                return Place(frame, Mode.NAME if in_object else Mode.VALUE)
        return Place(frame.outer if frame else None)


class Names:
    """What places need to know of a vocabulary; immutable, shared by all texts."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.texts = vocabulary.token_bytes
        self._plain = [_MARKS.search(text) is None for text in self.texts]
        self._order = sorted(range(len(self.texts)), key=self.texts.__getitem__)
        self._sorted = [self.texts[token] for token in self._order]
        # By the quotes that they have to have to complete a name that they begin, outside strings
        # and inside of one.
        quotes = [text.count(b'"') for text in self.texts]
        self._outside = [token for token, count in enumerate(quotes) if count >= 2]
        self._inside = [token for token in self._outside if quotes[token] >= 3]
        self._sets = (bitmask.TokenSet(self._outside), bitmask.TokenSet(self._inside))
        # Those that may begin an object and name something twice in it.
        self.objects = [t for t in self._outside if quotes[t] >= 4 and b"{" in self.texts[t]]

    def after(self, place: Place, token: int) -> Place | None:
        if self._plain[token] and not (place.escaped or place.mode is Mode.IN_NAME):
            return place
        return place.after(self.texts[token])

    def repeating(self, place: Place, row: Words) -> Iterator[int]:
        """Yield the tokens, some of them ruled out already, that complete a name again."""
        if place.mode is Mode.IN_NAME:
            yield from self._completing(place)
        inside = place.mode >= Mode.IN_VALUE
        if not self._sets[inside].meets(row):
            return
        for token in self._inside if inside else self._outside:
            if bitmask.holds(row, token) and place.after(self.texts[token]) is None:
                yield token

    def _completing(self, place: Place) -> Iterator[int]:
        assert place.frame is not None
        for name in place.frame.names or ():
            if name.startswith(place.name):
                yield from self._beginning_with(name[len(place.name) :] + b'"')

    def _beginning_with(self, text: bytes) -> Iterator[int]:
        index = bisect_left(self._sorted, text)
        while index < len(self._sorted) and self._sorted[index].startswith(text):
            yield self._order[index]
            index += 1


class NameWatch(StateWatch[Place]):
    def __init__(self, names: Names) -> None:
        super().__init__(Place())
        self._names = names

    def after(self, token: int) -> Place:
        place = self._names.after(self.state, token)
        if place is None:
            raise GrammarError(f"token {token} would name a property twice")
        return place

    def restrict(self, row: Words) -> None:
        repeating = list(self._names.repeating(self.state, row))
        if repeating:
            bitmask.TokenSet(repeating).ban(row)

    @property
    def may_end(self) -> bool:
        return True


def names_are_open(constraint: Constraint) -> bool:
    """Whether a constraint allows objects with properties that it does not list."""
    match constraint:
        case JsonSchema(schema=schema):
            return leaves_names_open(json.loads(schema))
        case JsonObject():
            return True
    return False


def leaves_names_open(schema: object) -> bool:
    """Whether an object may have properties that a schema, in the words that the rewriting uses,
    does not list."""
    if not isinstance(schema, dict):
        return schema is True
    if "enum" in schema or "const" in schema:
        return False
    lists = [inner for word in _LISTS for inner in schema.get(word, ())]
    maps = [inner for word in _MAPS for inner in schema.get(word, {}).values()]
    holds = [schema[word] for word in _HOLDERS if word in schema]
    return _is_open(schema) or any(map(leaves_names_open, [*lists, *maps, *holds]))


_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs")
_HOLDERS = ("additionalProperties", "items")
_SAY_NOTHING_OF_OBJECTS = {"anyOf", "oneOf", "allOf", "$ref", "$defs"}


def _is_open(schema: dict[str, object]) -> bool:
    """Whether this schema itself lets an object have properties that it does not list."""
    if schema.keys() & _SAY_NOTHING_OF_OBJECTS and schema.keys() <= _SAY_NOTHING_OF_OBJECTS:
        return False
    types = schema.get("type", "object")
    is_object = types == "object" or (isinstance(types, list) and "object" in types)
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    # Arrays, too, may have items of any kind.
    is_array = types == "array" or (isinstance(types, list) and "array" in types)
    open_items = (is_array or "type" not in schema) and schema.get("items") is None
    return (is_object and not closed) or open_items
