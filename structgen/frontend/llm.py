"""LLM: a list of prompts in, a list of results out, in input order.

The engine runs in this process and in the calling thread: `generate` drives it until the last
answer is there.  A request that fails keeps its place with its error; the others go on.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol, Self, cast

import msgspec
from tqdm import tqdm

from structgen import config, trace
from structgen.config import EngineConfig
from structgen.constraints import Constraint
from structgen.errors import ConfigError, EngineDead, InvalidRequest, StructgenError
from structgen.frontend.answer import Finish
from structgen.frontend.arguments import (
    AnyConstraint,
    AnyPrompt,
    constrain,
    to_constraint,
    to_prompt,
)
from structgen.frontend.inputs import GenerationInput, InputProcessor, Prompt
from structgen.frontend.logprobs import PositionLogprobs
from structgen.frontend.outputs import Batch, OutputProcessor, RequestOutput, merge_answers
from structgen.frontend.usage import Timings, Usage
from structgen.frontend.verdict import Judge, is_complete
from structgen.frontend.verify import Verifiable
from structgen.messages import Abort, ConstraintInfo, EngineOutput, EngineRequest, ModelInfo
from structgen.params import SamplingParams
from structgen.tokenizer import Tokenizer
from structgen.trace import Trace


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer to one prompt, or why there is none.

    With an error the request has failed as a whole; text and ids are what came before it.  Else
    `finish` is set.  logprobs, by token, and prompt_logprobs, by token of the prompt with None for
    the first, are there if asked for.  others: the answers of index 1 and up, if n was above 1;
    `samples` are all.  usage and timings are those of the request, the same in all.
    """

    request_id: str
    index: int = 0
    text: str = ""
    token_ids: list[int] = []
    logprobs: list[PositionLogprobs] = []
    prompt_logprobs: list[PositionLogprobs | None] = []
    finish: Finish | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    constraint: ConstraintInfo | None = None
    error: StructgenError | None = None
    others: list[GenerationResult] = []

    @property
    def samples(self) -> list[GenerationResult]:
        return [self, *self.others]

    def raise_for_error(self) -> Self:
        """Return this result, or raise its error."""
        if self.error is not None:
            raise self.error
        return self


class StepClient(Protocol):
    """An engine that works while it is waited for: `structgen.engine.client.InprocClient`."""

    @property
    def model(self) -> ModelInfo: ...

    def send(self, message: EngineRequest | Abort) -> None: ...

    def step(self) -> list[EngineOutput]: ...

    def close(self) -> None: ...


class LLM:
    """A model for offline use.

        with LLM("smollm2-135m", max_num_seqs=32) as llm:
            results = llm.generate(prompts, SamplingParams(max_tokens=64), constraint=schema)

    One thread at a time may use it.
    """

    def __init__(
        self,
        model: str | Path = "smollm2-135m",
        *,
        client: StepClient | None = None,
        tokenizer: Tokenizer | None = None,
        **options: object,
    ) -> None:
        """options: of EngineConfig.  client, tokenizer: instead of what they say.

        Raises ConfigError: an option is unknown or wrong, the model cannot be loaded, or the trace
        cannot be written.
        """
        self.config = _config(model, options)
        self._trace = trace.begin(self.config.trace, "LLM")
        self._client = client if client is not None else _inproc_client(self.config, self._trace)
        folder = Path(self._client.model.folder)
        self.tokenizer = tokenizer if tokenizer is not None else Tokenizer.load(folder)
        self._inputs = InputProcessor(self.tokenizer, self._client.model)
        self._outputs = OutputProcessor(self.tokenizer.token_bytes)
        self._serials = itertools.count()
        self._judge = Judge()

    @property
    def model(self) -> ModelInfo:
        return self._client.model

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        constraint: AnyConstraint | None = None,
        use_tqdm: bool = True,
    ) -> list[GenerationResult]:
        """Answer each prompt, in input order.

        prompts: a text, a list of token ids or a list of chat messages; or a list of those.
        params: for all, or one for each prompt.  constraint: for all; a mapping or a Pydantic model
        class is a JSON schema.

        Raises InvalidRequest: the arguments do not fit together.  What is wrong with one prompt is
        in its result.  An engine that dies raises.
        """
        inputs = _inputs(_prompts(prompts), params, constraint)
        with tqdm(total=len(inputs), unit="request", disable=not use_tqdm) as bar:
            run = _Run(inputs, bar)
            try:
                self._answer(run)
            finally:  # an exception or Ctrl-C must not leave requests behind
                if abandoned := self._outputs.clear():
                    with contextlib.suppress(EngineDead):
                        self._client.send(Abort(abandoned))
        return run.results(self._judge)

    def _answer(self, run: _Run) -> None:
        while True:
            self._submit(run)
            if not self._outputs:
                return
            outputs = self._client.step()
            with self._trace.span("outputs", outputs=len(outputs)):
                batch = self._outputs.process(outputs)
                if batch.abort is not None:
                    self._client.send(batch.abort)
                run.take(batch)

    def _submit(self, run: _Run) -> None:
        """Send the next requests, as many as the engine may hold (`max_waiting`)."""
        while len(self._outputs) < self.config.max_waiting and (input := run.next()) is not None:
            request_id = str(next(self._serials))
            run.start(request_id, input.params)
            try:
                request = self._inputs.process(
                    msgspec.structs.replace(input, request_id=request_id)
                )
            except StructgenError as error:
                run.take(Batch(failures=[(request_id, error)]))
                continue
            self._client.send(request)
            self._outputs.add(request, request_id)

    def close(self) -> None:
        """Stop the engine and free its memory.  Idempotent."""
        self._client.close()
        self._trace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Run:
    """One call of `generate`: what is still to be sent, and the results by place."""

    def __init__(self, inputs: Sequence[GenerationInput], bar: tqdm[NoReturn]) -> None:
        self._inputs = iter(inputs)
        self._bar = bar
        self._num_tokens = 0
        # In input order: a request has its place from the start.
        self._requests: dict[str, _Request] = {}

    def next(self) -> GenerationInput | None:
        return next(self._inputs, None)

    def start(self, request_id: str, params: SamplingParams) -> None:
        self._requests[request_id] = _Request(params.constraint, params.n)

    def take(self, batch: Batch) -> None:
        for piece in batch.outputs:
            self._take_piece(self._requests[piece.request_id], piece)
        for request_id, error in batch.failures:
            self._end(self._requests[request_id], error)

    def results(self, judge: Judge) -> list[GenerationResult]:
        """Return the results, after the engine's work: nobody waits while answers are judged."""
        return [request.result(id, judge) for id, request in self._requests.items()]

    def _take_piece(self, request: _Request, piece: RequestOutput) -> None:
        request.pieces.append(piece)
        self._num_tokens += len(piece.token_ids)
        request.num_unfinished -= piece.finish is not None
        if not request.num_unfinished:
            self._end(request, None)

    def _end(self, request: _Request, error: StructgenError | None) -> None:
        request.end(error)
        self._bar.set_postfix(tokens=self._num_tokens, refresh=False)
        self._bar.update()


