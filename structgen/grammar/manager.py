"""The grammar side of a step: constraints become matchers, matchers become masks.

Loop thread only; while the device computes, `masks.fill` prepares the masks of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile

from structgen.constraints import FIELD, Constraint
from structgen.errors import ConstraintTooLarge, InternalError, InvalidRequest, StructgenError
from structgen.grammar import bitmask
from structgen.grammar.base import GrammarError, TooSlow
from structgen.grammar.budget import Budget
from structgen.grammar.checks import Checks, Judged
from structgen.grammar.choosing import Backends
from structgen.grammar.compiler import Compiled, Compiler
from structgen.grammar.constrained import Constrained, backend_of, matcher_of
from structgen.grammar.filters import TokenFilter
from structgen.grammar.gate import GatedMatcher, Gates
from structgen.grammar.jump import Encode, Jumper
from structgen.grammar.masks import Masks
from structgen.grammar.pieces import Pieces
from structgen.grammar.walk import UNKNOWN, Walk
from structgen.grammar.workshop import LocalWorkshop, Workshop


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
        self.masks = Masks(backends, vocab_size)
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
        self.masks.forget(request.id)
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
        self.masks.forget(request.id)  # of the place before
        try:
            request.matcher.accept(token)
            return request.matcher.accepting and self.masks.is_at_end(request)
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
            self._backends.get(backend_of(request)),
            matcher_of(request),
            request.budget.exit if request.budget is not None else UNKNOWN,
            self._full,
            request.tokens,
            request.num_prompt,
            partial(self._rule_out, request) if restricted else None,
        )

    def _rule_out(self, request: Constrained, row: bitmask.Words, tokens: Sequence[int]) -> None:
        self.masks.stop_set(request.stop_ids).ban(row)
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


def _require_room(request: Constrained, at_least: int) -> None:
    """Raises InvalidRequest: max_tokens does not let any text of the constraint end."""
    max_tokens = request.params.max_tokens
    if max_tokens is not None and max_tokens < at_least:
        raise InvalidRequest(
            f"max_tokens must be at least {at_least}, what the shortest text under the constraint "
            f"takes (or truncation be MARK), got {max_tokens}",
            field="input.stopping.max_tokens",
        )
