"""The engine: one loop over scheduler, grammars and executor.

    step: drain inbox -> schedule -> launch forward -> fill masks meanwhile -> sample -> commit

A forward that ends a prompt samples behind it even if the constraint still compiles: there is time
until it is over.  If that was not enough, the last token is computed again once it has compiled.
Where nobody else is there, compiling has a head start.

Everything here runs on the loop thread.  Other threads reach it only through `inbox`, which also
wakes it: with nothing to compute, `step` blocks there, so an idle engine uses no CPU.
"""

from __future__ import annotations

import heapq
import queue
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from structgen import logs
from structgen.config import ResolvedConfig
from structgen.engine.answers import Answers
from structgen.engine.drafts import Drafter, Drafts
from structgen.engine.head_start import HeadStart
from structgen.engine.kv import KVManager
from structgen.engine.request import Request
from structgen.engine.scheduler import Scheduler
from structgen.engine.step_cost import has_prompt
from structgen.engine.telling import Telling
from structgen.errors import (
    DuplicateRequest,
    InternalError,
    InvalidRequest,
    StructgenError,
)
from structgen.grammar.checks import Judged
from structgen.grammar.compiler import Compiled
from structgen.grammar.manager import GrammarManager
from structgen.grammar.masks import Casualty, Place, is_restricted
from structgen.logprobs import TokenLogprobs
from structgen.messages import (
    Abort,
    Check,
    Checked,
    EngineOutput,
    EngineRequest,
    FinishReason,
    Shutdown,
)
from structgen.plan import Executor, PlanRow, RowOutput, StepPlan
from structgen.trace import OFF, Trace

log = logs.get(__name__)


class ForwardOver(msgspec.Struct, frozen=True):
    """The forward of a step has ended."""

    step: int


