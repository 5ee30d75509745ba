"""How answers grow: by what was sampled, what is forced, and what completes them in time.

    sampled ──verified against the drafts──► committed ──► forced text ──► the next drafts
                        │
                        └ what the budget cannot afford ──► the way out, and the end

Loop thread only.  Nothing is reported from here: the core tells what has changed.
"""

from __future__ import annotations

import time

from structgen.engine.drafts import Drafts
from structgen.engine.request import Request
from structgen.engine.scheduler import Scheduler
from structgen.grammar.manager import GrammarManager
from structgen.grammar.masks import Casualty
from structgen.messages import FinishReason
from structgen.plan import PlanRow


class Answers:
    """Any method raises StructgenError if the request's grammar failed, and with it the request."""

    def __init__(self, scheduler: Scheduler, grammars: GrammarManager, drafts: Drafts) -> None:
        self._scheduler = scheduler
        self._grammars = grammars
        self._drafts = drafts

    def begin(self, request: Request) -> None:
        """Append what an answer begins with whatever is sampled, once its constraint is ready."""
        self._jump(request)
        request.drafts = self._guess(request)

    def take(
        self, request: Request, row: PlanRow, sampled: list[int], casualty: Casualty | None
    ) -> Casualty | None:
        """Commit what was sampled, as far as the row's drafts were right, and what is forced.

        Returns the casualty if it has come true.
        """
        if request.first_token_at is None:
            request.first_token_at = time.monotonic()
        if request.matcher is None and row.num_logits == 1 and casualty is None:
            request.append(sampled[0])  # there is nothing to verify, and nothing is forced
        else:
            drafts = row.drafts
            kept = self._keep(request, drafts, sampled, casualty)
            if kept is None:
                return casualty
            request.confidence.judged(len(drafts), kept)
        request.drafts = self._guess(request)
        return None

    def _keep(
        self, request: Request, drafts: list[int], sampled: list[int], casualty: Casualty | None
    ) -> int | None:
        """Commit what was sampled; return how many drafts were right; None: so is the casualty."""
        kept = 0
        for token in sampled:
            if casualty is not None and casualty.place == kept:
                return None
            known = len(request.tokens)
            if self._append(request, token) or len(request.tokens) == known:
                break  # it has ended, or goes another way
            right = kept < len(drafts) and drafts[kept] == token
            if right:
                self._scheduler.keep_draft(request)
                kept += 1
            if self._jump(request) or not right:
                break
        return kept

    def complete(self, request: Request, reason: FinishReason) -> None:
        """End an answer, completed if that takes no forward."""
        request.finish = reason
        if request.matcher is not None and request.params.logprobs is None:
            way = self._grammars.way_out(request)
            if way:
                self._follow_to_the_end(request, way, reason)

    def ended(self, request: Request) -> None:
        """Learn from an answer that is complete."""
        if request.accepting or request.finish is FinishReason.CONSTRAINT_COMPLETE:
            self._drafts.learn(request)

    def _append(self, request: Request, token: int) -> bool:
        """Commit a token, or what completes the text in time; True: nothing may follow."""
        if request.matcher is None or token in request.stop_ids:
            return request.append(token)
        if not self._grammars.affords(request, token):
            self._close(request)
            return True
        complete = self._advance(request, token)
        if request.is_led_out:
            request.finish, request.closed = request.limit_reason, True
        elif complete:
            request.finish = FinishReason.CONSTRAINT_COMPLETE
        return request.finish is not None

    def _advance(self, request: Request, token: int) -> bool:
        """Commit a token that belongs to the text; return whether nothing may follow."""
        request.note_complete()
        complete = self._grammars.accept(request, token)
        request.append(token)
        return complete

    def _jump(self, request: Request) -> bool:
        """Append what comes next whatever is sampled; whether there was any."""
        if request.matcher is None or request.finish is not None or not request.jumps:
            return False
        forced = self._grammars.forced(request)
        for token in forced:
            before = len(request.tokens)
            ended = self._append(request, token)
            if not request.closed:
                request.forced_tokens += len(request.tokens) - before
            if ended:
                break
        return bool(forced)

    def _guess(self, request: Request) -> list[int]:
        """Return what may come next: for certain, but for its spelling, or by experience."""
        looks = request.params.drafts and not request.confidence.rests()
        forces = request.matcher is not None and request.guesses_forced
        if not (looks or forces) or not request.may_draft():
            return []
        if forces:
            forced = self._grammars.forced(request)
            if forced:
                return forced[: request.limit - len(request.tokens) - 1]
        if not looks:
            return []
        drafts = self._drafts.propose(request, self._scheduler.num_running)
        return self._grammars.legal(request, drafts) if drafts else []

    def _close(self, request: Request) -> None:
        """Complete the text of a request that has a way out, and end it.

        The tokens of the way need no forward, since nothing is sampled after them.  If their log
        probabilities are wanted they do: then each is sampled, with nothing else allowed, from
        here on, the first in place of what was sampled last.
        """
        way = self._grammars.way_out(request)
        assert way is not None, f"{request.id} has no way out"
        if request.params.logprobs is not None and way:
            self._grammars.follow(request)
            self._scheduler.redo(request)
        else:
            self._follow_to_the_end(request, way, request.limit_reason)

    def _follow_to_the_end(self, request: Request, way: list[int], reason: FinishReason) -> None:
        for token in way:
            self._advance(request, token)
        request.finish, request.closed = reason, True
