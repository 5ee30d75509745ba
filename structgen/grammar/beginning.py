"""What a compiled constraint begins with, looked at before it is taken.

Libraries compile grammars of nothing without complaint, and some give up over a grammar only when
they are asked for a mask.  The text that every answer begins with is followed to its end, since a
request is there before anything is sampled: what a library has to work out for that is worked out
here, on a compile thread, and not on the loop thread while all requests wait.
"""

from __future__ import annotations

from structgen.constraints import Constraint
from structgen.errors import BeyondBackend, ConstraintError
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarBackend, GrammarError, Matcher, Vocabulary, field_of

MAX_TOKENS = 64  # that are followed; longer ones are no dearer than they are long


def require_a_beginning(
    backend: GrammarBackend, matcher: Matcher, constraint: Constraint, vocabulary: Vocabulary
) -> None:
    """Look at the first masks.

    matcher: at the start of the text; is brought back there.
    Raises ConstraintError: neither a token nor the end is allowed somewhere, or there is no first
    mask.  BeyondBackend: there is none later.
    """
    try:
        row = _mask(backend, matcher, vocabulary)
    except GrammarError as error:
        raise ConstraintError(str(error), field=field_of(constraint)) from None
    _require_some(row, matcher, constraint)
    try:
        _follow(backend, matcher, row, constraint, vocabulary)
    except GrammarError as error:
        raise BeyondBackend(str(error), field=field_of(constraint)) from None


def _follow(
    backend: GrammarBackend,
    matcher: Matcher,
    row: bitmask.Words,
    constraint: Constraint,
    vocabulary: Vocabulary,
) -> None:
    """Raises GrammarError: there is no mask somewhere."""
    left = matcher.forced()
    count = 0
    while count < MAX_TOKENS and (token := _longest(row, left, vocabulary)) is not None:
        matcher.accept(token)
        left = left[len(vocabulary.token_bytes[token]) :]
        count += 1
        row = _mask(backend, matcher, vocabulary)
        _require_some(row, matcher, constraint)
    if count:
        matcher.rollback(count)


def _mask(backend: GrammarBackend, matcher: Matcher, vocabulary: Vocabulary) -> bitmask.Words:
    words = bitmask.allocate(1, vocabulary.size)
    backend.fill([matcher], words, [0])
    row: bitmask.Words = words[0] & bitmask.full(vocabulary.size)
    return row


def _longest(row: bitmask.Words, text: bytes, vocabulary: Vocabulary) -> int | None:
    """Return the allowed token that spells most of a text from its start on."""
    texts = vocabulary.token_bytes
    fitting = [
        token
        for token in (bitmask.unpack(row, vocabulary.size) if text else ())
        if texts[token] and text.startswith(texts[token])
    ]
    return max(fitting, key=lambda token: len(texts[token]), default=None)


def _require_some(row: bitmask.Words, matcher: Matcher, constraint: Constraint) -> None:
    if not row.any() and not matcher.accepting:
        raise ConstraintError(
            "the constraint matches no text that this vocabulary can spell",
            field=field_of(constraint),
        )
