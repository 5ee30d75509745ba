"""A grammar's text cut into words, whatever its notation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from structgen.grammar.ebnf.fault import malformed

K = TypeVar("K", bound=Enum)


class Word(msgspec.Struct, Generic[K], frozen=True):
    """at: its first character in the grammar's text; spelling: all of them."""

    kind: K
    spelling: str
    at: int

    @property
    def shown(self) -> str:
        return repr(self.spelling[:40]) if self.spelling else "the end"


def words(
    text: str,
    kinds: type[K],
    *,
    space: re.Pattern[str],
    word: re.Pattern[str],
    what_is_wrong: Callable[[str], str],
) -> Iterator[Word[K]]:
    """Yield the words, and one of kind END.

    word: its groups are named as the kinds are.  what_is_wrong: says it of the first character of
    what is no word.  Raises ConstraintError: there is such a thing.
    """
    at = 0
    while True:
        blank = space.match(text, at)
        assert blank is not None
        at = blank.end()
        if at == len(text):
            yield Word(kinds["END"], "", at)
            return
        found = word.match(text, at)
        if found is None or found.lastgroup is None:
            raise malformed(text, at, what_is_wrong(text[at]))
        yield Word(kinds[found.lastgroup], found.group(), at)
        at = found.end()
