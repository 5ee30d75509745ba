"""Constraints are tried in another process first, under limits of time and memory.

What has gone well there is compiled again here, where it is used: natively, at the cost that has
proved bounded, without the rewriting.  A worker that is lost costs its job alone; another takes its
place, forked off the template, and if need be a new template.

The streams beside a job are not to blame for it.  Most jobs are soon over, and somebody waits for
their first token: they run at once, one after the other.  One that takes longer goes on with what
the engine and others leave of the processors, or, where that is next to nothing, takes turns.
"""

from __future__ import annotations

import signal
import threading
import time

from structgen import logs
from structgen.constraints import Constraint, JsonSchema
from structgen.errors import InternalError, LimitExceeded, StructgenError, from_wire
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.crew import Crew, Place
from structgen.grammar.jobs import Compile, Job, Result, field_of_job, name_of, recipe_of
from structgen.grammar.turns import Turns
from structgen.grammar.worker_process import EXIT_OUT_OF_MEMORY, Ended, Limits, Reply, out_of_memory
from structgen.grammar.workers import (
    TemplateLost,
    TemplateProcess,
    WorkerLost,
    WorkerProcess,
    WorkerStarved,
)

log = logs.get(__name__)

PATIENCE_S = 0.02  # most jobs take some milliseconds
LONG_S = 0.05
LONG_IN_TURNS_S = 1.0  # the same, of a small part of a processor
MAX_ASIDE = 4  # long jobs that short ones do not wait for
SCARCE_S = 30.0  # for so long, what starved a worker may starve others

# It touches what most constraints touch.
REHEARSAL = Compile(
    JsonSchema(
        """{"type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20, "description": "of whom?"},
                "kind": {"enum": ["one", "other", null]},
                "code": {"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"},
                "day": {"type": "string", "format": "date"},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1}},
            "required": ["name", "parts"],
            "$defs": {"part": {
                "anyOf": [{"type": "integer", "minimum": 0, "maximum": 130}, {"type": "boolean"}]}}}
        """
    )
)

# What a process does to itself; by any other signal it is ended from outside.
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


