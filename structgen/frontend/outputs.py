"""EngineOutput -> RequestOutput: tokens become text, stop strings end it, errors become exceptions.

OutputProcessor.process is the only loop over engine outputs.  Invariants: the deltas of a request
concatenate to its final text and ids; a request gets exactly one last word (a final output or a
failure) and nothing after it; what arrives for a request that is gone is dropped.

Stop strings are the front end's: the engine knows no text.  They are looked for token by token, so
that the answer does not depend on how tokens were grouped into steps, and only in the text after
the first `min_tokens` tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from structgen.errors import InternalError, StructgenError, from_wire
from structgen.frontend.detokenizer import Detokenizer
from structgen.frontend.stops import StopScanner
from structgen.messages import (
    ConstraintInfo,
    EngineOutput,
    EngineRequest,
    FinishReason,
    RequestStats,
)
from structgen.params import MAX_STOP_CHARS, SamplingParams


class ConstraintStatus(StrEnum):
    NOT_CONSTRAINED = "not_constrained"
    COMPLETE = "complete"  # the text obeys the constraint as it stands
    INCOMPLETE = "incomplete"  # it is a beginning of such a text
    VIOLATED = "violated"


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ended.

    stop_id, stop_string: what ended it; neither is part of the answer (unless `include_stop`).
    detail: which masks left nothing, when the reason is DEAD_END.
    """

    reason: FinishReason
    constraint_status: ConstraintStatus
    stop_id: int | None = None
    stop_string: str | None = None
    detail: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Counters so far.  cached_tokens: prompt tokens whose KV was found, not computed."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    forwards: int


