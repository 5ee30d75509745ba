"""The engine: one loop over scheduler, grammars and executor.

    step: drain inbox -> schedule -> launch forward -> fill masks meanwhile -> sample -> commit

Everything here runs on the loop thread.  Other threads reach it only through `inbox`, which also
wakes it: with nothing to compute, `step` blocks there, so an idle engine uses no CPU.
"""

from __future__ import annotations

import heapq
import queue
import random
import time

import msgspec

from structgen import logs
from structgen.config import ResolvedConfig
from structgen.engine.kv import KVManager
from structgen.engine.request import Request
from structgen.engine.scheduler import Scheduler
from structgen.errors import (
    DuplicateRequest,
    InternalError,
    InvalidRequest,
    StructgenError,
    to_wire,
)
from structgen.grammar.compiler import Compiled
from structgen.grammar.manager import Casualty, GrammarManager
from structgen.messages import Abort, EngineOutput, EngineRequest, FinishReason, Shutdown
from structgen.plan import Executor, PlanRow, StepPlan

log = logs.get(__name__)

Inbound = EngineRequest | Abort | Compiled | Shutdown


class StepTimes(msgspec.Struct):
    """Seconds of one step: the device's, the mask's, and what of the mask the device waited for."""

    rows: int
    forward_s: float
    sample_s: float
    mask_s: float
    wait_s: float
    step_s: float


