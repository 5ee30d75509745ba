"""Where constraints are compiled: in this process, or where a bad one can be killed."""

from __future__ import annotations

from typing import Protocol

from structgen.constraints import Constraint
from structgen.grammar import jobs
from structgen.grammar.choosing import Backends, Chosen
from structgen.grammar.jobs import Job, Result
from structgen.trace import Trace


class Workshop(Protocol):
    """Any thread may call these."""

    def compile(self, constraint: Constraint) -> Chosen:
        """Compile for use in this process.

        Raises ConstraintError: it cannot be enforced.  ConstraintTooLarge, LimitExceeded: not
        within its limits, ever or this time.  InternalError: a library crashed over it.
        """

    def perform(self, job: Job) -> Result:
        """Raises LimitExceeded, InternalError: as above."""

    def close(self) -> None:
        """End what is running.  Idempotent."""


class LocalWorkshop:
    """In the calling thread, without limits: for programs whose constraints are their own."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends

    def compile(self, constraint: Constraint) -> Chosen:
        return self._backends.explored(self._backends.compile(constraint))

    def perform(self, job: Job) -> Result:
        return jobs.perform(job, self._backends)

    def close(self) -> None:
        pass


class TracedWorkshop:
    """Another one, whose work is recorded."""

    def __init__(self, inner: Workshop, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace

    def compile(self, constraint: Constraint) -> Chosen:
        with self._trace.span("compile"):
            return self._inner.compile(constraint)

    def perform(self, job: Job) -> Result:
        with self._trace.span(jobs.name_of(job)):
            return self._inner.perform(job)

    def close(self) -> None:
        self._inner.close()
