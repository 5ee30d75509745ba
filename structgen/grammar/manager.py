"""The grammar side of a step: constraints become matchers, matchers become masks.

Loop thread only; while the device computes, `fill` prepares the one mask of the step.  A mask row
folds together all that is hard about a logits row: the grammar, which stop ids may end it now, the
allowed ids, and the bad words that would be completed.
Rows without a restriction have none.  The mask buffer is reused: it may be refilled only after the
previous `sample_tokens` returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import Protocol

import msgspec
import numpy as np

from structgen.constraints import FIELD, Constraint
from structgen.errors import ConstraintTooLarge, InternalError, InvalidRequest, StructgenError
from structgen.grammar import bitmask, gate
from structgen.grammar.base import GrammarBackend, GrammarError, Matcher, TooSlow
from structgen.grammar.budget import Budget
from structgen.grammar.checks import Checks, Judged
from structgen.grammar.choosing import Backends
from structgen.grammar.compiler import Compiled, Compiler
from structgen.grammar.filters import TokenFilter
from structgen.grammar.gate import GatedMatcher, Gates
from structgen.grammar.jump import Encode, Jumper
from structgen.grammar.pieces import Pieces
from structgen.grammar.walk import UNKNOWN, Walk
from structgen.grammar.workshop import LocalWorkshop, Workshop
from structgen.marker import Marker
from structgen.messages import ConstraintInfo
from structgen.params import SamplingParams
from structgen.plan import TokenBitmask


class Constrained(Protocol):
    """What the manager knows of a request; it writes the first five."""

    matcher: Matcher | None
    compiling: bool
    constraint_info: ConstraintInfo | None
    filter: TokenFilter | None
    budget: Budget | None
    id: str
    params: SamplingParams
    marker: Marker | None
    bad_sequences: list[list[int]]
    num_prompt: int
    stop_ids: frozenset[int]
    min_length: int
    limit: int
    tokens: list[int]

    @property
    def jumps(self) -> bool:
        """Whether it is to be given forced text unasked."""


class Casualty(msgspec.Struct, frozen=True):
    """A request for which no mask can be made.

    error None: a dead end, every token is ruled out; `detail` names the masks that did it.
    place: behind how many drafts; it comes true only if all of these do.
    """

    request_id: str
    detail: str
    error: StructgenError | None = None
    place: int = 0


class Place(msgspec.Struct, frozen=True):
    """Where a request is sampled: from which logits row on, and what is guessed to come there."""

    request: Constrained
    logit: int
    drafts: list[int]


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


class GrammarManager:
    """backends: the libraries.  post: hands what a thread has done to the loop thread.

    workshop: where strangers' constraints are tried, if not in this process.  encode: a text's ids,
    with nothing added; without it, text that a constraint forces is sampled like any other.
    """

    def __init__(
        self,
        backends: Backends,
        vocab_size: int,
        post: Callable[[Compiled | Judged], None],
        *,
        threads: int,
        cache_bytes: int,
        cache_entries: int,
        queue_length: int = 256,
        workshop: Workshop | None = None,
        encode: Encode | None = None,
    ) -> None:
        self._backends = backends
        self._vocab_size = vocab_size
        workshop = workshop or LocalWorkshop(backends)
        self._compiler = Compiler(
            workshop,
            post,
            threads=threads,
            max_bytes=cache_bytes,
            max_entries=cache_entries,
            max_pending=queue_length,
        )
        pieces = Pieces(backends.vocabulary)
        self._gates = Gates(pieces)
        self._jumper = Jumper(pieces, encode) if encode is not None else None
        self.checks = Checks(self._compiler, workshop, post, max_pending=queue_length)
        self._waiting: dict[Constraint, list[Constrained]] = {}
        self._stop_sets: dict[frozenset[int], bitmask.TokenSet] = {}
        self._words = bitmask.allocate(1, vocab_size)
        self._scratch = bitmask.allocate(1, vocab_size)
        # Masks that `accept` had to look at already, by request id, for the next `fill`.
        self._peeked: dict[str, bitmask.Words] = {}
        self._full = bitmask.full(vocab_size)

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def submit(self, request: Constrained) -> None:
        """Give a request its filter and its matcher.

        The latter now if its constraint is known, else when it has compiled.
        Raises the error of the compile if it failed before; LimitExceeded: too many are under way.
        """
        allowed = request.params.allowed_token_ids
        if allowed or request.bad_sequences:
            request.filter = TokenFilter(allowed, request.bad_sequences, self._vocab_size)
        constraint = request.params.constraint
        if constraint is None:
            return
        compiled = self._compiler.get(constraint)
        if compiled is not None:
            self._attach(request, constraint, compiled, cached=True)
            return
        self._compiler.start(constraint)
        self._waiting.setdefault(constraint, []).append(request)

    def land(self, compiled: Compiled) -> list[tuple[str, StructgenError | None]]:
        """Serve the requests that waited for a compile; returns them, and why any has failed."""
        self._compiler.land(compiled)
        served: list[tuple[str, StructgenError | None]] = []
        for request in self._waiting.pop(compiled.constraint, []):
            try:
                self._attach(request, compiled.constraint, compiled, cached=False)
                served.append((request.id, None))
            except StructgenError as error:
                served.append((request.id, error))
        return served

    def forget(self, request: Constrained) -> None:
        """Drop a finished or aborted request, and its compile if nobody else waits for it."""
        self._peeked.pop(request.id, None)
        constraint = request.params.constraint
        if constraint is None or not request.compiling:
            return
        waiting = self._waiting.get(constraint, [])
        waiting[:] = [other for other in waiting if other is not request]
        if not waiting:
            self._waiting.pop(constraint, None)
            if not self.checks.wait_for(constraint):
                self._compiler.cancel(constraint)

    def forget_check(self, check_id: str) -> None:
        """Drop a check, if it is here, and its compile if nobody else waits for it."""
        constraint = self.checks.forget(check_id)
        if constraint is not None and constraint not in self._waiting:
            self._compiler.cancel(constraint)

    def fill(
        self, places: Sequence[Place], wait: Callable[[], None] | None = None
    ) -> tuple[TokenBitmask, list[Casualty]]:
        """Make the masks of a step.

        places: who is sampled, in the order of the logits, at each behind the tokens and behind
        each of the drafts.  wait: called once the masks of those that are ready are made; may make
        others ready.  Those that still compile then have no mask.
        Every mask row that is returned allows at least one token: for a casualty, any; what is
        drawn for it is thrown away.  Leaves every matcher where it was.
        """
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
        """Make the masks of those that are restricted."""
        masked = [place for place in places if self._is_restricted(place.request)]
        requests = [place.request for place in masked]
        words = rows.take([place.logit for place in masked])
        casualties = self._fill_grammars(requests, words)
        for request, row in zip(requests, words, strict=True):
            self._fold(request, row)
            if not row.any():
                casualties.append(Casualty(request.id, _dead_end(request)))
        broken = {casualty.request_id for casualty in casualties}
        for place, row in zip(masked, words, strict=True):
            if place.request.id in broken:
                row[:] = self._full
            elif place.drafts:
                casualties += self._fill_behind_drafts(place, rows)
        return casualties

    def _fill_behind_drafts(self, place: Place, rows: _MaskRows) -> list[Casualty]:
        """Make the masks behind each draft of a request."""
        request, matcher = place.request, _matcher_of(place.request)
        words = rows.take([place.logit + 1 + i for i in range(len(place.drafts))])
        backend = self._backends.get(_backend_of(request))
        accepted = 0
        try:
            for index, draft in enumerate(place.drafts):
                matcher.accept(draft)
                accepted += 1
                gate.fill(backend, [matcher], words, [index])
                row = words[index]
                row &= self._full
                self._fold(request, row)
                if not row.any():
                    row[:] = self._full
                    return [Casualty(request.id, _dead_end(request), place=accepted)]
        except GrammarError as error:
            words[max(accepted - 1, 0) :] = self._full
            failure = InternalError(f"no mask for the constraint: {error}")
            return [Casualty(request.id, failure.message, failure, place=accepted)]
        finally:
            matcher.rollback(accepted)
        return []

    def legal(self, request: Constrained, drafts: list[int]) -> list[int]:
        """Return how many of the drafts could be what comes next, one after the other.

        They end in front of text that is forced: once it is appended, what was sampled behind a
        draft would stand elsewhere.
        """
        drafts = [*takewhile(lambda draft: draft not in request.stop_ids, drafts)]
        if request.matcher is None or not drafts:
            return drafts
        copy = request.matcher.fork()
        kept: list[int] = []
        try:
            for draft in drafts:
                copy.accept(draft)
                if self._jumper is not None and request.jumps and copy.forced():
                    break
                kept.append(draft)
        except GrammarError:
            pass
        return kept

    def accept(self, request: Constrained, token: int) -> bool:
        """Advance a request's matcher; True if nothing may follow this token.

        Stop ids are not part of the language and must not be given.
        Raises InternalError: the matcher refused a token that its mask allowed.
        """
        if request.matcher is None:
            return False
        self._peeked.pop(request.id, None)  # of the place before
        try:
            request.matcher.accept(token)
            return request.matcher.accepting and self._is_at_end(request)
        except TooSlow as error:
            raise ConstraintTooLarge(str(error), field=FIELD) from None
        except GrammarError as error:
            raise InternalError(f"the constraint refused a token it had allowed: {error}") from None

    def forced(self, request: Constrained) -> list[int]:
        """Return the tokens that a request goes on with whatever is sampled, as usually spelt."""
        matcher = request.matcher
        if self._jumper is None or matcher is None or not matcher.forced():
            return []
        return self._jumper.run(self._walk(request))

    def affords(self, request: Constrained, token: int) -> bool:
        """Whether a request can still complete its text in time once it has taken a token.

        If False, `way_out` is how it can.  Stop ids must not be given.
        """
        if request.budget is None:
            return True
        left = request.limit - len(request.tokens) - 1
        return request.budget.affords(
            token, left, self._backends.closer, lambda: self._walk(request)
        )

    def way_out(self, request: Constrained) -> list[int] | None:
        """Return tokens that complete a request's text within its limit, None if none are found."""
        if request.budget is None:
            return None
        left = request.limit - len(request.tokens)
        return request.budget.way_out(left, self._backends.closer, lambda: self._walk(request))

    def follow(self, request: Constrained) -> None:
        """Allow a request nothing any more but its way out."""
        assert request.budget is not None, f"{request.id} has no budget"
        assert request.budget.way, f"{request.id} has no way out"
        request.budget.following = True

    def close(self) -> None:
        self.checks.close()
        self._compiler.close()

    def _walk(self, request: Constrained) -> Walk:
        restricted = request.filter is not None or bool(request.params.stop_token_ids)
        return Walk(
            self._backends.get(_backend_of(request)),
            _matcher_of(request),
            request.budget.exit if request.budget is not None else UNKNOWN,
            self._full,
            request.tokens,
            request.num_prompt,
            partial(self._rule_out, request) if restricted else None,
        )

    def _rule_out(self, request: Constrained, row: bitmask.Words, tokens: Sequence[int]) -> None:
        self._stop_set(request.stop_ids).ban(row)
        if request.filter is not None:
            request.filter.apply(row, tokens, request.num_prompt)

    def _attach(
        self, request: Constrained, constraint: Constraint, compiled: Compiled, *, cached: bool
    ) -> None:
        chosen = compiled.require()
        matcher = chosen.grammar.new_matcher()
        exit = chosen.exit if request.params.close_within_budget else None
        if exit is not None:
            _require_room(request, exit.at_least)
        if request.marker is not None:
            matcher = GatedMatcher(self._gates.get(request.marker), matcher)
            exit = exit and exit.behind(matcher.lead_in)
        if exit is not None:
            request.budget = Budget(exit, request.limit - len(request.tokens))
        request.matcher = matcher
        request.compiling = False
        request.constraint_info = compiled.info(constraint, cached=cached)

    def _is_restricted(self, request: Constrained) -> bool:
        if request.matcher is not None or request.filter is not None:
            return True
        return len(request.tokens) < request.min_length and bool(request.stop_ids)

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
                by_backend.setdefault(_backend_of(request), []).append(row)
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
            gate.fill(backend, [_matcher_of(requests[row]) for row in rows], words, rows)
        except Exception as error:
            if len(rows) > 1:
                return [
                    casualty
                    for row in rows
                    for casualty in self._fill_rows(backend, requests, words, [row])
                ]
            failure: StructgenError = InternalError(f"no mask for the constraint: {error}")
            if isinstance(error, TooSlow):
                failure = ConstraintTooLarge(str(error), field=FIELD)
            words[rows[0]] = self._full
            return [Casualty(requests[rows[0]].id, failure.message, failure)]
        return []

    def _fold(self, request: Constrained, row: bitmask.Words) -> None:
        """Fold into a grammar's row the stop ids, exactly where it may end, and the filter.

        min_tokens yields to a grammar that is complete and lets nothing else follow.
        """
        if request.budget is not None and request.budget.following:
            assert request.budget.way, f"{request.id} has been completed"
            row[:] = 0
            bitmask.TokenSet(request.budget.way[:1]).allow(row)
            return
        stops = self._stop_set(request.stop_ids)
        stops.ban(row)
        self._filter(request, row)
        complete = request.matcher is not None and request.matcher.accepting
        may_end = complete or request.matcher is None
        enough = len(request.tokens) >= request.min_length
        if may_end and (enough or (complete and not row.any())):
            stops.allow(row)
            self._filter(request, row)

    def _filter(self, request: Constrained, row: bitmask.Words) -> None:
        if request.filter is not None:
            request.filter.apply(row, request.tokens, request.num_prompt)

    def _is_at_end(self, request: Constrained) -> bool:
        """Whether nothing but stopping is legal for a matcher that accepts."""
        assert request.matcher is not None
        self._scratch[:] = 0
        backend = self._backends.get(_backend_of(request))
        gate.fill(backend, [request.matcher], self._scratch, [0])
        row = self._scratch[0] & self._full
        self._stop_set(request.stop_ids).ban(row)
        if row.any():
            self._peeked[request.id] = row  # without stop ids, which `fill` folds in anyway
        return not row.any()

    def _stop_set(self, stop_ids: frozenset[int]) -> bitmask.TokenSet:
        stops = self._stop_sets.get(stop_ids)
        if stops is None:
            if len(self._stop_sets) >= 1024:  # clients choose these: keep their number bounded
                self._stop_sets.clear()
            stops = self._stop_sets[stop_ids] = bitmask.TokenSet(stop_ids)
        return stops


def _backend_of(request: Constrained) -> str:
    assert request.constraint_info is not None, f"{request.id} has no constraint"
    return request.constraint_info.backend


def _matcher_of(request: Constrained) -> Matcher:
    assert request.matcher is not None, f"{request.id} has no matcher"
    return request.matcher


def _require_room(request: Constrained, at_least: int) -> None:
    """Raises InvalidRequest: max_tokens does not let any text of the constraint end."""
    max_tokens = request.params.max_tokens
    if max_tokens is not None and max_tokens < at_least:
        raise InvalidRequest(
            f"max_tokens must be at least {at_least}, what the shortest text under the constraint "
            f"takes (or truncation be MARK), got {max_tokens}",
            field="input.stopping.max_tokens",
        )


def _dead_end(request: Constrained) -> str:
    masks = ["the constraint"] if request.matcher is not None else []
    if request.filter is not None:
        masks += request.filter.names
    if len(request.tokens) < request.min_length:
        masks.append("min_tokens")
    return f"no token is left under {', '.join(masks)} and the stop ids"
