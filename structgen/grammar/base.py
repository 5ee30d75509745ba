"""The contract between the grammar manager and the libraries that know grammars.

A backend is built once per vocabulary and compiles constraints; compiling is slow, pure and may run
on any thread.  What it returns makes matchers, one per request, used on the loop thread alone.
Stop tokens are not the backend's business: the manager adds them to every mask, so that matcher,
mask and stop check can never disagree about what ends an answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from structgen.constraints import (
    FIELD,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
)
from structgen.grammar.ebnf.tree import Grammar


class Vocabulary(msgspec.Struct, frozen=True):
    """token_bytes[id] is the exact text of a token, b"" for one that has none (control tokens)."""

    token_bytes: list[bytes]

    @property
    def size(self) -> int:
        return len(self.token_bytes)


class Matcher(ABC):
    """Where one request is in its grammar."""

    @abstractmethod
    def accept(self, token: int) -> None:
        """Advance by one token that the mask allowed.

        Raises GrammarError: the grammar refuses it, or the library failed; the matcher is unusable,
        all others are as they were.
        """

    @property
    @abstractmethod
    def accepting(self) -> bool:
        """The text so far is complete; more may still be allowed."""

    @abstractmethod
    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens; masks and `accepting` are as they were."""

    def forced(self) -> bytes:
        """Return bytes that every continuation begins with; none if the text is complete as it is,
        or the library does not tell.  They may end inside a character.
        """
        return b""

    def allows(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens, in turn, may follow; the matcher stays where it is."""
        return self._after(tokens) is not None

    def is_completed_by(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens, in turn, complete the text; the matcher stays where it is."""
        after = self._after(tokens)
        return after is not None and after.accepting

    def _after(self, tokens: Sequence[int]) -> Matcher | None:
        """Return a matcher that has accepted these tokens; None: one of them is not allowed."""
        copy = self.fork()
        try:
            for token in tokens:
                copy.accept(token)
        except GrammarError:
            return None
        return copy

    @property
    def num_free(self) -> int:
        """How many tokens were accepted before the constraint began."""
        return 0

    @property
    def lead_in(self) -> list[int]:
        """Tokens that lead to where the constraint begins; none where it has begun."""
        return []

    @abstractmethod
    def fork(self) -> Matcher:
        """Return an independent matcher in the same place (takes longer for longer texts)."""


class CompiledConstraint(ABC):
    """A constraint ready to be matched; immutable, shared by all requests that have it."""

    @property
    @abstractmethod
    def size_bytes(self) -> int: ...

    @property
    def outline(self) -> Grammar | None:
        """A grammar that has all the texts, and more, if the constraint itself does not say."""
        return None

    @abstractmethod
    def new_matcher(self) -> Matcher: ...


class Native(msgspec.Struct, frozen=True, array_like=True):
    """A constraint in the notation of a library.

    characters, classes: how many it has, spelt out, where that matters.
    """

    text: str
    characters: int = 0
    classes: int = 0


class GrammarBackend(ABC):
    """One grammar library over one vocabulary."""

    name: str

    @abstractmethod
    def supports(self, constraint: Constraint) -> bool:
        """Whether this backend has the constraint's kind at all."""

    def compile(self, constraint: Constraint) -> CompiledConstraint:
        """Compile; slow, thread-safe.

        Raises ConstraintError: the constraint is malformed, or the backend cannot enforce it.
        """
        return self.compile_native(constraint, self.translate(constraint))

    @abstractmethod
    def translate(self, constraint: Constraint) -> Native:
        """Write a constraint as the library wants it: all of compiling that is done in Python.

        Raises ConstraintError: the constraint is malformed, or the backend cannot enforce it.
        """

    @abstractmethod
    def compile_native(self, constraint: Constraint, native: Native) -> CompiledConstraint:
        """Compile what `translate` has made of a constraint, without the interpreter's lock.

        Raises ConstraintError: the library refuses it.
        """

    @abstractmethod
    def fill(
        self, matchers: Sequence[Matcher], words: npt.NDArray[np.int32], rows: Sequence[int]
    ) -> None:
        """Write the mask of matchers[i], all of this backend, into words[rows[i]], in one call.

        words: int32 [M, ceil(V / 32)], contiguous; bit set = allowed.  Bits of stop tokens and bits
        at or beyond V may have any value.  Leaves the matchers as they are.
        Raises GrammarError: a matcher failed; the rows may have any value.
        """


class GrammarError(Exception):
    """A matcher refused a token that its mask allowed, or failed: a bug, for one request."""


class TooSlow(GrammarError):
    """What may come next takes too long to find; the request is to end, and may be told so."""


def field_of(constraint: Constraint) -> str:
    """Return the path of the request field that holds the text of a constraint."""
    match constraint:
        case JsonSchema():
            return f"{FIELD}.json_schema"
        case JsonObject():
            return f"{FIELD}.json_object"
        case Regex():
            return f"{FIELD}.regex"
        case Ebnf() | Lark():
            return f"{FIELD}.grammar.text"
        case Choice():
            return f"{FIELD}.choice"
        case StructuralTag():
            return f"{FIELD}.structural_tag"
