"""Guesses at the next tokens, computed and verified by the forward that would compute one.

A guess is a run of tokens that followed the last few before: in the request's own prompt and
answer (extraction copies from its input), or in earlier answers under the same constraint (whose
skeleton comes again).  Guesses compete by how much of the past they match.

A draft is kept where it is what is sampled there anyway, with the noise of that place, so that the
answer is the same token for token, whatever was guessed.  Loop thread only.

A second, smaller model is no Drafter: a Drafter is asked on the loop thread, one request at a time,
and answers at once.  A model needs the device thread, batches over requests, KV of its own that is
preempted and catches up with forced and appended tokens, and its forwards would run before the
target's, one after the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from structgen.constraints import Constraint
from structgen.engine.confidence import MAX_DRAFTS
from structgen.engine.ngrams import BORDER, Ngrams
from structgen.engine.request import Request
from structgen.engine.step_cost import StepCost

MAX_SKELETONS = 64  # constraints whose answers are remembered
MAX_SKELETON_TOKENS = 8192  # of each


class Drafter(Protocol):
    def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
        """Return at most `limit` tokens that may come next, and how much of the past they match."""

    def learn(self, request: Request) -> None:
        """Look at a request that has ended well."""


class PromptLookup:
    """What came next the last time, in the request's own prompt and answer."""

    def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
        if request.ngrams is None:
            request.ngrams = Ngrams()
        seen, tokens = request.ngrams, request.tokens
        seen.extend(tokens[len(seen) :])
        return seen.following(tokens, limit)

    def learn(self, request: Request) -> None:
        pass


class Skeletons:
    """What came next in earlier answers under the same constraint."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Constraint, Ngrams] = OrderedDict()

    def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
        constraint = request.params.constraint
        if constraint is None or (seen := self._seen.get(constraint)) is None:
            return 0, []
        return seen.following(request.tokens[request.num_prompt :], limit)

    def learn(self, request: Request) -> None:
        constraint = request.params.constraint
        if constraint is None:
            return
        seen = self._seen.get(constraint)
        if seen is None or len(seen) > MAX_SKELETON_TOKENS:
            seen = self._seen[constraint] = Ngrams()
        self._seen.move_to_end(constraint)
        if len(self._seen) > MAX_SKELETONS:
            self._seen.popitem(last=False)
        seen.extend([BORDER, *request.tokens[request.num_prompt :]])


def usual() -> Sequence[Drafter]:
    """Return one of each kind, that know nothing yet."""
    return PromptLookup(), Skeletons()


class Drafts:
    """All drafters together; without any, there are no guesses.

    cost: of a draft, to be told of every step.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters
        self.cost = StepCost()

    def propose(self, request: Request, num_rows: int) -> list[int]:
        """Return what the next step of a request may be computed with, for verification."""
        cost = self.cost.of_draft(num_rows)
        room = min(MAX_DRAFTS, request.limit - len(request.tokens) - 1)
        if room <= 0 or not request.confidence.wants_look(cost):
            return []
        longest, best = 0, list[int]()
        for drafter in self._drafters:
            match, guess = drafter.propose(request, room)
            if match > longest:
                longest, best = match, guess
        request.confidence.looked(found=bool(best))
        return best[: request.confidence.length(cost)] if best else best

    def learn(self, request: Request) -> None:
        for drafter in self._drafters:
            drafter.learn(request)
