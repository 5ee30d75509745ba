"""Judging a text by the masks that generation uses: could it have been generated, and how far?

A mask allows whatever token the constraint lets stand, and what may follow depends on the bytes of
the text, not on the tokens that spell them; the contract suite holds the libraries to both.  So the
longest allowed token is as good a choice as any, and a byte whose own token is not allowed cannot
stand there.  Only where the vocabulary lacks a token for a byte of the text may another spelling
get further: then all are tried, each place once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from structgen.errors import InternalError, LimitExceeded
from structgen.grammar import bitmask
from structgen.grammar.base import CompiledConstraint, GrammarBackend, GrammarError, Matcher
from structgen.grammar.continuations import continuations
from structgen.grammar.spelling import Reader, Spelling, is_allowed
from structgen.messages import TextVerdict

FIELD = "input.text"
LIMIT_S = 1.5  # what a text of the largest size takes the slower libraries, on one core


def judge(
    grammar: CompiledConstraint,
    backend: GrammarBackend,
    spelling: Spelling,
    text: bytes,
    *,
    limit_s: float = LIMIT_S,
) -> TextVerdict:
    """Judge a text by a constraint that `backend` has compiled.

    Raises LimitExceeded: it takes too long.  InternalError: the library failed.
    """
    deadline = time.monotonic() + limit_s
    try:
        walk = _Walk(grammar, Reader(backend, spelling), spelling, text)
        for position in walk.run():
            if time.monotonic() > deadline:
                raise LimitExceeded(
                    f"judging the text took more than {limit_s:g} s, for {position} of its "
                    f"{len(text)} bytes",
                    field=FIELD,
                )
        return walk.verdict()
    except GrammarError as error:
        raise InternalError(f"no mask for the constraint: {error}") from None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a spelling got to: `position`, by a token from the place before.

    steps: those not tried yet, where a token ends and which it is.  reach: the end of what fits
    here, if only with the beginning of a token.
    """

    before: _Place | None
    token: int
    position: int
    steps: Iterator[tuple[int, int]]
    reach: int


class _Walk:
    """A depth-first search for a spelling; `_furthest` is the place that reaches furthest."""

    def __init__(
        self, grammar: CompiledConstraint, reader: Reader, spelling: Spelling, text: bytes
    ) -> None:
        self._grammar = grammar
        self._reader = reader
        self._spelling = spelling
        self._text = text
        self._bytes_have_tokens = all(spelling.ids(bytes([byte])) for byte in set(text))
        self._visited = {0}
        self._matcher = grammar.new_matcher()
        self._furthest = self._arrive(None, -1, 0)

    def run(self) -> Iterator[int]:
        """Walk as far as the masks let any spelling go; yields positions on the way."""
        place: _Place | None = self._furthest
        backed = False
        while place is not None and place.position < len(self._text):
            yield place.position
            step = next((step for step in place.steps if step[0] not in self._visited), None)
            if step is None:
                place = None if self._bytes_have_tokens else place.before
                backed = True
                continue
            if backed:
                self._matcher, backed = self._matcher_at(place), False
            end, token = step
            self._matcher.accept(token)
            self._visited.add(end)
            place = self._arrive(place, token, end)
            if place.reach >= self._furthest.reach:
                self._furthest = place

    def verdict(self) -> TextVerdict:
        offset = self._furthest.reach
        # What may stand instead is whole characters: begin where the one that breaks does.
        whole = self._text[:offset].decode(errors="ignore").encode()
        matcher, lead = self._stand_at(len(whole))
        return TextVerdict(
            error_offset=offset if offset < len(self._text) else None,
            may_end=not lead and matcher.accepting,
            expected=continuations(matcher, self._reader, self._spelling, lead),
        )

    def _arrive(self, before: _Place | None, token: int, position: int) -> _Place:
        if position == len(self._text):
            return _Place(before, token, position, iter(()), position)
        row = self._mask()
        steps = (
            (end, id)
            for end, ids in self._spelling.at(self._text, position)
            for id in ids
            if is_allowed(row, id)
        )
        if self._bytes_have_tokens:  # then the first is as good as any
            return _Place(before, token, position, islice(steps, 1), position)
        # All of them now, as the row will be overwritten.
        return _Place(before, token, position, iter([*steps]), self._reach(row, position))

    def _mask(self) -> bitmask.Words:
        try:
            return self._reader.mask(self._matcher)
        except GrammarError:
            if self._bytes_have_tokens:
                raise
            # To llguidance it is an error that no token can go on from here; another spelling may.
            return bitmask.pack((), self._spelling.vocab_size)

    def _reach(self, row: bitmask.Words, position: int) -> int:
        """Return the end of what an allowed token begins with at a position."""
        allowed = self._spelling.allowed(row)
        reach = position
        while reach < len(self._text) and self._spelling.has_prefix(
            allowed, self._text[position : reach + 1]
        ):
            reach += 1
        return reach

    def _matcher_at(self, place: _Place) -> Matcher:
        tokens = []
        while place.before is not None:
            tokens.append(place.token)
            place = place.before
        matcher = self._grammar.new_matcher()
        for token in reversed(tokens):
            matcher.accept(token)
        return matcher

    def _stand_at(self, offset: int) -> tuple[Matcher, bytes]:
        """Return a matcher at an offset up to which the text fits.

        Where no token ends there, it is before, and the rest is returned.
        """
        place = self._furthest
        while place.position > offset:
            assert place.before is not None
            place = place.before
        matcher = self._matcher_at(place)
        for position in range(place.position, offset):
            row = self._reader.mask(matcher)
            ids = self._spelling.ids(self._text[position : position + 1])
            token = next((id for id in ids if is_allowed(row, id)), None)
            if token is None:
                return matcher, self._text[position:offset]
            matcher.accept(token)
        return matcher, b""