class Timings(msgspec.Struct, frozen=True):
    """Seconds so far.  time_to_first_token counts from arrival at the front end."""

    queue: float
    compile: float
    prefill: float
    decode: float
    time_to_first_token: float


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one answer: `text` and `token_ids` are what is new.

    `text` may be empty beside new ids: characters or a possible stop string are incomplete.  The id
    that completed a stop string is part of token_ids, a stop id is not.  `usage` and `timings` come
    with the first piece and the last, `constraint` with the same if there is one.
    """

    request_id: str
    index: int = 0
    text: str
    token_ids: list[int]
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    constraint: ConstraintInfo | None = None


def merge(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """Join successive pieces of one answer into one piece."""
    last = outputs[-1]
    with_usage = next((output for output in reversed(outputs) if output.usage is not None), last)
    return msgspec.structs.replace(
        last,
        text="".join([output.text for output in outputs]),
        token_ids=[id for output in outputs for id in output.token_ids],
        usage=with_usage.usage,
        timings=with_usage.timings,
        constraint=with_usage.constraint,
    )


class Batch(msgspec.Struct, gc=False):
    """What one round of engine outputs came to.

    failures: request id and error of requests that ended without an answer.  abort_ids: engine ids
    whose answer is over although the engine goes on with them.
    """

    outputs: list[RequestOutput]
    failures: list[tuple[str, StructgenError]]
    abort_ids: list[str]


class OutputProcessor:
    """The text side of the requests that the engine has.  One thread uses it, no locks.

    Requests are known by their engine id, which no later request may reuse: outputs of an aborted
    request may still be on their way.
    """

    def __init__(
        self, token_bytes: Sequence[bytes], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """clock: the one that `EngineRequest.arrival` was read from."""
        self._token_bytes = token_bytes
        self._clock = clock
        self._answers: dict[str, _Answer] = {}

    def __len__(self) -> int:
        """Return the number of requests whose answer is not over."""
        return len(self._answers)

    def add(self, request: EngineRequest, request_id: str) -> None:
        """Expect outputs of `request`; they will be given out under `request_id`."""
        assert request.id not in self._answers, f"engine id {request.id!r} is in use"
        self._answers[request.id] = _Answer(request, request_id, self._token_bytes, self._clock)

    def discard(self, engine_id: str) -> bool:
        """Forget a request.  True if its answer was not over, so the engine must be told."""
        return self._answers.pop(engine_id, None) is not None

    def clear(self) -> list[str]:
        """Forget all requests and return their engine ids."""
        ids = list(self._answers)
        self._answers.clear()
        return ids

    def process(self, outputs: Sequence[EngineOutput]) -> Batch:
        batch = Batch([], [], [])
        for output in outputs:
            answer = self._answers.get(output.id)
            if answer is not None:
                self._process(answer, output, batch)
        return batch

    def _process(self, answer: _Answer, output: EngineOutput, batch: Batch) -> None:
        piece = answer.read(output)
        failed = output.error is not None or output.finish is FinishReason.ERROR
        if failed and answer.stop_string is None:
            del self._answers[output.id]
            batch.failures.append((answer.request_id, _error(output)))
            return
        if piece.finish is not None:
            del self._answers[output.id]
            if output.finish is None and not failed:
                batch.abort_ids.append(output.id)
        batch.outputs.append(piece)


class _Answer:
    """The answer to one request as far as it has come."""

    __slots__ = (
        "_arrival",
        "_clock",
        "_complete_at",
        "_detokenizer",
        "_first_token_at",
        "_num_ids",
        "_params",
        "_scanner",
        "_stats",
        "request_id",
    )

    def __init__(
        self,
        request: EngineRequest,
        request_id: str,
        token_bytes: Sequence[bytes],
        clock: Callable[[], float],
    ) -> None:
        self.request_id = request_id
        self._params: SamplingParams = request.params
        self._arrival = request.arrival
        self._clock = clock
        self._detokenizer = Detokenizer(token_bytes)
        stops = request.params.stop
        self._scanner = StopScanner(stops, request.params.include_stop) if stops else None
        self._num_ids = 0
        self._stats = RequestStats(prompt_tokens=len(request.prompt_ids))
        self._first_token_at: float | None = None
        # Lengths at which the text obeyed the constraint: a stop may cut it back to one of them.
        self._complete_at: deque[int] = deque(maxlen=MAX_STOP_CHARS + 1)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self._scanner.matched if self._scanner is not None else None

    def read(self, output: EngineOutput) -> RequestOutput:
        """Add the tokens of `output`, up to the one that completes a stop string."""
        if output.new_ids and self._first_token_at is None:
            self._first_token_at = self._clock()
        text, ids = self._push(output.new_ids)
        self._count(output)
        finish = self._finish(output, whole=len(ids) == len(output.new_ids))
        if finish is not None and finish.stop_string is None:
            text += self._flush()
        report = finish is not None or output.stats is not None
        return RequestOutput(
            request_id=self.request_id,
            text=text,
            token_ids=ids,
            finish=finish,
            usage=self._usage() if report else None,
            timings=self._timings() if report else None,
            constraint=self._stats.constraint if report else None,
        )

    def _push(self, new_ids: list[int]) -> tuple[str, list[int]]:
        """Return the text that is certain now, and the ids that count."""
        if self._scanner is None:
            self._num_ids += len(new_ids)
            return self._detokenizer.push(new_ids), new_ids
        pieces: list[str] = []
        for count, id in enumerate(new_ids, 1):
            pieces.append(self._scan(self._scanner, self._detokenizer.push((id,))))
            if self._scanner.matched is not None:
                return "".join(pieces), new_ids[:count]
        return "".join(pieces), new_ids

    def _scan(self, scanner: StopScanner, piece: str) -> str:
        self._num_ids += 1
        if self._num_ids <= self._params.min_tokens:
            return scanner.skip(piece)
        return scanner.push(piece)

    def _flush(self) -> str:
        held = self._scanner.flush() if self._scanner is not None else ""
        return held + self._detokenizer.flush()

    def _finish(self, output: EngineOutput, *, whole: bool) -> Finish | None:
        """whole: all of the output's ids count, so `accepting` speaks of the text seen."""
        scanner = self._scanner
        if scanner is not None and output.accepting and whole:
            self._complete_at.append(scanner.seen)
        if scanner is not None and scanner.matched is not None:
            return Finish(
                reason=FinishReason.STOP_STRING,
                constraint_status=self._status(scanner.released in self._complete_at),
                stop_string=scanner.matched,
            )
        if output.finish is None:
            return None
        ended = output.finish in (FinishReason.STOP, FinishReason.CONSTRAINT_COMPLETE)
        return Finish(
            reason=output.finish,
            constraint_status=self._status(ended or output.accepting),
            stop_id=output.stop_id,
            detail=output.detail,
        )

    def _status(self, complete: bool) -> ConstraintStatus:
        if self._params.constraint is None:
            return ConstraintStatus.NOT_CONSTRAINED
        return ConstraintStatus.COMPLETE if complete else ConstraintStatus.INCOMPLETE

    def _count(self, output: EngineOutput) -> None:
        """Take over the engine's counters, or carry on from the last ones.

        The engine reports at the end, but a stop string is an end it does not know of: where there
        may be one, each output with tokens is taken for one forward.
        """
        if output.stats is not None:
            self._stats = output.stats
        elif self._scanner is not None and self._first_token_at is not None and output.new_ids:
            self._stats = msgspec.structs.replace(
                self._stats,
                forwards=self._stats.forwards + 1,
                decode_s=self._clock() - self._first_token_at,
            )

    def _usage(self) -> Usage:
        stats = self._stats
        return Usage(stats.prompt_tokens, stats.cached_tokens, self._num_ids, stats.forwards)

    def _timings(self) -> Timings:
        stats = self._stats
        first = self._first_token_at
        return Timings(
            queue=stats.queue_s,
            compile=stats.constraint.compile_s if stats.constraint is not None else 0.0,
            prefill=stats.prefill_s,
            decode=stats.decode_s,
            time_to_first_token=first - self._arrival if first is not None else 0.0,
        )


def _error(output: EngineOutput) -> StructgenError:
    if output.error is not None:
        return from_wire(output.error)
    return InternalError(f"the engine gave no reason: {output.detail}")
