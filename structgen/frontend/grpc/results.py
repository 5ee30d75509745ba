"""RequestOutput of the front end <-> answers on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.duration_pb2 import Duration

from structgen.constraints import Backend
from structgen.frontend.answer import ConstraintStatus, Finish
from structgen.frontend.checks import ConstraintCheck
from structgen.frontend.grpc._pb import (
    constraint_pb2,
    constraint_service_pb2,
    generation_pb2,
    generation_service_pb2,
    model_service_pb2,
)
from structgen.frontend.logprobs import PositionLogprobs, TokenLogprob
from structgen.frontend.outputs import RequestOutput
from structgen.frontend.usage import Timings, Usage
from structgen.keywords import KeywordReport, Treatment
from structgen.messages import ConstraintInfo, FinishReason, ModelInfo, TextVerdict

_REASONS: dict[FinishReason, generation_pb2.FinishReason.ValueType] = {
    reason: generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}")
    for reason in FinishReason
    if reason is not FinishReason.ERROR  # answered by an error status
}
_STATUSES = {
    status: generation_pb2.ConstraintStatus.Value(f"CONSTRAINT_STATUS_{status.name}")
    for status in ConstraintStatus
}
_BACKENDS = {
    backend.value: constraint_pb2.Backend.Value(f"BACKEND_{backend.name}")
    for backend in Backend
    if backend is not Backend.AUTO  # no answer: the one that was chosen is
}
_TREATMENTS = {
    treatment: constraint_pb2.KeywordReport.Treatment.Value(f"TREATMENT_{treatment.name}")
    for treatment in Treatment
}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}
_STATUSES_BACK = {number: status for status, number in _STATUSES.items()}
_BACKENDS_BACK = {number: name for name, number in _BACKENDS.items()}
_TREATMENTS_BACK = {number: treatment for treatment, number in _TREATMENTS.items()}


# ---- front end -> wire


def to_response(
    answers: Sequence[RequestOutput], options: generation_pb2.ResponseOptions
) -> generation_service_pb2.GenerateResponse:
    """Build the answer to a finished request: its whole answers, by index."""
    first = answers[0]
    return generation_service_pb2.GenerateResponse(
        request_id=first.request_id,
        completions=[_whole_completion(answer, options) for answer in answers],
        usage=_usage(first.usage),
        timings=_timings(first.timings),
        constraint=_constraint(first.constraint),
        prompt_logprobs=_all_logprobs(first.prompt_logprobs),
    )


def to_started(output: RequestOutput) -> generation_service_pb2.StreamGenerateResponse:
    return generation_service_pb2.StreamGenerateResponse(
        started=generation_service_pb2.Started(
            request_id=output.request_id,
            usage=_usage(output.usage),
            constraint=_constraint(output.constraint),
            prompt_logprobs=_all_logprobs(output.prompt_logprobs),
        )
    )


def to_delta(
    output: RequestOutput, options: generation_pb2.ResponseOptions
) -> generation_service_pb2.StreamGenerateResponse | None:
    """Build the event for new text or tokens; None if there is nothing to tell."""
    wants_ids = bool(output.token_ids) and options.token_ids
    if not output.text and not wants_ids and not output.logprobs:
        return None
    event = generation_service_pb2.StreamGenerateResponse()
    delta = event.delta  # filled where it is: that takes a third of building and copying it
    delta.index = output.index
    delta.text = output.text
    if wants_ids:
        delta.token_ids.extend(output.token_ids)
    if output.logprobs:
        delta.logprobs.extend(_all_logprobs(output.logprobs))
    return event


def to_finished(output: RequestOutput) -> generation_service_pb2.StreamGenerateResponse:
    return generation_service_pb2.StreamGenerateResponse(
        finished=generation_service_pb2.Finished(
            completion=_completion(output),
            usage=_usage(output.usage),
            timings=_timings(output.timings),
        )
    )


def to_model_info(model: ModelInfo) -> model_service_pb2.GetModelInfoResponse:
    """Build the public part of a ModelInfo: where the server keeps its files is not."""
    return model_service_pb2.GetModelInfoResponse(
        name=model.name,
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
        eos_token_ids=model.eos_ids,
        num_parameters=model.num_parameters,
        dtype=model.dtype,
        kv_dtype=model.kv_dtype,
        quantization=model.quantization,
        device=model.device,
        attention=model.attention,
        block_size=model.block_size,
        num_blocks=model.num_blocks,
    )


def to_checked_constraint(
    check: ConstraintCheck,
) -> constraint_service_pb2.CheckConstraintResponse:
    return constraint_service_pb2.CheckConstraintResponse(
        constraint=_constraint(check.constraint), size_bytes=check.size_bytes
    )


def to_checked_text(check: ConstraintCheck) -> constraint_service_pb2.CheckTextResponse:
    verdict = check.verdict
    assert verdict is not None, "no text was judged"
    return constraint_service_pb2.CheckTextResponse(
        accepted=verdict.accepted,
        prefix=verdict.is_prefix,
        error_offset=verdict.error_offset,
        expected=verdict.expected,
        may_end=verdict.may_end,
    )


def _whole_completion(
    answer: RequestOutput, options: generation_pb2.ResponseOptions
) -> generation_pb2.Completion:
    completion = _completion(answer)
    completion.text = answer.text
    completion.logprobs.extend(_all_logprobs(answer.logprobs))
    if options.token_ids:
        completion.token_ids.extend(answer.token_ids)
    return completion


def _completion(output: RequestOutput) -> generation_pb2.Completion:
    """Build what is known of an answer when it ends, without its text and tokens."""
    finish = output.finish
    assert finish is not None, f"{output.request_id} has not finished"
    completion = generation_pb2.Completion(
        index=output.index,
        finish_reason=_REASONS[finish.reason],
        constraint_status=_STATUSES[finish.constraint_status],
        verified=finish.verified,
        closed_by_budget=finish.closed_by_budget,
        detail=finish.detail,
        constraint_start=finish.constraint_start,
    )
    if finish.stop_id is not None:
        completion.stop_token_id = finish.stop_id
    elif finish.stop_string is not None:
        completion.stop_string = finish.stop_string
    return completion


def _all_logprobs(
    positions: Iterable[PositionLogprobs | None],
) -> list[generation_pb2.TokenLogprobs]:
    return [_logprobs(position) for position in positions]


def _logprobs(position: PositionLogprobs | None) -> generation_pb2.TokenLogprobs:
    if position is None:
        return generation_pb2.TokenLogprobs()
    return generation_pb2.TokenLogprobs(
        token=_logprob(position.token),
        top=[_logprob(token) for token in position.top],
        constraint_mass=position.constraint_mass,
    )


def _logprob(token: TokenLogprob) -> generation_pb2.Logprob:
    return generation_pb2.Logprob(
        token_id=token.token_id,
        logprob=token.logprob,
        text=token.text,
        token_bytes=token.token_bytes,
    )


def _usage(usage: Usage | None) -> generation_pb2.Usage | None:
    if usage is None:
        return None
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        forwards=usage.forwards,
        forced_tokens=usage.forced_tokens,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
    )


def _timings(timings: Timings | None) -> generation_pb2.Timings | None:
    if timings is None:
        return None
    return generation_pb2.Timings(
        queue=_duration(timings.queue),
        compile=_duration(timings.compile),
        prefill=_duration(timings.prefill),
        decode=_duration(timings.decode),
        time_to_first_token=_duration(timings.time_to_first_token),
    )


def _constraint(info: ConstraintInfo | None) -> constraint_pb2.ConstraintInfo | None:
    if info is None:
        return None
    return constraint_pb2.ConstraintInfo(
        backend=_BACKENDS[info.backend],
        keywords=[
            constraint_pb2.KeywordReport(
                json_pointer=report.pointer,
                keyword=report.keyword,
                treatment=_TREATMENTS[report.treatment],
            )
            for report in info.keywords
        ],
        compile_time=_duration(info.compile_s),
        cached=info.cached,
        constraint_id=info.key,
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


# ---- wire -> front end


def from_response(response: generation_service_pb2.GenerateResponse) -> list[RequestOutput]:
    """Restore a finished request's answers, by index.

    What belongs to the request is in each of them, except prompt_logprobs, which the first has.
    """
    constrained = response.HasField("constraint")
    return [
        RequestOutput(
            request_id=response.request_id,
            index=completion.index,
            text=completion.text,
            token_ids=list(completion.token_ids),
            logprobs=[_logprobs_back(position) for position in completion.logprobs],
            prompt_logprobs=_prompt_logprobs_back(response.prompt_logprobs)
            if completion.index == 0
            else [],
            finish=_finish_back(completion),
            usage=_usage_back(response.usage),
            timings=_timings_back(response.timings),
            constraint=_constraint_back(response.constraint) if constrained else None,
        )
        for completion in response.completions
    ]


def from_event(event: generation_service_pb2.StreamGenerateResponse) -> RequestOutput:
    """Restore one piece of an answer.  Only Started knows the request's id and the constraint."""
    match event.WhichOneof("event"):
        case "started":
            return _started_back(event.started)
        case "delta":
            return _delta_back(event.delta)
        case _:
            return _finished_back(event.finished)


def from_checked_constraint(
    response: constraint_service_pb2.CheckConstraintResponse,
) -> ConstraintCheck:
    return ConstraintCheck(
        constraint=_constraint_back(response.constraint), size_bytes=response.size_bytes
    )


def from_checked_text(response: constraint_service_pb2.CheckTextResponse) -> TextVerdict:
    offset = response.error_offset if response.HasField("error_offset") else None
    return TextVerdict(offset, response.may_end, list(response.expected))


def _started_back(started: generation_service_pb2.Started) -> RequestOutput:
    return RequestOutput(
        request_id=started.request_id,
        text="",
        token_ids=[],
        prompt_logprobs=_prompt_logprobs_back(started.prompt_logprobs),
        usage=_usage_back(started.usage),
        constraint=_constraint_back(started.constraint) if started.HasField("constraint") else None,
    )


def _delta_back(delta: generation_service_pb2.Delta) -> RequestOutput:
    return RequestOutput(
        request_id="",
        index=delta.index,
        text=delta.text,
        token_ids=list(delta.token_ids),
        logprobs=[_logprobs_back(position) for position in delta.logprobs],
    )


def _finished_back(finished: generation_service_pb2.Finished) -> RequestOutput:
    return RequestOutput(
        request_id="",
        index=finished.completion.index,
        text="",
        token_ids=[],
        finish=_finish_back(finished.completion),
        usage=_usage_back(finished.usage),
        timings=_timings_back(finished.timings),
    )


