"""Checks: what comes of a constraint, and of a text under it, without a request.

    submit ──compile, unless it is known──► land ──judge, if there is a text──► judged

Each of the three returns the answers that are complete then.  Loop thread only, but for `_judge`,
which waits for verdicts on a thread of its own, as one may take a second.  Constraints are compiled
as those of requests are, by the same compiler, so that each finds ready what the other asked for;
texts are judged where strangers' constraints are tried, out of the way of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from structgen.constraints import Constraint
from structgen.errors import LimitExceeded, StructgenError, WireError, to_wire
from structgen.grammar import judging
from structgen.grammar.compiler import Compiled, Compiler
from structgen.grammar.jobs import Judge, verdict_of
from structgen.grammar.workshop import Workshop
from structgen.messages import Check, Checked, TextVerdict


class Judged(msgspec.Struct, frozen=True):
    """What came of a text: exactly one of `verdict` and `error` is set."""

    check_id: str
    verdict: TextVerdict | None = None
    error: WireError | None = None


class Checks:
    """post(judged): hand an outcome to the loop thread, which then calls `judged`.

    max_pending: texts that may be under way, waiting for their turn included.
    """

    def __init__(
        self,
        compiler: Compiler,
        workshop: Workshop,
        post: Callable[[Judged], None],
        *,
        max_pending: int,
    ) -> None:
        self._compiler = compiler
        self._workshop = workshop
        self._post = post
        self._max_pending = max_pending
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="judge")
        self._waiting: dict[Constraint, dict[str, Check]] = {}  # for a compile, by id
        self._judging: dict[str, _Judging] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) + len(self._judging)

    def wait_for(self, constraint: Constraint) -> bool:
        """Whether a check waits for a constraint to be compiled."""
        return constraint in self._waiting

    def submit(self, check: Check) -> list[Checked]:
        compiled = self._compiler.get(check.constraint)
        if compiled is not None:
            return self._go_on(check, compiled, cached=True)
        try:
            self._compiler.start(check.constraint)
        except StructgenError as error:
            return [Checked(check.id, error=to_wire(error))]
        self._waiting.setdefault(check.constraint, {})[check.id] = check
        return []

    def land(self, compiled: Compiled) -> list[Checked]:
        """Go on with the checks that waited for a compile, once the compiler has taken it back."""
        return [
            checked
            for check in self._waiting.pop(compiled.constraint, {}).values()
            for checked in self._go_on(check, compiled, cached=False)
        ]

    def judged(self, judged: Judged) -> list[Checked]:
        waiting = self._judging.pop(judged.check_id, None)
        if waiting is None:  # abandoned
            return []
        if judged.error is not None:
            return [Checked(judged.check_id, error=judged.error)]
        return [msgspec.structs.replace(waiting.answer, verdict=judged.verdict)]

    def forget(self, check_id: str) -> Constraint | None:
        """Drop a check, if it is here; return a constraint that no check waits for any more."""
        waiting = self._judging.pop(check_id, None)
        if waiting is not None:
            waiting.future.cancel()  # one that has begun is soon over
            return None
        for constraint, checks in self._waiting.items():
            if checks.pop(check_id, None) is not None:
                if checks:
                    return None
                del self._waiting[constraint]
                return constraint
        return None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _go_on(self, check: Check, compiled: Compiled, *, cached: bool) -> list[Checked]:
        """Answer a check whose constraint has compiled, or have its text judged."""
        try:
            info = compiled.info(check.constraint, cached=cached)
            chosen = compiled.require()
            if check.text is not None:
                self._require_room()
        except StructgenError as error:
            return [Checked(check.id, error=to_wire(error))]
        answer = Checked(check.id, info, compiled.size_bytes)
        if check.text is None:
            return [answer]
        future = self._pool.submit(self._judge, check.id, Judge(chosen.recipe, check.text))
        self._judging[check.id] = _Judging(answer, future)
        return []

    def _require_room(self) -> None:
        if len(self._judging) >= self._max_pending:
            raise LimitExceeded(
                f"at most {self._max_pending} texts may wait to be judged (compile_queue)",
                field=judging.FIELD,
            )

    def _judge(self, check_id: str, job: Judge) -> None:
        try:
            verdict = verdict_of(self._workshop.perform(job))
        except Exception as error:  # whatever a library throws is this check's misfortune
            self._post(Judged(check_id, error=to_wire(error)))
        else:
            self._post(Judged(check_id, verdict))


class _Judging(msgspec.Struct, frozen=True):
    """A check whose text is being judged.  answer: all but the verdict."""

    answer: Checked
    future: Future[None]