class EngineCore:
    """executor, grammars: already built.  inbox: shared with the threads that feed the engine.

    eos_ids: what ends an answer unless ignore_eos.  overlap False fills masks before the forward
    is launched, which is only good for measuring what overlap gains.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        executor: Executor,
        grammars: GrammarManager,
        inbox: queue.SimpleQueue[Inbound],
        *,
        eos_ids: frozenset[int],
        salt: bytes = b"",
        overlap: bool = True,
    ) -> None:
        self.inbox = inbox
        self.running = True
        self.last_step: StepTimes | None = None
        self._config = config
        self._executor = executor
        self._grammars = grammars
        self._eos_ids = eos_ids
        self._overlap = overlap
        self._kv = KVManager(
            config.num_blocks, config.block_size, prefix_caching=config.prefix_caching, salt=salt
        )
        self.scheduler = Scheduler(config, self._kv)
        self._deadlines: list[tuple[float, str]] = []
        self._sequence = 0
        self._outputs: list[EngineOutput] = []

    def step(self) -> list[EngineOutput]:
        """Run one step, or wait for work if there is none; return what there is to report."""
        self._drain_inbox()
        self._end_overdue()
        plan = self.scheduler.schedule()
        if plan.rows:
            self._run(plan)
        elif not self._outputs and self.running:
            self._wait()
        return self._take_outputs()

    def check(self) -> None:
        """Assert the invariants that hold between steps."""
        self.scheduler.check()
        waiting = sum(request.compiling for request in self.scheduler.requests())
        assert waiting == self._grammars.num_waiting

    @property
    def num_free_blocks(self) -> int:
        return self._kv.num_free

    def close(self) -> None:
        self._grammars.close()
        self._executor.close()

    # -- one step ---------------------------------------------------------------------------

    def _run(self, plan: StepPlan) -> None:
        began = time.perf_counter()
        sampled = [self._request(row) for row in plan.rows if row.num_logits]
        if self._overlap:
            self._executor.execute_model(plan)
        mask_began = time.perf_counter()
        mask, casualties = self._grammars.fill(sampled)
        mask_s = time.perf_counter() - mask_began
        if not self._overlap:
            self._executor.execute_model(plan)
        result = self._executor.sample_tokens(mask)
        # Before anything is committed: a request aborted during the forward gets no more tokens.
        self._drain_inbox()
        for casualty in casualties:
            self._bury(casualty)
        for row, output in zip(plan.rows, result.rows, strict=True):
            self._commit(row, output.token_ids, output.error)
        self.last_step = StepTimes(
            len(sampled),
            result.forward_s,
            result.sample_s,
            mask_s,
            result.wait_s if self._overlap else mask_s,
            time.perf_counter() - began,
        )
        if self._config.check:
            self.check()

    def _commit(self, row: PlanRow, tokens: list[int], error: str) -> None:
        request = self.scheduler.get(row.id)
        if request is None:  # aborted or ended meanwhile; its blocks are released
            return
        self.scheduler.paid(request, row)
        if error:
            self._fail(request, InternalError(error))
        elif tokens:
            self._append(request, tokens)

    def _append(self, request: Request, tokens: list[int]) -> None:
        """Advance grammar and request by sampled tokens and report them."""
        first = request.first_token_at is None
        if first:
            request.first_token_at = time.monotonic()
        before = len(request.tokens)
        try:
            for token in tokens:
                if self._append_one(request, token):
                    break
        except StructgenError as error:
            self._fail(request, error)
            return
        new_ids = request.tokens[before:]
        if request.finish is not None:
            self._finish(request, new_ids)
        else:
            self._outputs.append(
                EngineOutput(
                    request.id,
                    new_ids,
                    accepting=request.accepting,
                    stats=request.stats() if first else None,
                )
            )

    def _append_one(self, request: Request, token: int) -> bool:
        is_stop = token in request.stop_ids
        complete = not is_stop and self._grammars.accept(request, token)
        ended = request.append(token)
        if complete:
            request.finish = FinishReason.CONSTRAINT_COMPLETE
        return ended or complete

    # -- beginnings and ends ----------------------------------------------------------------

    def _drain_inbox(self) -> None:
        while True:
            try:
                self._handle(self.inbox.get_nowait())
            except queue.Empty:
                return

    def _wait(self) -> None:
        """Block until a message comes or a request's time is up."""
        timeout = max(0.0, self._deadlines[0][0] - time.monotonic()) if self._deadlines else None
        try:
            self._handle(self.inbox.get(timeout=timeout))
        except queue.Empty:
            return

    def _handle(self, message: Inbound) -> None:
        match message:
            case EngineRequest():
                self._add(message)
            case Abort(ids=ids):
                for request_id in ids:
                    self._abort(request_id)
            case Compiled():
                for request_id, error in self._grammars.land(message):
                    self._fail(self._by_id(request_id), error)
            case Shutdown():
                self.running = False

    def _add(self, message: EngineRequest) -> None:
        self._sequence += 1
        try:
            request = self._admit(message)
            self._grammars.submit(request)
        except StructgenError as error:
            self._outputs.append(
                EngineOutput(message.id, [], finish=FinishReason.ERROR, error=to_wire(error))
            )
            return
        self.scheduler.add(request)
        if request.deadline is not None:
            heapq.heappush(self._deadlines, (request.deadline, request.id))

    def _admit(self, message: EngineRequest) -> Request:
        capacity = self._config.context_length
        if message.id in self.scheduler:
            raise DuplicateRequest(f"request {message.id!r} is running", field="input.request_id")
        if not 0 < len(message.prompt_ids) < capacity:
            raise InvalidRequest(
                f"the prompt must have 1 to {capacity - 1} tokens, got {len(message.prompt_ids)}",
                field="input.prompt",
            )
        seed = message.params.seed
        return Request(
            message,
            sequence=self._sequence,
            seed=random.getrandbits(63) if seed is None else seed,
            eos_ids=self._eos_ids,
            capacity=capacity,
        )

    def _abort(self, request_id: str) -> None:
        request = self.scheduler.get(request_id)
        if request is not None:
            self._forget(request)

    def _end_overdue(self) -> None:
        """End what has run out of time, with the answer so far."""
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            deadline, request_id = heapq.heappop(self._deadlines)
            request = self.scheduler.get(request_id)
            if request is not None and request.deadline == deadline:  # else an earlier namesake's
                request.finish = FinishReason.TIME_LIMIT
                self._finish(request, [])

    def _bury(self, casualty: Casualty) -> None:
        request = self.scheduler.get(casualty.request_id)
        if request is None:
            return
        if casualty.error is not None:
            self._fail(request, casualty.error)
            return
        request.finish = FinishReason.DEAD_END
        self._finish(request, [], detail=casualty.detail)

    def _finish(self, request: Request, new_ids: list[int], detail: str = "") -> None:
        self._outputs.append(
            EngineOutput(
                request.id,
                new_ids,
                finish=request.finish,
                accepting=request.accepting,
                stop_id=request.stop_id,
                stats=request.stats(),
                detail=detail,
            )
        )
        self._forget(request)

    def _fail(self, request: Request, error: StructgenError) -> None:
        """End one request with an error; its neighbours go on."""
        if isinstance(error, InternalError):
            log.error("request failed", request=request.id, error=error.message)
        self._outputs.append(
            EngineOutput(
                request.id,
                [],
                finish=FinishReason.ERROR,
                stats=request.stats(),
                error=to_wire(error),
            )
        )
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self._grammars.forget(request)
        self.scheduler.remove(request)

    def _request(self, row: PlanRow) -> Request:
        return self._by_id(row.id)

    def _by_id(self, request_id: str) -> Request:
        request = self.scheduler.get(request_id)
        assert request is not None, f"{request_id} is not here"
        return request

    def _take_outputs(self) -> list[EngineOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs
