"""What a constraint lets stand at a place, in the few texts that tell a reader most.

A mask has thousands of tokens inside a string and half a character elsewhere.  So each way to go on
is followed, a byte at a time, for as long as there is no other: `, "age": ` instead of a comma,
`true` instead of a `t`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from structgen.grammar.base import GrammarError, Matcher
from structgen.grammar.spelling import Reader, Spelling, is_allowed

MAX_TEXTS = 8
MAX_WAYS = 16  # followed, to choose from
MAX_BYTES = 32  # after which a way is followed to the end of a character only
MAX_CHARACTER_BYTES = 4


def continuations(
    matcher: Matcher, reader: Reader, spelling: Spelling, lead: bytes = b""
) -> list[str]:
    """Return what may stand where a matcher is, the most telling first; [] if nothing may.

    lead: what stands there already, the beginning of a token.  Leaves the matcher as it is.
    """
    found: dict[str, None] = {}
    try:
        for text in islice(_Follower(reader, spelling).texts(matcher, lead), MAX_WAYS):
            found[text] = None
    except GrammarError:
        pass  # it fails on what might follow; that takes nothing from the text that is there
    # What is long is what must come next; short is what one of many may begin with.
    return sorted(found, key=len, reverse=True)[:MAX_TEXTS]


class _Follower:
    def __init__(self, reader: Reader, spelling: Spelling) -> None:
        self._reader = reader
        self._spelling = spelling

    def texts(self, matcher: Matcher, lead: bytes, before: bytes = b"") -> Iterator[str]:
        """Yield a text for each way to go on.  before: what came since the place."""
        for text, token in sorted(self._ways(matcher, lead), key=lambda way: _rank(way[0][-1])):
            yield from self._follow(matcher.fork(), text, token, before + text[-1:])

    def _follow(
        self, matcher: Matcher, lead: bytes, token: int | None, text: bytes
    ) -> Iterator[str]:
        """Go on where `text` leads, with a matcher of its own.  token: what `lead` is, if one."""
        while True:
            if token is not None:
                matcher.accept(token)
                lead = b""
            whole = _is_whole(text)
            if len(text) >= (MAX_BYTES if whole else MAX_BYTES + MAX_CHARACTER_BYTES):
                break
            if whole and not lead and matcher.accepting:
                break
            ways = list(islice(self._ways(matcher, lead), 2))
            if len(ways) != 1:
                break
            lead, token = ways[0]
            text += lead[-1:]
        if whole:
            yield text.decode()
        elif len(text) < MAX_BYTES + MAX_CHARACTER_BYTES:
            yield from self.texts(matcher, lead, text)

    def _ways(self, matcher: Matcher, lead: bytes) -> Iterator[tuple[bytes, int | None]]:
        """Yield what may stand here, a byte longer than `lead`, and a token that it is, if one."""
        row = self._reader.mask(matcher).copy()
        for text in self._spelling.nexts(self._spelling.allowed(row), lead):
            ids = self._spelling.ids(text)
            yield text, next((id for id in ids if is_allowed(row, id)), None)


def _is_whole(text: bytes) -> bool:
    """Whether a text does not end inside a character."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rank(byte: int) -> int:
    """Order bytes by how much they tell: what makes a structure, then what fills it."""
    if byte >= 0x80:
        return 3
    if chr(byte).isalnum():
        return 1
    return 0 if chr(byte).isprintable() and byte != 0x20 else 2
