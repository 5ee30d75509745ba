"""RequestOutput of the front end <-> answers on the wire."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from structgen.frontend.grpc._pb import (
    constraint_pb2,
    generation_pb2,
    generation_service_pb2,
    model_service_pb2,
)
from structgen.frontend.outputs import ConstraintStatus, Finish, RequestOutput, Timings, Usage
from structgen.messages import ConstraintInfo, FinishReason, ModelInfo

_REASONS: dict[FinishReason, generation_pb2.FinishReason.ValueType] = {
    reason: generation_pb2.FinishReason.Value(f"FINISH_REASON_{reason.name}")
    for reason in FinishReason
    if reason is not FinishReason.ERROR  # answered by an error status
}
_STATUSES = {
    status: generation_pb2.ConstraintStatus.Value(f"CONSTRAINT_STATUS_{status.name}")
    for status in ConstraintStatus
}
_BACKENDS = {"xgrammar": constraint_pb2.BACKEND_XGRAMMAR}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}
_STATUSES_BACK = {number: status for status, number in _STATUSES.items()}
_BACKENDS_BACK = {number: name for name, number in _BACKENDS.items()}


# ---- front end -> wire


def to_response(
    output: RequestOutput, options: generation_pb2.ResponseOptions
) -> generation_service_pb2.GenerateResponse:
    """Build the answer of a whole, finished request."""
    completion = _completion(output)
    completion.text = output.text
    if options.token_ids:
        completion.token_ids.extend(output.token_ids)
    return generation_service_pb2.GenerateResponse(
        request_id=output.request_id,
        completions=[completion],
        usage=_usage(output.usage),
        timings=_timings(output.timings),
        constraint=_constraint(output.constraint),
    )


def to_started(output: RequestOutput) -> generation_service_pb2.StreamGenerateResponse:
    return generation_service_pb2.StreamGenerateResponse(
        started=generation_service_pb2.Started(
            request_id=output.request_id,
            usage=_usage(output.usage),
            constraint=_constraint(output.constraint),
        )
    )


def to_delta(
    output: RequestOutput, options: generation_pb2.ResponseOptions
) -> generation_service_pb2.StreamGenerateResponse | None:
    """Build the event for new text or ids; None if there is nothing to tell."""
    token_ids = output.token_ids if options.token_ids else ()
    if not output.text and not token_ids:
        return None
    delta = generation_service_pb2.Delta(index=output.index, text=output.text, token_ids=token_ids)
    return generation_service_pb2.StreamGenerateResponse(delta=delta)


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
        device=model.device,
        attention=model.attention,
        block_size=model.block_size,
        num_blocks=model.num_blocks,
    )


def _completion(output: RequestOutput) -> generation_pb2.Completion:
    """Build what is known of an answer when it ends, without its text."""
    finish = output.finish
    assert finish is not None, f"{output.request_id} has not finished"
    completion = generation_pb2.Completion(
        index=output.index,
        finish_reason=_REASONS[finish.reason],
        constraint_status=_STATUSES[finish.constraint_status],
        detail=finish.detail,
    )
    if finish.stop_id is not None:
        completion.stop_token_id = finish.stop_id
    elif finish.stop_string is not None:
        completion.stop_string = finish.stop_string
    return completion


def _usage(usage: Usage | None) -> generation_pb2.Usage | None:
    if usage is None:
        return None
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        forwards=usage.forwards,
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
        compile_time=_duration(info.compile_s),
        cached=info.cached,
        constraint_id=info.key,
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


# ---- wire -> front end


def from_response(response: generation_service_pb2.GenerateResponse) -> RequestOutput:
    """Restore a finished request's output, its only answer."""
    completion = response.completions[0]
    return RequestOutput(
        request_id=response.request_id,
        index=completion.index,
        text=completion.text,
        token_ids=list(completion.token_ids),
        finish=_finish_back(completion),
        usage=_usage_back(response.usage),
        timings=_timings_back(response.timings),
        constraint=_constraint_back(response.constraint)
        if response.HasField("constraint")
        else None,
    )


def from_event(event: generation_service_pb2.StreamGenerateResponse) -> RequestOutput:
    """Restore one piece of an answer.  Only Started knows the request's id and the constraint."""
    match event.WhichOneof("event"):
        case "started":
            return _started_back(event.started)
        case "delta":
            delta = event.delta
            return RequestOutput(
                request_id="", index=delta.index, text=delta.text, token_ids=list(delta.token_ids)
            )
        case _:
            return _finished_back(event.finished)


def _started_back(started: generation_service_pb2.Started) -> RequestOutput:
    return RequestOutput(
        request_id=started.request_id,
        text="",
        token_ids=[],
        usage=_usage_back(started.usage),
        constraint=_constraint_back(started.constraint) if started.HasField("constraint") else None,
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
    )


def _usage_back(usage: generation_pb2.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        forwards=usage.forwards,
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
    )


def _seconds(duration: Duration) -> float:
    return duration.ToNanoseconds() / 1e9
