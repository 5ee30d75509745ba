"""What a request consumes and where its time goes, over all its answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from structgen.messages import ConstraintInfo, EngineOutput, EngineRequest, RequestStats


class Usage(msgspec.Struct, frozen=True):
    """Counters of a request so far, all its answers together.

    prompt_tokens are computed once for all answers; cached_tokens: those of them whose KV was
    found.  forwards are counted for each answer.  forced_tokens: of the completion_tokens, those
    that took no forward to be chosen, since the constraint left no choice.  drafted_tokens: guesses
    that forwards were given to verify; accepted_tokens: those that were right.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forwards: int
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Timings(msgspec.Struct, frozen=True):
    """Seconds so far.  time_to_first_token counts from arrival at the front end.

    decode: from the first token to the last of all answers.
    """

    queue: float
    compile: float
    prefill: float
    decode: float
    time_to_first_token: float


class Meter:
    """Reads the counters of one request off its engine outputs."""

    __slots__ = ("_arrival", "_clock", "_constraint", "_first_token_at", "_num_ids", "_stats")

    def __init__(self, request: EngineRequest, clock: Callable[[], float]) -> None:
        self._arrival = request.arrival
        self._clock = clock
        self._first_token_at: float | None = None
        self._num_ids = 0
        self._constraint: ConstraintInfo | None = None
        # By sample.  The first one has computed the prompt, and stands for the request in this.
        self._stats = {0: RequestStats(prompt_tokens=len(request.prompt_ids))}

    def read(self, output: EngineOutput, num_ids: int) -> None:
        """Take over the counters of `output`, of whose ids num_ids count."""
        if output.new_ids and self._first_token_at is None:
            self._first_token_at = self._clock()
        self._num_ids += num_ids
        if output.stats is not None:
            self._stats[output.index] = output.stats
            self._constraint = self._constraint or output.stats.constraint

    def usage(self) -> Usage:
        first = self._stats[0]
        forwards = sum(stats.forwards for stats in self._stats.values())
        return Usage(
            first.prompt_tokens,
            first.cached_tokens,
            self._num_ids,
            forwards,
            forced_tokens=sum(stats.forced_tokens for stats in self._stats.values()),
            drafted_tokens=sum(stats.drafted_tokens for stats in self._stats.values()),
            accepted_tokens=sum(stats.accepted_tokens for stats in self._stats.values()),
        )

    def timings(self) -> Timings:
        first, constraint = self._stats[0], self.constraint
        began = self._first_token_at
        return Timings(
            queue=first.queue_s,
            compile=constraint.compile_s if constraint is not None else 0.0,
            prefill=first.prefill_s,
            decode=max(stats.decode_s for stats in self._stats.values()),
            time_to_first_token=began - self._arrival if began is not None else 0.0,
        )

    @property
    def constraint(self) -> ConstraintInfo | None:
        """How the constraint is enforced, as far as it is known."""
        return self._constraint
