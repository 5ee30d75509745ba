"""The shortest way that is found from the middle of a text to its end.

A search over a copy of a matcher: greedy first, along the tokens that tend to lead out (brackets
that close, what is forced, separators, small values, at last the longest words), then with more
and more departures from that order in ways that grow, as in limited discrepancy search (Harvey and
Ginsberg 1995) with iterative deepening.  Masks say what is legal, so that a way that is found is
right whatever the order; only its length, and whether one is found, depend on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt

from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError, Vocabulary
from structgen.grammar.endings import endings
from structgen.grammar.walk import MAX_MASKS, Walk

Ids = npt.NDArray[np.int64]
Move = tuple[int, ...]

MAX_DEPARTURES = 3
FIRST_DEPTH = 8
PER_CLASS = 2  # candidates that each class of tokens contributes
FEW = 64  # tokens, so that each is looked at
CHUNK = 1024
MANY = 256  # tokens of a class that are allowed: then its first are soon found
RECENT = 8  # moves, of which the same one is not wanted half of the time

CLOSING = re.compile(rb"[\]})]+")
OPENING = re.compile(rb"[\[{(]+")
OUT_OF_STRING = re.compile(rb'"[\]})]*')
SEPARATOR = re.compile(rb'[,:;] ?"?|\n')
VALUES = (b"0", b'""', b"[]", b"{}", b"null", b"true", b"false", b'"', b"")
DIGIT = re.compile(rb"[0-9]")
WORD = re.compile(rb" ?[A-Za-z0-9]+")
MARK = re.compile(rb"[ !-'*-/:-@\\\]-`|}~].*", re.DOTALL)
ESCAPED = re.compile(rb"\\.", re.DOTALL)


class Quotes(msgspec.Struct, frozen=True):
    """Whether a place in JSON text is inside a string, and behind a backslash there."""

    inside: bool = False
    escaping: bool = False

    def after(self, text: bytes) -> Quotes:
        plain = ESCAPED.sub(b"", b"\\" + text if self.escaping else text)
        inside = self.inside ^ (plain.count(b'"') % 2 == 1)
        return Quotes(inside, plain.endswith(b"\\"))


class Closer:
    """Finds ways out, over one vocabulary.  Immutable, so any thread may use it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.texts = vocabulary.token_bytes
        self._ids = {text: token for token, text in enumerate(self.texts) if text}
        self._lengths = [len(text) for text in self.texts]
        self._longest_text = max(self._lengths, default=0)
        self._inside, self._outside = _orders(self.texts)

    def way_out(self, walk: Walk, budget: int) -> list[int] | None:
        """Return at most `budget` tokens that complete the text, or None: none were found.

        Empty if it is complete as it is.  The walk is where it was, unless it was found broken.
        """
        try:
            if lead_in := walk.lead_in:
                return self._way_in_and_out(walk, lead_in, budget)
            return [] if walk.accepting else _Search(self, walk).run(budget)
        except GrammarError:
            return None

    def _way_in_and_out(self, walk: Walk, lead_in: list[int], budget: int) -> list[int] | None:
        """Complete a text that is still in front of a gate.

        Raises GrammarError: the walk was found broken.
        """
        if len(lead_in) > budget or not walk.is_open(lead_in):
            return None
        walk.accept(*lead_in)
        rest = self.way_out(walk, budget - len(lead_in))
        walk.back(len(lead_in))
        return None if rest is None else lead_in + rest

    def rest(self, way: Sequence[int], token: int) -> list[int]:
        """Return tokens for what is left of a way's text behind that of a token; none if it goes
        another way.  Whether they are legal is not looked at.
        """
        text = self.texts[token]
        for index, step in enumerate(way):
            own = self.texts[step]
            if len(own) > len(text):
                spelt = self.spelt(own[len(text) :]) if own.startswith(text) else None
                return [] if spelt is None else [*spelt, *way[index + 1 :]]
            if not text.startswith(own):
                return []
            text = text[len(own) :]
            if not text:
                return list(way[index + 1 :])
        return []

    def spelt(self, text: bytes) -> list[int] | None:
        """Return the longest tokens that spell a text, wherever it stands."""
        spelt: list[int] = []
        while text:
            ends = range(min(self._longest_text, len(text)), 0, -1)
            token = next((self._ids[text[:end]] for end in ends if text[:end] in self._ids), None)
            if token is None:
                return None
            spelt.append(token)
            text = text[self._lengths[token] :]
        return spelt

    def at_least(self, walk: Walk) -> int:
        """Return a number of tokens that every way out has, as far as all can be followed."""
        seen: set[bytes] = set()
        level: dict[bytes, tuple[int, ...]] = {b"": ()}
        length = 0
        try:
            while level:
                ahead: dict[bytes, tuple[int, ...]] = {}
                for text, way in level.items():
                    if not self._look_ahead(walk, text, way, ahead):
                        return length
                seen |= level.keys()
                level = {text: way for text, way in ahead.items() if text not in seen}
                length += 1
        except GrammarError:
            pass
        return length

    def _look_ahead(
        self, walk: Walk, text: bytes, way: Sequence[int], ahead: dict[bytes, tuple[int, ...]]
    ) -> bool:
        """Add the texts that one more token leads to; False: this is an end, or they are many."""
        walk.accept(*way)
        followed = False
        if not walk.accepting and not walk.exhausted:
            words = walk.allowed()
            if bitmask.count(words[None])[0] <= FEW:
                followed = True
                for token in bitmask.unpack(words, len(self.texts)):
                    ahead.setdefault(text + self.texts[token], (*way, token))
        walk.back(len(way))
        return followed

    def forced(self, words: bitmask.Words) -> int | None:
        """Return the token that begins with every other one that is allowed.

        None also for a sign before a number, which nothing asks for.
        """
        count = int(bitmask.count(words[None])[0])
        if not 0 < count <= FEW:
            return None
        allowed = bitmask.unpack(words, len(self.texts))
        longest = max(allowed, key=self._lengths.__getitem__)
        text = self.texts[longest]
        begins_all = all(text.startswith(self.texts[token]) for token in allowed)
        return longest if begins_all and (count == 1 or not text.endswith(b"-")) else None

    def leading_out(self, words: bitmask.Words, *, inside: bool) -> list[int]:
        """Return allowed tokens that close: a string with what is around it, or brackets."""
        return (self._inside if inside else self._outside)[0].first(words)

    def others(self, words: bitmask.Words, *, inside: bool) -> Iterator[int]:
        """Yield some of the other allowed tokens, those first that tend to lead out."""
        for order in (self._inside if inside else self._outside)[1:]:
            yield from order.first(words)

    def spell(self, text: bytes, words: bitmask.Words, walk: Walk) -> list[int] | None:
        """Return the tokens, the longest that are allowed, that spell a text from here.

        words: the mask of the place where the walk is.  None also if the walk is exhausted.
        """
        spelt: list[int] = []
        start = 0
        while start < len(text) and not walk.exhausted:
            words = walk.allowed() if spelt else words
            ends = range(min(start + self._longest_text, len(text)), start, -1)
            tokens = (self._ids.get(text[start:end]) for end in ends)
            token = next((t for t in tokens if t is not None and bitmask.holds(words, t)), None)
            if token is None:
                break
            walk.accept(token)
            spelt.append(token)
            start += self._lengths[token]
        walk.back(len(spelt))
        return spelt if start == len(text) else None


