"""The masks of a step.

A mask row folds together all that is hard about a logits row: the grammar, which stop ids may end
it now, the allowed ids, and the bad words that would be completed.  Rows without a restriction have
none.  Loop thread only.  The buffer is reused: it may be refilled only after the previous
`sample_tokens` returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from structgen.constraints import FIELD
from structgen.errors import ConstraintTooLarge, InternalError, StructgenError
from structgen.grammar import bitmask, gate
from structgen.grammar.base import GrammarBackend, GrammarError, Matcher, TooSlow
from structgen.grammar.choosing import Backends
from structgen.grammar.constrained import Constrained, backend_of, matcher_of
from structgen.plan import TokenBitmask


class Casualty(msgspec.Struct, frozen=True):
    """A request for which no mask can be made.

    error None: a dead end, every token is ruled out; `detail` names the masks that did it.
    place: behind how many drafts; it comes true only if all of these do.
    """

    request_id: str
    detail: str
    error: StructgenError | None = None
    place: int = 0


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a request is sampled: from which logits row on, and what is guessed to come there."""

    request: Constrained
    logit: int
    drafts: list[int]


def is_restricted(request: Constrained) -> bool:
    """Whether not every token may be sampled next; of who still compiles, that is not known."""
    if request.matcher is not None or request.filter is not None:
        return True
    return len(request.tokens) < request.min_length and bool(request.stop_ids)


class _MaskRows:
    """Rows of the buffer as they are given to logits rows."""

    def __init__(self, words: bitmask.Words) -> None:
        self._words = words
        self._logits: list[int] = []

    def take(self, logits: Sequence[int]) -> bitmask.Words:
        """Return int32 [len(logits), W] of zeros for these logits rows."""
        start = len(self._logits)
        self._logits += logits
        return self._words[start : len(self._logits)]

    def bitmask(self) -> TokenBitmask:
        words = self._words[: len(self._logits)]
        logits = np.array(self._logits, dtype=np.int32)
        if (np.diff(logits) < 0).any():
            order = np.argsort(logits)
            words, logits = words[order], logits[order]
        return TokenBitmask(words, logits)


