"""How fast masks must come.

A grammar that can divide a text in many ways ("([a-z]{1,10} " "?){1,40}" cuts a word anywhere) may
make a library follow them all, xgrammar for seconds a mask, on the loop thread, while every other
request waits.  So it is tried before it is taken; and a request whose masks turn out to be slow is
ended.
"""

from __future__ import annotations

import random
import time

from structgen.errors import BeyondBackend
from structgen.grammar import bitmask
from structgen.grammar.base import (
    CompiledConstraint,
    GrammarBackend,
    GrammarError,
    Matcher,
    TooSlow,
    Vocabulary,
)

# Seconds on the processor.  Masks of grammars that are not ambiguous were seen to take up to 0.05,
# the first one in a place of a large schema, once, up to 0.5.
MAX_MASK_S = 1.0
USUAL_MASK_S = 0.05
MAX_OVERDRAFT_S = 1.0  # what all masks of a text may take beyond the usual

TRIED_TEXTS = 2
TRIED_TOKENS = 12
AMONG = 8  # tokens, of which the longest is taken: it can be divided in most ways

_AMBIGUOUS = "the constraint is too ambiguous"


class Pace:
    """What the masks of one text have taken."""

    __slots__ = ("_overdraft", "_slowest")

    def __init__(self) -> None:
        self._overdraft = 0.0
        self._slowest = 0.0

    def charge(self, seconds: float) -> None:
        self._slowest = max(self._slowest, seconds)
        self._overdraft = max(0.0, self._overdraft + seconds - USUAL_MASK_S)

    def require(self) -> None:
        """Raises TooSlow: they have taken too long."""
        if self._slowest > MAX_MASK_S or self._overdraft > MAX_OVERDRAFT_S:
            raise TooSlow(
                f"{_AMBIGUOUS}: what may come next took up to {self._slowest:.2f} s to find, "
                f"the limit is {MAX_MASK_S} s"
            )

    def copy(self) -> Pace:
        pace = Pace()
        pace._overdraft, pace._slowest = self._overdraft, self._slowest
        return pace


def require_pace(
    backend: GrammarBackend, compiled: CompiledConstraint, vocabulary: Vocabulary, field: str
) -> None:
    """Try some texts.  Raises BeyondBackend: masks take too long, or more than there is."""
    rng = random.Random(0)
    try:
        for _ in range(TRIED_TEXTS):
            _try_text(backend, compiled.new_matcher(), vocabulary, rng)
    except GrammarError as error:  # a limit of a library, or ours
        reason = str(error) if isinstance(error, TooSlow) else f"{_AMBIGUOUS}: {error}"
        raise BeyondBackend(reason, field=field) from None


def _try_text(
    backend: GrammarBackend, matcher: Matcher, vocabulary: Vocabulary, rng: random.Random
) -> None:
    """Raises GrammarError."""
    words = bitmask.allocate(1, vocabulary.size)
    pace = Pace()
    for _ in range(TRIED_TOKENS):
        began = time.thread_time()
        backend.fill([matcher], words, [0])
        matcher.forced()
        pace.charge(time.thread_time() - began)
        pace.require()
        token = _longest_of_some(words[0], vocabulary, rng)
        if token is None:
            return
        matcher.accept(token)


def _longest_of_some(row: bitmask.Words, vocabulary: Vocabulary, rng: random.Random) -> int | None:
    texts = vocabulary.token_bytes
    ids = [token for token in bitmask.unpack(row, vocabulary.size) if texts[token]]
    among = rng.sample(ids, min(AMONG, len(ids)))
    return max(among, key=lambda token: len(texts[token]), default=None)