def _finish_back(completion: generation_pb2.Completion) -> Finish:
    matched = completion.WhichOneof("matched")
    return Finish(
        reason=_REASONS_BACK[completion.finish_reason],
        constraint_status=_STATUSES_BACK[completion.constraint_status],
        stop_id=completion.stop_token_id if matched == "stop_token_id" else None,
        stop_string=completion.stop_string if matched == "stop_string" else None,
        detail=completion.detail,
        verified=completion.verified,
        closed_by_budget=completion.closed_by_budget,
        constraint_start=(
            completion.constraint_start if completion.HasField("constraint_start") else None
        ),
    )


def _prompt_logprobs_back(
    positions: Iterable[generation_pb2.TokenLogprobs],
) -> list[PositionLogprobs | None]:
    return [
        _logprobs_back(position) if position.HasField("token") else None for position in positions
    ]


def _logprobs_back(position: generation_pb2.TokenLogprobs) -> PositionLogprobs:
    mass = position.constraint_mass if position.HasField("constraint_mass") else None
    top = [_logprob_back(token) for token in position.top]
    return PositionLogprobs(_logprob_back(position.token), top, mass)


def _logprob_back(token: generation_pb2.Logprob) -> TokenLogprob:
    return TokenLogprob(token.token_id, token.text, token.token_bytes, token.logprob)


def _usage_back(usage: generation_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        forwards=usage.forwards,
        forced_tokens=usage.forced_tokens,
        drafted_tokens=usage.drafted_tokens,
        accepted_tokens=usage.accepted_tokens,
    )


def _timings_back(timings: generation_pb2.Timings) -> Timings:
    return Timings(
        queue=_seconds(timings.queue),
        compile=_seconds(timings.compile),
        prefill=_seconds(timings.prefill),
        decode=_seconds(timings.decode),
        time_to_first_token=_seconds(timings.time_to_first_token),
    )


def _constraint_back(info: constraint_pb2.ConstraintInfo) -> ConstraintInfo:
    return ConstraintInfo(
        backend=_BACKENDS_BACK.get(info.backend, ""),
        compile_s=_seconds(info.compile_time),
        cached=info.cached,
        key=info.constraint_id,
        keywords=[
            KeywordReport(report.json_pointer, report.keyword, _TREATMENTS_BACK[report.treatment])
            for report in info.keywords
        ],
    )


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