Inbound = EngineRequest | Check | Abort | Compiled | Judged | ForwardOver | Shutdown


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

    eos_ids: what ends an answer unless ignore_eos.  drafters: who guesses at what comes next.
    head_start_s: how long a forward may wait for constraints if it is for nobody else.
    seconds_per_output: how long to hold back what goes on (telling.py), for each that does.
    say: set by who can report in the midst of a step.  clock: steps are timed by it, in seconds.
    overlap False fills masks before the forward is launched, which is only good for measuring what
    overlap gains; it may change between steps.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        executor: Executor,
        grammars: GrammarManager,
        inbox: queue.SimpleQueue[Inbound],
        *,
        eos_ids: frozenset[int],
        drafters: Sequence[Drafter] = (),
        salt: bytes = b"",
        head_start_s: float = 0.0,
        seconds_per_output: float = 0.0,
        overlap: bool = True,
        trace: Trace = OFF,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.inbox = inbox
        self.running = True
        self.say: Callable[[list[EngineOutput]], None] | None = None
        self.last_step: StepTimes | None = None
        self._config = config
        self._executor = executor
        self._grammars = grammars
        self._eos_ids = eos_ids
        self._trace = trace
        self._clock = clock
        self._head_start = HeadStart(head_start_s)
        self.overlap = overlap
        self._kv = KVManager(config.num_blocks, config.block_size, salt=salt)
        self.scheduler = Scheduler(config, self._kv)
        drafts = Drafts(drafters)
        self._step_cost = drafts.cost
        self._answers = Answers(self.scheduler, grammars, drafts)
        self._deadlines: list[tuple[float, str]] = []
        self._samples: dict[str, list[Request]] = {}  # by message id, those that have not ended
        self._sequence = 0
        self._telling = Telling(seconds_per_output, clock)
        self._checked: list[Checked] = []

    def step(self, meanwhile: Callable[[], None] = lambda: None) -> list[EngineOutput]:
        """Run one step, or wait for work if there is none; return what there is to report.

        meanwhile: called once the device has something to do, or there is nothing for it.
        """
        with self._trace.span("inbox"):
            self._drain_inbox()
            self._end_overdue()
        if self._head_start.left_s(self.scheduler.requests()):
            meanwhile()
            with self._trace.span("head start"):
                self._wait_for_compiles()
            return self._tell()
        with self._trace.span("schedule"):
            plan = self.scheduler.schedule()
        if plan.rows:
            self._run(plan, meanwhile)
        else:
            meanwhile()
            if not self._telling and not self._checked and self.running:
                with self._trace.span("idle"):
                    self._wait()
        return self._tell()

    def take_checked(self) -> list[Checked]:
        """Return the checks that were answered since the last call."""
        checked, self._checked = self._checked, []
        return checked

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

    def _run(self, plan: StepPlan, meanwhile: Callable[[], None]) -> None:
        began = self._clock()
        requests = self.scheduler.planned
        places = _places(plan, requests)
        compiling = _compiling(plan, requests) if self._grammars.num_waiting else []
        over = ForwardOver(plan.step)
        if self.overlap:
            notify = partial(self.inbox.put, over) if compiling else None
            with self._trace.span("launch"):
                self._executor.execute_model(plan, notify)
        meanwhile()
        lengths = [len(row.token_ids) for row in plan.rows]
        if self.say is not None and has_prompt(lengths):
            self.say(self._tell(held_back=True))  # the step may take long
        mask_began = self._clock()
        with self._trace.span("masks", rows=len(places)):
            mask, casualties = self._grammars.masks.fill(
                places, partial(self._await, compiling, over) if self.overlap else None
            )
        mask_s = self._clock() - mask_began
        unmasked = {request.id for request in compiling if request.compiling}
        if not self.overlap:
            self._executor.execute_model(plan)
        with self._trace.span("join"):
            result = self._executor.sample_tokens(mask)
        with self._trace.span("commit", rows=len(plan.rows)):
            # First of all: a request aborted during the forward gets no more tokens.
            self._drain_inbox()
            lost = {casualty.request_id: casualty for casualty in casualties}
            for request, row, output in zip(requests, plan.rows, result.rows, strict=True):
                if not request.gone:  # aborted or ended meanwhile; its blocks are released
                    masked = row.id not in unmasked
                    self._commit(request, row, output, lost.get(row.id), masked=masked)
        step_s = self._clock() - began
        if not compiling:  # else it may have waited for that
            self._step_cost.took(lengths, step_s)
        self.last_step = StepTimes(
            len(plan.rows),
            result.forward_s,
            result.sample_s,
            mask_s,
            result.wait_s if self.overlap else mask_s,
            step_s,
        )
        if self._config.check:
            self.check()

    def _tell(self, *, held_back: bool = False) -> list[EngineOutput]:
        """Return what there is to say.  held_back: also what might be said a little later."""
        return self._telling.take(self.scheduler.requests(), held_back=held_back)

    def _await(self, compiling: list[Request], over: ForwardOver) -> None:
        """Wait for the constraints of these requests until the forward is over.

        What an answer begins with by force is said at once.
        """
        message: Inbound | None = None
        with self._trace.span("await compile"):
            while message != over and any(one.compiling and not one.gone for one in compiling):
                message = self.inbox.get()
                self._handle(message)
                if self._telling and self.say is not None:
                    self.say(self._tell())

    def _wait_for_compiles(self) -> None:
        """Let constraints compile before the next forward, while that may wait."""
        while self.running and (left_s := self._head_start.left_s(self.scheduler.requests())):
            try:
                self._handle(self.inbox.get(timeout=left_s))
            except queue.Empty:
                return

    def _commit(
        self,
        request: Request,
        row: PlanRow,
        output: RowOutput,
        casualty: Casualty | None,
        *,
        masked: bool,
    ) -> None:
        """masked: what was sampled, if anything, was sampled under the request's constraint."""
        debt = self.scheduler.paid(request, row)
        if output.prompt_logprobs:
            _keep_prompt_logprobs(request, row.start, output.prompt_logprobs)
        if debt > 0:  # of a prompt, or of what was forced since the forward was launched
            return
        if not masked:
            self.scheduler.redo(request)
        elif output.error:
            self._fail(request, InternalError(output.error))
        elif output.token_ids or casualty is not None:
            self._append(request, row, output, casualty)

    def _append(
        self, request: Request, row: PlanRow, output: RowOutput, casualty: Casualty | None
    ) -> None:
        """Advance grammar and request by sampled tokens and report them."""
        before = len(request.tokens)
        try:
            fate = self._answers.take(request, row, output.token_ids, casualty)
        except StructgenError as error:
            self._fail(request, error)
            return
        if output.logprobs:
            request.untold_logprobs += output.logprobs[: len(request.tokens) - before]
        if fate is not None:
            self._bury(request, fate)
        elif request.finish is not None:
            self._end(request)
        elif request.is_urgent() and len(request.tokens) > before:
            self._telling.tell(request)

    def _end(self, request: Request, detail: str = "") -> None:
        """Tell how an answer has ended, and forget its request."""
        self._telling.tell(request, detail)
        self._answers.ended(request)
        self._forget(request)

    def _begin(self, request: Request) -> None:
        """Report what an answer begins with whatever is sampled, once its constraint is ready."""
        if request.params.prompt_logprobs is not None:
            return  # they come with the first tokens, and take a forward
        before = len(request.tokens)
        try:
            self._answers.begin(request)
        except StructgenError as error:
            self._fail(request, error)
            return
        if request.finish is not None:
            self._end(request)
        elif len(request.tokens) > before:
            self._telling.tell(request)

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
            case Abort(ids=ids, samples=samples):
                for message_id in ids:
                    self._abort(message_id)
                    self._grammars.forget_check(message_id)
                for message_id, sample in samples:
                    self._abort(message_id, sample)
            case Check():
                self._checked += self._grammars.checks.submit(message)
            case Judged():
                self._checked += self._grammars.checks.judged(message)
            case Compiled():
                for request_id, error in self._grammars.land(message):
                    request = self.scheduler.get(request_id)
                    if request is None:  # its first sample has failed it already
                        continue
                    if error is None:
                        self._begin(request)
                    else:
                        self._fail(request, error)
                self._checked += self._grammars.checks.land(message)
            case ForwardOver():
                pass  # it was waited for, if at all
            case Shutdown():
                self.running = False

    def _add(self, message: EngineRequest) -> None:
        try:
            self._check(message)
        except StructgenError as error:
            self._telling.refuse(message.id, error)
            return
        seed = message.params.seed
        seed = random.getrandbits(63) if seed is None else seed
        leader: Request | None = None
        self._samples[message.id] = []
        for sample in range(message.params.n):
            request = self._new_request(message, sample, seed, leader)
            leader = leader or request
            self._samples[message.id].append(request)
            self.scheduler.add(request)
            try:
                self._grammars.submit(request)
            except StructgenError as error:
                self._fail(request, error)
                return
        if leader is not None and leader.deadline is not None:
            heapq.heappush(self._deadlines, (leader.deadline, message.id))
        if len(self._samples) == 1:
            self._head_start.begin()
        for request in list(self._samples[message.id]):
            if request.matcher is not None and not request.gone:
                self._begin(request)

    def _check(self, message: EngineRequest) -> None:
        capacity = self._config.context_length
        if message.id in self._samples:
            raise DuplicateRequest(f"request {message.id!r} is running", field="input.request_id")
        if not 0 < len(message.prompt_ids) < capacity:
            raise InvalidRequest(
                f"the prompt must have 1 to {capacity - 1} tokens, got {len(message.prompt_ids)}",
                field="input.prompt",
            )

    def _new_request(
        self, message: EngineRequest, sample: int, seed: int, leader: Request | None
    ) -> Request:
        self._sequence += 1
        return Request(
            message,
            sequence=self._sequence,
            seed=seed,
            eos_ids=self._eos_ids,
            capacity=self._config.context_length,
            sample=sample,
            leader=leader,
        )

    def _abort(self, message_id: str, sample: int | None = None) -> None:
        """Forget a request that is here, or one of its samples."""
        for request in list(self._samples.get(message_id, ())):
            if sample is None or request.sample == sample:
                self._forget(request)

    def _end_overdue(self) -> None:
        """End what has run out of time, with the answer so far."""
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            deadline, message_id = heapq.heappop(self._deadlines)
            for request in list(self._samples.get(message_id, ())):
                if request.deadline == deadline:  # else an earlier namesake's
                    self._end_in_time(request)

    def _end_in_time(self, request: Request) -> None:
        try:
            self._answers.complete(request, FinishReason.TIME_LIMIT)
        except StructgenError as error:
            self._fail(request, error)
        else:
            self._end(request)

    def _bury(self, request: Request, casualty: Casualty) -> None:
        """End a request that no token is left to."""
        if casualty.error is not None:
            self._fail(request, casualty.error)
            return
        request.finish = FinishReason.DEAD_END
        self._end(request, casualty.detail)

    def _fail(self, request: Request, error: StructgenError) -> None:
        """End a request, with all its samples, by an error; its neighbours go on."""
        if isinstance(error, InternalError):
            log.error("request failed", request=request.message_id, error=error.message)
        self._telling.fail(request, error)
        self._abort(request.message_id)

    def _forget(self, request: Request) -> None:
        samples = self._samples[request.message_id]
        samples.remove(request)
        if not samples:
            del self._samples[request.message_id]
        self._grammars.forget(request)
        self.scheduler.remove(request)


def _compiling(plan: StepPlan, requests: list[Request]) -> list[Request]:
    """Return whose constraint is not there yet, of those that the step samples."""
    return [
        request
        for request, row in zip(requests, plan.rows, strict=True)
        if row.num_logits and request.compiling
    ]


def _places(plan: StepPlan, requests: list[Request]) -> list[Place]:
    """Return where the step samples under a mask, in the order of the logits.

    requests: of the plan's rows.
    """
    places: list[Place] = []
    logit = 0
    for request, row in zip(requests, plan.rows, strict=True):
        if row.num_logits and (request.compiling or is_restricted(request)):
            places.append(Place(request, logit, row.drafts))
        logit += row.num_logits
    return places


def _keep_prompt_logprobs(request: Request, start: int, logprobs: list[TokenLogprobs]) -> None:
    """Keep the logprobs of the tokens from start + 1 on; again, if they were preempted."""
    kept = request.prompt_logprobs or [None]
    request.prompt_logprobs = [*kept[: start + 1], *logprobs]
