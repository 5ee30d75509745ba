"""Text that a constraint leaves no choice about, as the tokens that the tokenizer would make of it.

Only the tokens are chosen here, the text is not: it is what every continuation has.  A token at the
end of the run is left to the model if a longer one could still take its place.  Loop thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from structgen.errors import StructgenError
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError
from structgen.grammar.pieces import Pieces
from structgen.grammar.walk import Walk

Encode = Callable[[str], list[int]]

# Of the text before a run: a tokenizer looks at what stands around, though not far.
CONTEXT_TOKENS = 4
MAX_CACHED = 4096  # runs, and texts that tokens begin with


class Jumper:
    """encode: the ids of a text, with nothing added."""

    def __init__(self, pieces: Pieces, encode: Encode) -> None:
        self._pieces = pieces
        self._texts = pieces.texts
        self._encode = encode
        self._longer: dict[bytes, bitmask.TokenSet] = {}
        self._spelt: OrderedDict[tuple[bytes, bytes], list[int]] = OrderedDict()

    def run(self, walk: Walk) -> list[int]:
        """Return the tokens that come next whatever is sampled; often none.

        walk: of a request; is moved along.
        """
        try:
            forced = _whole_characters(walk.forced())
            return self._legal(self._spell(walk, forced), walk) if forced else []
        except GrammarError:  # the request's own matcher will say so
            return []

    def _legal(self, tokens: Sequence[int], walk: Walk) -> list[int]:
        """Return how far the tokens are allowed, and settled."""
        kept: list[int] = []
        for index, token in enumerate(tokens):
            if not walk.is_open([token]) or not self._is_settled(tokens[index:], walk):
                break
            try:
                walk.accept(token)
            except GrammarError:
                break
            kept.append(token)
        return kept

    def _is_settled(self, rest: Sequence[int], walk: Walk) -> bool:
        """Whether no allowed token spells all that is left of the run, and more."""
        longer = self._longer_than(self._text(rest))
        return longer.is_empty or not longer.meets(walk.allowed())

    def _longer_than(self, text: bytes) -> bitmask.TokenSet:
        """Return the tokens that begin with a text and are longer."""
        longer = self._longer.get(text)
        if longer is None:
            if len(self._longer) >= MAX_CACHED:
                self._longer.clear()
            longer = self._longer[text] = bitmask.TokenSet(self._pieces.beginning_with(text))
        return longer

    def _spell(self, walk: Walk, forced: bytes) -> list[int]:
        """Return the tokens of a text that follows what the walk has written."""
        before = self._text(walk.output[-CONTEXT_TOKENS:])
        key = before, forced
        spelt = self._spelt.get(key)
        if spelt is None:
            spelt = self._spelt[key] = self._spell_anew(before, forced)
            if len(self._spelt) > MAX_CACHED:
                self._spelt.popitem(last=False)
        self._spelt.move_to_end(key)
        return spelt

    def _spell_anew(self, before: bytes, forced: bytes) -> list[int]:
        context = before.decode(errors="ignore")  # may begin inside a character
        try:
            behind = self._last(self._encode(context + forced.decode()), len(forced))
            if behind is None:  # what was sampled ends where the tokenizer would not
                behind = self._last(self._encode(forced.decode()), len(forced))
        except StructgenError:  # it has no plain tokens for some of the text
            return []
        return behind if behind is not None and self._text(behind) == forced else []

    def _last(self, tokens: Sequence[int], length: int) -> list[int] | None:
        """Return the tokens of the last `length` bytes; None: one lies across their border."""
        for index in range(len(tokens), -1, -1):
            if length == 0:
                return list(tokens[index:])
            length -= len(self._texts[tokens[index - 1]])
            if length < 0:
                break
        return None

    def _text(self, tokens: Sequence[int]) -> bytes:
        return b"".join([self._texts[token] for token in tokens])


def _whole_characters(text: bytes) -> bytes:
    """Return a text without an incomplete character at its end."""
    return text.decode(errors="ignore").encode()