class Masks:
    """Makes them for requests under any of the libraries."""

    def __init__(self, backends: Backends, vocab_size: int) -> None:
        self._backends = backends
        self._vocab_size = vocab_size
        self._stop_sets: dict[frozenset[int], bitmask.TokenSet] = {}
        self._words = bitmask.allocate(1, vocab_size)
        self._scratch = bitmask.allocate(1, vocab_size)
        # Masks that `is_at_end` had to look at already, by request id, for the next `fill`.
        self._peeked: dict[str, bitmask.Words] = {}
        self._full = bitmask.full(vocab_size)
        self._nothing = _MaskRows(self._words[:0]).bitmask()

    def forget(self, request_id: str) -> None:
        """Drop what is known of where a request was."""
        self._peeked.pop(request_id, None)

    def fill(
        self, places: Sequence[Place], wait: Callable[[], None] | None = None
    ) -> tuple[TokenBitmask, list[Casualty]]:
        """Make the masks of a step.

        places: who is sampled, in the order of the logits, at each behind the tokens and behind
        each of the drafts, if that is restricted, or may be once a constraint has compiled.
        wait: called once the masks of those that are ready are made; may make others ready.  Those
        that still compile then have no mask.
        Every mask row that is returned allows at least one token: for a casualty, any; what is
        drawn for it is thrown away.  Leaves every matcher where it was.
        """
        if not places:
            return self._nothing, []
        rows = _MaskRows(self._buffer(sum(1 + len(place.drafts) for place in places)))
        waiting = [place for place in places if place.request.compiling]
        ready = [place for place in places if not place.request.compiling]
        casualties = self._fill(ready, rows)
        if waiting and wait is not None:
            wait()
            ready = [place for place in waiting if not place.request.compiling]
            casualties += self._fill(ready, rows)
        return rows.bitmask(), casualties

    def _fill(self, places: Sequence[Place], rows: _MaskRows) -> list[Casualty]:
        """Make the masks of those whose constraint is ready."""
        requests = [place.request for place in places]
        words = rows.take([place.logit for place in places])
        casualties = self._fill_grammars(requests, words)
        for request, row in zip(requests, words, strict=True):
            self._fold(request, row, request.matcher)
            if not row.any():
                casualties.append(Casualty(request.id, _dead_end(request)))
        broken = {casualty.request_id for casualty in casualties}
        for place, row in zip(places, words, strict=True):
            if place.request.id in broken:
                row[:] = self._full
            elif place.drafts:
                casualties += self._fill_behind_drafts(place, rows)
        return casualties

    def _fill_behind_drafts(self, place: Place, rows: _MaskRows) -> list[Casualty]:
        """Make the masks behind each draft of a request."""
        request, ahead = place.request, matcher_of(place.request).fork()
        words = rows.take([place.logit + 1 + i for i in range(len(place.drafts))])
        backend = self._backends.get(backend_of(request))
        for index, draft in enumerate(place.drafts):
            row = words[index]
            try:
                ahead.accept(draft)
                gate.fill(backend, [ahead], words, [index])
            except GrammarError as error:
                words[index:] = self._full
                failure = _failure(error)
                return [Casualty(request.id, failure.message, failure, place=index + 1)]
            row &= self._full
            self._fold(request, row, ahead)
            if not row.any():
                words[index:] = self._full
                return [Casualty(request.id, _dead_end(request), place=index + 1)]
        return []

    def _buffer(self, rows: int) -> bitmask.Words:
        """Return the first `rows` rows of the reused buffer, all zero."""
        if rows > len(self._words):
            self._words = bitmask.allocate(2 * rows, self._vocab_size)
        words = self._words[:rows]
        words[:] = 0
        return words

    def _fill_grammars(
        self, requests: Sequence[Constrained], words: bitmask.Words
    ) -> list[Casualty]:
        """Fill rows from matchers, in one call for each library; other rows allow everything."""
        by_backend: dict[str, list[int]] = {}
        for row, request in enumerate(requests):
            if request.matcher is None:
                words[row] = self._full
            elif request.id in self._peeked:
                words[row] = self._peeked.pop(request.id)
            else:
                by_backend.setdefault(backend_of(request), []).append(row)
        casualties: list[Casualty] = []
        for name, rows in by_backend.items():
            casualties += self._fill_rows(self._backends.get(name), requests, words, rows)
        words &= self._full
        return casualties

    def _fill_rows(
        self,
        backend: GrammarBackend,
        requests: Sequence[Constrained],
        words: bitmask.Words,
        rows: list[int],
    ) -> list[Casualty]:
        """Fill rows of one library.  If it fails, find out for which row, one by one."""
        try:
            gate.fill(backend, [matcher_of(requests[row]) for row in rows], words, rows)
        except Exception as error:
            if len(rows) > 1:
                return [
                    casualty
                    for row in rows
                    for casualty in self._fill_rows(backend, requests, words, [row])
                ]
            failure = _failure(error)
            words[rows[0]] = self._full
            return [Casualty(requests[rows[0]].id, failure.message, failure)]
        return []

    def _fold(self, request: Constrained, row: bitmask.Words, matcher: Matcher | None) -> None:
        """Fold into a grammar's row the stop ids, exactly where it may end, and the filter.

        min_tokens yields to a grammar that is complete and lets nothing else follow.
        """
        if request.budget is not None and request.budget.following:
            assert request.budget.way, f"{request.id} has been completed"
            row[:] = 0
            bitmask.TokenSet(request.budget.way[:1]).allow(row)
            return
        stops = self.stop_set(request.stop_ids)
        stops.ban(row)
        _filter(request, row)
        complete = matcher is not None and matcher.accepting
        may_end = complete or matcher is None
        enough = len(request.tokens) >= request.min_length
        if may_end and (enough or (complete and not row.any())):
            stops.allow(row)
            _filter(request, row)

    def is_at_end(self, request: Constrained) -> bool:
        """Whether nothing but stopping is legal for a matcher that accepts."""
        assert request.matcher is not None
        self._scratch[:] = 0
        backend = self._backends.get(backend_of(request))
        gate.fill(backend, [request.matcher], self._scratch, [0])
        row = self._scratch[0] & self._full
        self.stop_set(request.stop_ids).ban(row)
        if row.any():
            self._peeked[request.id] = row  # without stop ids, which `fill` folds in anyway
        return not row.any()

    def stop_set(self, stop_ids: frozenset[int]) -> bitmask.TokenSet:
        stops = self._stop_sets.get(stop_ids)
        if stops is None:
            if len(self._stop_sets) >= 1024:  # clients choose these: keep their number bounded
                self._stop_sets.clear()
            stops = self._stop_sets[stop_ids] = bitmask.TokenSet(stop_ids)
        return stops


def _filter(request: Constrained, row: bitmask.Words) -> None:
    if request.filter is not None:
        request.filter.apply(row, request.tokens, request.num_prompt)


def _failure(error: Exception) -> StructgenError:
    if isinstance(error, TooSlow):
        return ConstraintTooLarge(str(error), field=FIELD)
    return InternalError(f"no mask for the constraint: {error}")


def _dead_end(request: Constrained) -> str:
    masks = ["the constraint"] if request.matcher is not None else []
    if request.filter is not None:
        masks += request.filter.names
    if len(request.tokens) < request.min_length:
        masks.append("min_tokens")
    return f"no token is left under {', '.join(masks)} and the stop ids"