class _Search:
    def __init__(self, closer: Closer, walk: Walk) -> None:
        self._closer = closer
        self._walk = walk
        self._made: list[Move] = []

    def run(self, budget: int) -> list[int] | None:
        text = b"".join([self._closer.texts[token] for token in self._walk.output])
        quotes = Quotes().after(text) if self._walk.exit.is_json else Quotes()
        way = self._descend(min(budget, MAX_MASKS // 2), 0, quotes)
        for depth in _doubling(FIRST_DEPTH, budget):
            for departures in range(1, MAX_DEPARTURES + 1):
                if way is None and not self._walk.exhausted:
                    way = self._descend(depth, departures, quotes)
        return way

    def _descend(self, budget: int, departures: int, quotes: Quotes) -> list[int] | None:
        """Return a way out of at most so many tokens and departures from the first move."""
        if self._walk.accepting:
            return []
        if budget <= 0 or self._walk.exhausted:
            return None
        moves = islice(self._fresh_first(self._moves(quotes)), departures + 1)
        for departed, move in enumerate(moves):
            if len(move) > budget:
                continue
            self._walk.accept(*move)
            self._made.append(move)
            rest = self._descend(
                budget - len(move), departures - departed, self._after(quotes, move)
            )
            self._made.pop()
            self._walk.back(len(move))
            if rest is not None:
                return [*move, *rest]
        return None

    def _fresh_first(self, moves: Iterable[Move]) -> Iterator[Move]:
        """Yield moves, each once, last those that were made over and over: they lead round."""
        seen: set[Move] = set()
        stale = []
        recent = self._made[-RECENT:]
        for move in moves:
            if move in seen:
                continue
            seen.add(move)
            if recent.count(move) >= RECENT // 2:
                stale.append(move)
            else:
                yield move
        yield from stale

    def _moves(self, quotes: Quotes) -> Iterator[Move]:
        """Yield what to try here: single tokens, and the rest of a string."""
        words = self._walk.allowed().copy()
        forced = self._closer.forced(words)
        if forced is not None:
            yield from self._forced_run()
            yield (forced,)
        out = self._closer.leading_out(words, inside=quotes.inside)
        if not self._walk.exit.is_json or (quotes.inside and not out):
            yield from self._endings(words)
        yield from ((token,) for token in out)
        yield from ((token,) for token in self._closer.others(words, inside=quotes.inside))

    def _forced_run(self) -> Iterator[Move]:
        """Yield the text that comes next whatever is answered, as one move: no mask for each token.

        All but its last token, of which a longer one may take the place.
        """
        run = (self._closer.spelt(self._walk.forced()) or [])[:-1]
        if run and self._walk.is_led_by(run):
            yield tuple(run)

    def _endings(self, words: bitmask.Words) -> Iterator[Move]:
        """Yield what completes the string that the text is in, by the patterns there are."""
        text = self._string()
        if text is None:
            return
        for ending in endings(self._walk.exit.patterns, text, lambda: self._walk.exhausted):
            spelling = (
                json.dumps(ending, ensure_ascii=False)[1:-1] if self._walk.exit.is_json else ending
            )
            if move := self._closer.spell(spelling.encode(), words, self._walk):
                yield tuple(move)

    def _string(self) -> str | None:
        """Return the string, or text, that is being written; None inside a character or escape."""
        if not self._walk.exit.patterns:
            return None
        text = b"".join([self._closer.texts[token] for token in self._walk.output])
        try:
            if not self._walk.exit.is_json:
                return text.decode()
            written = ESCAPED.sub(lambda escape: b"\0" * len(escape[0]), text)
            value: str = json.loads(text[written.rindex(b'"') :] + b'"')
        except ValueError:  # of a character or an escape
            return None
        return value

    def _after(self, quotes: Quotes, move: Sequence[int]) -> Quotes:
        if not self._walk.exit.is_json:
            return quotes
        return quotes.after(b"".join([self._closer.texts[token] for token in move]))


def _doubling(first: int, last: int) -> Iterator[int]:
    """Yield first, twice that, ... up to last."""
    value = first
    while value < last:
        yield value
        value *= 2
    yield last


class _Order:
    """Tokens of one class, in the order to try them in."""

    __slots__ = ("_ids", "_mask", "_rank")

    def __init__(self, ids: Sequence[int], vocab_size: int) -> None:
        self._ids = np.array(ids, dtype=np.int64)
        self._mask = bitmask.pack(ids, vocab_size)
        self._rank = {token: rank for rank, token in enumerate(ids)}

    def first(self, words: bitmask.Words) -> list[int]:
        """Return the first few of these tokens that a mask allows."""
        allowed = words & self._mask
        count = bitmask.count(allowed[None])[0]
        if count > MANY:
            return self._first_of_many(words)
        return sorted(bitmask.unpack(allowed, 32 * len(words)), key=self._rank.__getitem__)[
            :PER_CLASS
        ]

    def _first_of_many(self, words: bitmask.Words) -> list[int]:
        found: list[int] = []
        for start in range(0, len(self._ids), CHUNK):
            chunk = self._ids[start : start + CHUNK]
            allowed = chunk[(words[chunk >> 5] >> (chunk & 31)) & 1 != 0]
            found += allowed[: PER_CLASS - len(found)].tolist()
            if len(found) == PER_CLASS:
                break
        return found


def _orders(texts: Sequence[bytes]) -> tuple[list[_Order], list[_Order]]:
    """Return classes of tokens in the order to try them in, inside strings and outside."""

    def matching(pattern: re.Pattern[bytes]) -> list[int]:
        return [token for token, text in enumerate(texts) if pattern.fullmatch(text)]

    def order(ids: Iterable[int]) -> _Order:
        return _Order([*ids], len(texts))

    def longest(ids: Iterable[int]) -> list[int]:
        return sorted(ids, key=lengths.__getitem__, reverse=True)

    def shortest(ids: Iterable[int]) -> list[int]:
        return sorted(ids, key=lengths.__getitem__)

    lengths = [len(text) for text in texts]
    closing, separators = order(longest(matching(CLOSING))), order(longest(matching(SEPARATOR)))
    out_of_string = order(longest(matching(OUT_OF_STRING)))
    values, digits = order(_values(texts)), order(matching(DIGIT))
    marks = order(shortest(matching(MARK)))
    opening = order(shortest(matching(OPENING)))  # last: there is more to close then
    # Words rather than runs of blanks or dashes: what is only there to fill should look it.
    words = matching(WORD)
    others = {token for token, text in enumerate(texts) if text}.difference(words)
    fillers = order(longest(words) + longest(sorted(others)))
    return (
        [out_of_string, marks, digits, fillers],
        [closing, separators, values, digits, marks, fillers, opening],
    )


def _values(texts: Sequence[bytes]) -> list[int]:
    """Return the tokens that spell a small value, in the order of VALUES."""
    # A blank may have to stand before a value, or be part of its token.
    spellings = [spelling for value in VALUES for spelling in (value, b" " + value) if spelling]
    spelt: dict[bytes, list[int]] = {spelling: [] for spelling in spellings}
    for token, text in enumerate(texts):
        if text in spelt:
            spelt[text].append(token)
    return [token for tokens in spelt.values() for token in tokens]