class _Request:
    """One request of a run: its pieces while it runs, then its answers.

    After an error some answers may be missing, the first among them.
    """

    __slots__ = ("_answers", "_constraint", "_error", "num_unfinished", "pieces")

    def __init__(self, constraint: Constraint | None, num_answers: int) -> None:
        self.pieces: list[RequestOutput] = []
        self.num_unfinished = num_answers
        self._constraint = constraint
        self._answers: list[RequestOutput] = []
        self._error: StructgenError | None = None

    def end(self, error: StructgenError | None) -> None:
        self._answers = merge_answers(self.pieces)
        self._error = error
        self.pieces.clear()

    def result(self, request_id: str, judge: Judge) -> GenerationResult:
        samples = [self._sample(answer, judge) for answer in self._answers]
        if not samples or samples[0].index != 0:
            samples.insert(0, GenerationResult(request_id=request_id, error=self._error))
        return msgspec.structs.replace(samples[0], others=samples[1:])

    def _sample(self, answer: RequestOutput, judge: Judge) -> GenerationResult:
        if isinstance(self._constraint, Verifiable) and is_complete(answer):
            assert answer.finish is not None
            text = answer.finish.constrained(answer.text)
            answer = judge.judge(answer, text, self._constraint)
        return GenerationResult(**msgspec.structs.asdict(answer), error=self._error)


# ---- what the caller passed


def _inputs(
    prompts: Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    constraint: AnyConstraint | None,
) -> list[GenerationInput]:
    if params is None:
        params = SamplingParams()
    each = [params] * len(prompts) if isinstance(params, SamplingParams) else list(params)
    if len(each) != len(prompts):
        raise InvalidRequest(
            f"params must be one, or one for each of the {len(prompts)} prompts, got {len(each)}"
        )
    # Once for all: a model class takes a while to make a schema of.
    shared = to_constraint(constraint) if constraint is not None else None
    return [
        GenerationInput(prompt=prompt, params=constrain(own, shared))
        for prompt, own in zip(prompts, each, strict=True)
    ]


def _prompts(prompts: AnyPrompt | Sequence[AnyPrompt]) -> list[Prompt]:
    """Tell one prompt from a list of them by what the list holds."""
    if isinstance(prompts, str):
        return [prompts]
    first = prompts[0] if len(prompts) else ""
    if isinstance(first, Mapping) or not isinstance(first, Sized):  # a message, or an id
        return [to_prompt(cast(AnyPrompt, prompts))]
    return [to_prompt(prompt) for prompt in cast(Sequence[AnyPrompt], prompts)]


# ---- the engine


def _config(model: str | Path, options: Mapping[str, object]) -> EngineConfig:
    if unknown := sorted(set(options) - set(EngineConfig.__struct_fields__)):
        raise ConfigError(f"unknown option {unknown[0]!r}")
    # Its constraints are its caller's own, and a process to try them in takes seconds to start.
    defaults = {"isolate_compile": False}
    return config.load(EngineConfig, defaults | {"model": str(model), **options})


def _inproc_client(engine_config: EngineConfig, trace: Trace) -> StepClient:
    from structgen.engine.client import InprocClient

    return InprocClient(engine_config, trace)
