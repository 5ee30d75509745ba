"""EngineOutput -> RequestOutput: tokens become text, stop strings end it, errors become exceptions.

OutputProcessor.process is the only loop over engine outputs.  Invariants: the pieces of an answer
concatenate to its text, ids and log probabilities; each of a request's n answers gets exactly one
last piece, or the request one failure, and nothing after it; what arrives for a request or an
answer that is gone is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from structgen.errors import InternalError, StructgenError, from_wire
from structgen.frontend.answer import Answer, Finish
from structgen.frontend.logprobs import PositionLogprobs, Speller
from structgen.frontend.usage import Meter, Timings, Usage
from structgen.messages import Abort, ConstraintInfo, EngineOutput, EngineRequest, FinishReason


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A piece of one of a request's answers: `text`, `token_ids` and `logprobs` are what is new.

    `text` may be empty beside new ids: characters or a possible stop string are incomplete.  The id
    that completed a stop string is part of token_ids, a stop id is not.  `logprobs` has one entry
    for each id, if asked for.  `prompt_logprobs` comes whole with the first piece of answer 0; its
    first entry is None.

    `usage` and `timings` are the request's so far; they come with an answer's first piece and its
    last, `constraint` with the same if there is one.
    """

    request_id: str
    index: int = 0
    text: str
    token_ids: list[int]
    logprobs: list[PositionLogprobs] = []
    prompt_logprobs: list[PositionLogprobs | None] = []
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
        logprobs=[position for output in outputs for position in output.logprobs],
        prompt_logprobs=[position for output in outputs for position in output.prompt_logprobs],
        usage=with_usage.usage,
        timings=with_usage.timings,
        constraint=with_usage.constraint,
    )


def merge_answers(outputs: Iterable[RequestOutput]) -> list[RequestOutput]:
    """Join all pieces of a request into its answers, by index; each tells what all consumed."""
    pieces: dict[int, list[RequestOutput]] = {}
    total: RequestOutput | None = None
    for output in outputs:
        pieces.setdefault(output.index, []).append(output)
        total = output if output.usage is not None else total
    answers = [merge(pieces[index]) for index in sorted(pieces)]
    if total is None:
        return answers
    return [
        msgspec.structs.replace(answer, usage=total.usage, timings=total.timings)
        for answer in answers
    ]


class Batch(msgspec.Struct, gc=False):
    """What one round of engine outputs came to.

    failures: request id and error of requests that ended without an answer.  abort_ids,
    abort_samples: engine ids, and single samples, that are over although the engine goes on.
    """

    outputs: list[RequestOutput] = []
    failures: list[tuple[str, StructgenError]] = []
    abort_ids: list[str] = []
    abort_samples: list[tuple[str, int]] = []

    @property
    def abort(self) -> Abort | None:
        """What to tell the engine, if anything."""
        if self.abort_ids or self.abort_samples:
            return Abort(self.abort_ids, self.abort_samples)
        return None


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
        self._speller = Speller(token_bytes)
        self._clock = clock
        self._requests: dict[str, _Request] = {}

    def __len__(self) -> int:
        """Return the number of requests that are not over."""
        return len(self._requests)

    def add(self, request: EngineRequest, request_id: str) -> None:
        """Expect outputs of `request`; they will be given out under `request_id`."""
        assert request.id not in self._requests, f"engine id {request.id!r} is in use"
        self._requests[request.id] = _Request(
            request_id,
            {
                index: Answer(request.params, self._token_bytes, request.marker())
                for index in range(request.params.n)
            },
            Meter(request, self._clock),
        )

    def discard(self, engine_id: str) -> bool:
        """Forget a request.  True if it was not over, so the engine must be told."""
        return self._requests.pop(engine_id, None) is not None

    def clear(self) -> list[str]:
        """Forget all requests and return their engine ids."""
        ids = list(self._requests)
        self._requests.clear()
        return ids

    def process(self, outputs: Sequence[EngineOutput]) -> Batch:
        batch = Batch()
        for output in outputs:
            request = self._requests.get(output.id)
            if request is not None:
                self._process(request, output, batch)
        return batch

    def _process(self, request: _Request, output: EngineOutput, batch: Batch) -> None:
        error = self._error(output)
        if error is not None:
            del self._requests[output.id]
            batch.failures.append((request.request_id, error))
            if output.finish is not FinishReason.ERROR:  # then the engine goes on
                batch.abort_ids.append(output.id)
        elif output.index in request.answers:
            self._answer(request, output, batch)

    def _error(self, output: EngineOutput) -> StructgenError | None:
        """Return what makes the request fail, if anything."""
        if output.error is not None:
            return from_wire(output.error)
        if output.finish is FinishReason.ERROR:
            return InternalError(f"the engine gave no reason: {output.detail}")
        size = len(self._token_bytes)
        wrong = [id for id in output.new_ids if not 0 <= id < size]
        return InternalError(f"token id {wrong[0]} is not in [0, {size})") if wrong else None

    def _answer(self, request: _Request, output: EngineOutput, batch: Batch) -> None:
        piece = request.read(output, self._speller)
        batch.outputs.append(piece)
        if piece.finish is None:
            return
        del request.answers[output.index]
        if not request.answers:
            del self._requests[output.id]
        if output.finish is not None:  # then the engine knows
            return
        if request.answers:
            batch.abort_samples.append((output.id, output.index))
        else:
            batch.abort_ids.append(output.id)


class _Request(msgspec.Struct, gc=False):
    """A request that is not over.  answers: those that are not, by index.  begun: of which
    something was said.
    """

    request_id: str
    answers: dict[int, Answer]
    meter: Meter
    begun: set[int] = msgspec.field(default_factory=set)

    def read(self, output: EngineOutput, speller: Speller) -> RequestOutput:
        text, ids, finish = self.answers[output.index].read(output)
        self.meter.read(output, len(ids))
        begins = output.stats is not None and output.index not in self.begun
        self.begun.add(output.index)
        piece = RequestOutput(
            request_id=self.request_id,
            index=output.index,
            text=text,
            token_ids=ids,
            logprobs=speller.spell(output.logprobs[: len(ids)]),
            prompt_logprobs=speller.spell_prompt(output.prompt_logprobs),
            finish=finish,
        )
        if finish is None and not begins:
            return piece
        return msgspec.structs.replace(
            piece,
            usage=self.meter.usage(),
            timings=self.meter.timings(),
            constraint=self.meter.constraint,
        )