class IsolatedWorkshop:
    """Does as many jobs at a time as it has workers, and some long ones besides.  Thread-safe."""

    def __init__(
        self,
        template: TemplateProcess,
        backends: Backends,
        limits: Limits,
        *,
        num_workers: int,
    ) -> None:
        """template: opened, over the same vocabulary as backends, those of this process."""
        self._template = template
        self._backends = backends
        self._limits = limits
        self._closed = False
        self._lock = threading.Lock()  # of _template, _closed and _live
        self._live: set[WorkerProcess] = set()
        self._young = threading.Lock()  # held by the one job that has just begun
        self._turns = Turns()
        self._aside = threading.BoundedSemaphore(MAX_ASIDE)
        self._scarce_until = 0.0  # of time.monotonic
        self._crew = Crew(num_workers, self._rehearsed, self._dismiss)

    def warm_up(self) -> None:
        """Wait until all workers are there."""
        self._crew.fill()

    def compile(self, constraint: Constraint) -> Chosen:
        return self._backends.build(recipe_of(self.perform(Compile(constraint))))

    def perform(self, job: Job) -> Result:
        worker: WorkerProcess | None = None
        place = Place(self._crew, self._aside)
        try:
            worker = self._require_alive(place.take())
            try:
                reply = self._do(worker, job, place)
            except WorkerStarved:
                log.warning("other programs leave compiling hardly any time of the processors")
                self._scarce_until = time.monotonic() + SCARCE_S
                self._dismiss(worker)
                worker = None
                worker = self._hire()
                reply = self._do(worker, job, place)
            if reply.last or worker.is_lowest or place.is_aside:
                self._dismiss(worker)
                worker = None
            return reply.result
        except WorkerLost as loss:
            assert worker is not None
            self._dismiss(worker)
            worker = None
            raise self._explain(loss, job) from None
        except TemplateLost as loss:
            raise LimitExceeded(f"nothing can be compiled at the moment: {loss}") from None
        finally:
            place.leave(worker)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            live = list(self._live)
        for worker in live:
            worker.kill()
            self._end(worker)
        self._crew.close()
        self._turns.close()
        self._template.close()

    def _do(self, worker: WorkerProcess, job: Job, place: Place) -> Reply:
        """Raises WorkerLost, WorkerStarved."""
        with self._young:
            worker.begin(job)
            is_over = worker.answers_within(PATIENCE_S)
        if is_over:
            return worker.finish()
        if time.monotonic() < self._scarce_until or not worker.lower():
            with self._turns.taken_by(worker):
                if not worker.answers_within(LONG_IN_TURNS_S):
                    place.step_aside()
                return worker.finish()
        if not worker.answers_within(LONG_S - PATIENCE_S):
            place.step_aside()
            worker.require_time()
        return worker.finish()

    def _require_alive(self, worker: WorkerProcess | None) -> WorkerProcess:
        """Raises TemplateLost: there is none, and no way to have one."""
        if worker is not None and worker.alive:
            return worker
        if worker is not None:
            log.warning("a compile worker was lost while idle")
            self._dismiss(worker)
        return self._hire()

    def _hire(self) -> WorkerProcess:
        """Raises TemplateLost: another template is of no use either, or all is over."""
        with self._lock:
            if self._closed:
                raise TemplateLost("the engine is shutting down")
            try:
                worker = self._template.fork(self._limits)
            except TemplateLost as loss:
                log.warning("the compile template was lost, starting another", reason=str(loss))
                self._template.close()
                self._template = TemplateProcess.spawn()
                self._template.open(self._backends.vocabulary, self._limits)
                worker = self._template.fork(self._limits)
            self._live.add(worker)
        return worker

    def _rehearsed(self) -> WorkerProcess | None:
        """Return a new worker that has done a job, None: there is no way to have one."""
        try:
            worker = self._hire()
        except TemplateLost:
            return None  # the next job says so, if it is still true then
        try:
            with self._young:
                worker.begin(REHEARSAL)
                worker.answers_within(PATIENCE_S)
            worker.finish()
        except WorkerLost:
            pass  # whoever takes it will find out
        return worker

    def _dismiss(self, worker: WorkerProcess) -> None:
        """Have a worker end, without waiting: at lowest priority that may take a while."""
        threading.Thread(target=self._end, args=(worker,), daemon=True).start()

    def _end(self, worker: WorkerProcess) -> None:
        worker.end()
        with self._lock:
            self._live.discard(worker)

    def _explain(self, loss: WorkerLost, job: Job) -> StructgenError:
        """Return what a lost worker means for its job: nothing else was in that process."""
        field, limit_s = field_of_job(job), self._limits.time_s
        code = loss.end.exit_code if loss.end else None
        if code == -signal.SIGPROF:
            return LimitExceeded(
                f"{name_of(job)} takes more than compile_time_s, {limit_s:g} s",
                field=field,
            )
        if loss.overdue is not None:
            return LimitExceeded(
                f"{name_of(job)} takes too long on a busy machine: in {loss.overdue.clock_s:.1f} s "
                f"it had {loss.overdue.processor_s:.2f} s of a processor (compile_time_s is "
                f"{limit_s:g} s)",
                field=field,
            )
        if loss.end and _ran_out_of_memory(loss.end):
            return from_wire(out_of_memory(job, self._limits).error)
        if code is not None and -code in _CRASHES:
            log.error("a constraint crashed a library", end=loss.end)
            name = signal.Signals(-code).name
            return InternalError(f"{name_of(job)} crashed a library ({name})", field=field)
        log.warning("a compile worker was lost", end=loss.end)
        return LimitExceeded(f"the process that was {name_of(job)} was lost", field=field)


def _ran_out_of_memory(end: Ended) -> bool:
    """Rust's allocator says so and aborts."""
    aborted = end.exit_code == -signal.SIGABRT and "memory allocation" in end.last_words
    return aborted or end.exit_code == EXIT_OUT_OF_MEMORY
