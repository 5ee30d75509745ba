"""Answers that are free until a marker: a gate stands before their constraint.

    free text ... marker | what the constraint describes
                  closed | open

Before the gate every token is allowed but one with more behind the end of the marker, so that the
constraint begins where a token does.  Stop ids are the manager's business, and the text is not
complete.  Loop thread only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from structgen.errors import InvalidRequest
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarBackend, GrammarError, Matcher
from structgen.grammar.pieces import Pieces
from structgen.marker import Marker
from structgen.params import MARKER_FIELD

MAX_GATES = 32  # that are kept


class Gate:
    """A marker over a vocabulary; immutable, but for what it remembers."""

    def __init__(self, marker: Marker, pieces: Pieces) -> None:
        """Raises InvalidRequest: no tokens spell the marker."""
        self.marker = marker
        self._pieces = pieces
        self._masks: dict[int, bitmask.Words] = {}
        self.lead_in(0)
        self._free = pieces.full.copy()
        if marker.token is None:
            bitmask.TokenSet(pieces.holding(marker.text)).ban(self._free)

    def mask(self, state: int) -> bitmask.Words:
        """Return int32 [W], the tokens that may follow in a state of the marker."""
        if state == 0:
            return self._free
        mask = self._masks.get(state)
        if mask is None:
            mask = self._masks[state] = self._free.copy()
            bitmask.TokenSet(self._overhanging(state)).ban(mask)
        return mask

    def after(self, state: int, token: int) -> int:
        """Raises GrammarError: the token has more behind the end of the marker."""
        text = self._pieces.texts[token]
        state, read = self.marker.after(state, token, text)
        if read < len(text):
            raise GrammarError(f"token {token} reaches beyond the marker")
        return state

    def lead_in(self, state: int) -> list[int]:
        """Return tokens, the longest there are, that spell what is missing of the marker."""
        if self.marker.token is not None:
            return [self.marker.token]
        spelt = self._pieces.spell(self.marker.text[state:])
        if spelt is None:
            raise InvalidRequest(
                f"no tokens of this model spell the marker {self.marker.text.decode()!r}",
                field=MARKER_FIELD,
            )
        return spelt

    def _overhanging(self, state: int) -> list[int]:
        """Return the tokens that end a marker which has begun, and have more behind it."""
        text = self.marker.text
        return [
            token
            for begun in self.marker.begun(state)
            for token in self._pieces.beginning_with(text[begun:])
        ]


class Gates:
    """The gates over one vocabulary, each made when first wanted."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._gates: OrderedDict[tuple[bytes, int | None], Gate] = OrderedDict()

    def get(self, marker: Marker) -> Gate:
        """Raises InvalidRequest: no tokens spell the marker."""
        key = marker.text, marker.token
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(marker, self._pieces)
            if len(self._gates) > MAX_GATES:
                self._gates.popitem(last=False)
        self._gates.move_to_end(key)
        return gate


class GatedMatcher(Matcher):
    """A matcher behind a gate.

    inner: of what comes behind it, untouched until it opens.  _states: of the marker, before each
    token in front of the gate and after the last of them.
    """

    def __init__(self, gate: Gate, inner: Matcher) -> None:
        self.gate = gate
        self.inner = inner
        self._states = [0]
        self._num_behind = 0

    @property
    def is_open(self) -> bool:
        return self._states[-1] == self.gate.marker.end

    @property
    def mask(self) -> bitmask.Words:
        """What may follow as long as it is not open."""
        return self.gate.mask(self._states[-1])

    def accept(self, token: int) -> None:
        if self.is_open:
            self.inner.accept(token)
            self._num_behind += 1
        else:
            self._states.append(self.gate.after(self._states[-1], token))

    @property
    def accepting(self) -> bool:
        return self.is_open and self.inner.accepting

    @property
    def num_free(self) -> int:
        return len(self._states) - 1

    @property
    def lead_in(self) -> list[int]:
        return [] if self.is_open else self.gate.lead_in(self._states[-1])

    def forced(self) -> bytes:
        return self.inner.forced() if self.is_open else b""

    def rollback(self, count: int) -> None:
        behind = min(count, self._num_behind)
        if behind:
            self.inner.rollback(behind)
            self._num_behind -= behind
        del self._states[len(self._states) - (count - behind) :]

    def allows(self, tokens: Sequence[int]) -> bool:
        return self.inner.allows(tokens) if self.is_open else super().allows(tokens)

    def is_completed_by(self, tokens: Sequence[int]) -> bool:
        if self.is_open:
            return self.inner.is_completed_by(tokens)
        return super().is_completed_by(tokens)

    def fork(self) -> GatedMatcher:
        copy = GatedMatcher(self.gate, self.inner.fork())
        copy._states = self._states.copy()
        copy._num_behind = self._num_behind
        return copy


def fill(
    backend: GrammarBackend,
    matchers: Sequence[Matcher],
    words: npt.NDArray[np.int32],
    rows: Sequence[int],
) -> None:
    """Write masks as `backend.fill` does; some of its matchers may be behind gates."""
    inside: list[Matcher] = []
    inside_rows: list[int] = []
    for matcher, row in zip(matchers, rows, strict=True):
        if isinstance(matcher, GatedMatcher):
            if not matcher.is_open:
                words[row] = matcher.mask
                continue
            matcher = matcher.inner
        inside.append(matcher)
        inside_rows.append(row)
    if inside:
        backend.fill(inside, words, inside_rows)
