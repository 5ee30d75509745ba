"""Which tokens of which requests are computed next.

There is no prefill and no decode: every request has a debt (`Request.debt`), and a step pays some
of it under a token budget.  Loop thread only.  A request is in exactly one of

    waiting   holds no KV blocks; ordered by (priority, arrival)
    running   holds blocks for all its known tokens; in the same order
    gone      finished or aborted; holds nothing

A running request whose constraint still compiles and whose other tokens are computed has no debt;
it is *parked*: it takes no seat, and gives up its blocks to whoever needs them.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Collection

from structgen import logs
from structgen.config import ResolvedConfig
from structgen.engine.kv import KVManager
from structgen.engine.request import Request
from structgen.plan import NewRow, PlanRow, StepPlan

log = logs.get(__name__)

_NONE: list[int] = []  # of a plan, which is never changed


class _Step:
    """A plan in the making.  requests: whom its rows belong to.  budget: tokens that are left.

    preempted: someone had to give up its blocks.
    """

    __slots__ = ("added", "budget", "preempted", "requests", "rows")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.rows: list[PlanRow] = []
        self.requests: list[Request] = []
        self.added: list[NewRow] = []
        self.preempted = False


class Scheduler:
    """planned: whom the rows of the last plan belong to."""

    def __init__(self, config: ResolvedConfig, kv: KVManager) -> None:
        self._config = config
        self._kv = kv
        self.planned: list[Request] = []
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._by_id: dict[str, Request] = {}
        self._removed: list[str] = []
        self._step = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def requests(self) -> Collection[Request]:
        return self._by_id.values()

    def get(self, request_id: str) -> Request | None:
        return self._by_id.get(request_id)

    def add(self, request: Request) -> None:
        """Queue a request.  The caller has checked that it fits the pool when alone."""
        assert request.id not in self._by_id, f"{request.id} is here already"
        self._by_id[request.id] = request
        # The samples of one request share its prompt in any case.
        request.blocks.shared = self._config.prefix_caching or request.params.n > 1
        bisect.insort(self._waiting, request, key=_order)

    def remove(self, request: Request) -> None:
        """Forget a finished or aborted request and give its blocks back."""
        del self._by_id[request.id]
        queue = self._running if request.blocks.table else self._waiting
        queue.remove(request)
        request.gone = True
        self._kv.release(request.blocks)
        self._drop_row(request)

    def schedule(self) -> StepPlan:
        """Plan the next step; its rows are empty when nothing can be computed now."""
        step = _Step(self._config.max_num_batched_tokens)
        self._schedule_running(step)
        self._admit(step)
        self.planned = step.requests
        if not step.rows:
            return StepPlan(self._step, [], [], [])  # not run, so removals must wait for the next
        self._step += 1
        plan = StepPlan(self._step, step.added, step.rows, self._removed)
        self._removed = []
        if self._config.check:
            self._check_plan(plan)
        return plan

    def paid(self, request: Request, row: PlanRow) -> int:
        """Record that a row of the last plan was computed; return the debt that is left."""
        before = request.computed
        assert row.start == before, f"{row.id}: row starts at {row.start}, computed is {before}"
        after = before + len(row.token_ids)
        if row.num_logits > 1:
            after -= row.num_drafts
        request.computed = after
        request.forwards += 1
        self._kv.computed(request.blocks, request.tokens, before, after)
        return request.debt()

    def keep_draft(self, request: Request) -> None:
        """Record that the last token was a draft of the last plan, so that it is computed."""
        before = request.computed
        request.computed += 1
        request.accepted_tokens += 1
        self._kv.computed(request.blocks, request.tokens, before, request.computed)

    def redo(self, request: Request) -> None:
        """Have the last token computed again: what was sampled behind it does not count."""
        known = len(request.tokens)
        assert request.computed == known, f"{request.id}: {request.computed} of {known} computed"
        request.computed -= 1

    def check(self) -> None:
        """Assert the invariants that hold between steps."""
        self._kv.check(request.blocks for request in self._running)
        assert sorted(map(_order, self._running)) == [*map(_order, self._running)]
        assert len(self._waiting) + len(self._running) == len(self._by_id)
        for request in self._waiting:
            assert not request.blocks.table
            assert request.computed == 0
        for request in self._running:
            assert 0 <= request.computed <= len(request.tokens)
            assert request.finish is None
            covered = len(request.blocks.table) * self._config.block_size
            assert covered >= request.computed

    def _schedule_running(self, step: _Step) -> None:
        """Give every running request with debt its share, in order."""
        for request in list(self._running):
            if step.budget <= 0 or len(step.rows) >= self._config.max_num_seqs:
                return
            count = _share(request, step.budget)
            if count <= 0 or not request.blocks.table:  # parked, or preempted just now
                continue
            while not self._kv.grow(request.blocks, request.computed + count):
                step.preempted = True
                if self._preempt(self._victim(step)) is request:
                    return
            self._add_row(step, request, count)

    def _admit(self, step: _Step) -> None:
        """Move waiting requests into the running ones while tokens, seats and blocks last.

        Strictly in order, so that a large request is not overtaken for ever.  After a preemption
        nobody is admitted: the blocks just freed belong to those who needed them.
        """
        if step.preempted or not self._waiting:
            return
        seats = self._config.max_num_seqs - sum(not r.compiling for r in self._running)
        for request in list(self._waiting):
            if step.budget <= 0 or seats <= 0 or len(step.rows) >= self._config.max_num_seqs:
                return
            if request.debt() <= 0:
                continue  # a one-token prompt whose constraint compiles: nothing to compute yet
            if request.waits_for_leader:
                continue
            if not self._place(request, step):
                if request.compiling:
                    continue  # only computed ahead of time: it must not hold up the others
                return
            count = _share(request, step.budget)
            if count > 0:  # zero when the prefix cache held all but the token that must wait
                self._add_row(step, request, count)
            seats -= not request.compiling

    def _place(self, request: Request, step: _Step) -> bool:
        """Give a waiting request its blocks, evicting parked requests if it is not one itself."""
        # A cached prefix has no logits, so who wants the prompt's computes it.
        use_cache = not request.wants_prompt_logprobs
        cached = self._kv.admit(request.blocks, request.tokens, use_cache=use_cache)
        while cached is None and not request.compiling:
            parked = self._last_parked(step)
            if parked is None:
                return False
            self._preempt(parked)
            cached = self._kv.admit(request.blocks, request.tokens, use_cache=use_cache)
        if cached is None:
            return False
        request.computed = cached
        if request.first_scheduled_at is None:
            request.first_scheduled_at = time.monotonic()
            request.cached_tokens = cached
        self._waiting.remove(request)
        bisect.insort(self._running, request, key=_order)
        return True

    def _victim(self, step: _Step) -> Request:
        """Choose who gives up its blocks: a parked request, else the one that ranks lowest.

        The latter, being last in order, is not yet part of this plan.
        """
        return self._last_parked(step) or self._running[-1]

    def _last_parked(self, step: _Step) -> Request | None:
        planned = {request.id for request in step.requests}
        for request in reversed(self._running):
            if request.compiling and request.debt() <= 0 and request.id not in planned:
                return request
        return None

    def _preempt(self, request: Request) -> Request:
        """Take a running request's blocks; its tokens are computed again when it comes back."""
        self._running.remove(request)
        self._kv.release(request.blocks)
        self._drop_row(request)
        request.computed = 0
        request.drafts = []
        request.preemptions += 1
        bisect.insort(self._waiting, request, key=_order)
        log.debug("preempted", request=request.id, tokens=len(request.tokens))
        return request

    def _drop_row(self, request: Request) -> None:
        if request.known_blocks is not None:
            request.known_blocks = None
            self._removed.append(request.id)

    def _add_row(self, step: _Step, request: Request, count: int) -> None:
        """Plan `count` tokens of a request, and drafts behind them as far as there is room."""
        start, tokens = request.computed, request.tokens
        end = start + count
        token_ids = tokens[start:end]
        num_logits = 0
        if end == len(tokens):
            num_logits = 1
            if request.drafts:
                drafts = self._drafts(request, step.budget - count)
                token_ids += drafts
                num_logits += len(drafts)
        table = request.blocks.table
        known, request.known_blocks = request.known_blocks, len(table)
        if known is None:
            known = 0
            step.added.append(self._new_row(request))
        new_blocks = table[known:] if known < len(table) else _NONE
        targets = _NONE
        if request.wants_prompt_logprobs:
            targets = tokens[start + 1 : min(end + 1, request.num_prompt)]
        step.rows.append(PlanRow(request.id, start, token_ids, new_blocks, num_logits, targets))
        step.requests.append(request)
        step.budget -= len(token_ids)

    def _drafts(self, request: Request, room: int) -> list[int]:
        """Return the drafts of a request that can be computed without taking anyone's place."""
        drafts = request.drafts[:room]
        if not drafts or not self._kv.grow(request.blocks, len(request.tokens) + len(drafts)):
            return []
        request.drafted_tokens += len(drafts)
        return drafts

    def _new_row(self, request: Request) -> NewRow:
        return NewRow(
            request.id,
            request.params,
            request.seed,
            request.sample,
            request.num_prompt,
            request.tokens[: request.computed] if request.penalised else [],
        )

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self._config.max_num_batched_tokens
        assert len(plan.rows) <= self._config.max_num_seqs
        for row in plan.rows:
            request = self._by_id[row.id]
            covered = len(request.blocks.table) * self._config.block_size
            assert row.token_ids, f"{row.id}: empty row"
            assert row.start == request.computed
            assert covered >= row.start + len(row.token_ids)


def _share(request: Request, budget: int) -> int:
    """Return how many tokens of a request are computed in this step.

    With the end of a prompt goes its last token, though it waits for the grammar: that may be there
    when the forward is over, and else the token is computed again.
    """
    debt = request.debt()
    if debt > budget:
        return budget
    return debt + 1 if request.compiling and 0 < debt < budget else debt


def _order(request: Request) -> tuple[int, float, int]:
    return request.order
