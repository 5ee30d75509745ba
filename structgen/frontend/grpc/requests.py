"""One request as a client makes it: what is sent, and how what comes back is read."""

from __future__ import annotations

import json
from typing import Generic, Protocol, Self, TypedDict, TypeVar

import msgspec

from structgen.constraints import Constraint, ConstraintId, JsonObject, JsonSchema
from structgen.errors import InvalidRequest
from structgen.frontend.answer import ConstraintStatus
from structgen.frontend.arguments import (
    AnyConstraint,
    AnyPrompt,
    constrain,
    to_constraint,
    to_prompt,
)
from structgen.frontend.grpc import convert, results
from structgen.frontend.grpc._pb import constraint_service_pb2, generation_service_pb2
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.logprobs import PositionLogprobs
from structgen.frontend.outputs import RequestOutput
from structgen.frontend.usage import Timings, Usage
from structgen.messages import ConstraintInfo, FinishReason
from structgen.params import SamplingParams


class SchemaModel(Protocol):
    """What is used of a Pydantic model class."""

    @classmethod
    def model_json_schema(cls) -> dict[str, object]: ...

    @classmethod
    def model_validate_json(cls, json_data: str) -> Self: ...


T = TypeVar("T")
Model = TypeVar("Model", bound=SchemaModel)


SentConstraint = AnyConstraint | ConstraintId


class Options(TypedDict, total=False):
    """What may be said about a request besides prompt, params and constraint.

    token_ids: report them.  timeout_s: the call's deadline; the answer is lost, unlike with
    `SamplingParams.time_limit_s`.  The others: see GenerationInput.
    """

    request_id: str
    priority: int
    special_tokens: bool
    token_ids: bool
    timeout_s: float | None


class Completion(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A complete answer.

    parsed: of a text that obeys its JSON constraint: the model's instance, or plain JSON data; None
    if that was given by its id, as only the server knows what it is.
    verified: the server's validator, independent of what enforces the constraint, agrees that it
    does; `constraint` says what became of the keywords of a schema.
    closed_by_budget: the last tokens were chosen to complete the text before a limit cut it.
    constraint_start: where in the text the constraint begins, in bytes of UTF-8, if it waited for a
    marker (`constraint_after`) and that came; `parsed` is of what is behind.
    logprobs, by token, and prompt_logprobs, by token of the prompt with None for the first, are
    there if asked for.  others: the answers of index 1 and up, if n was above 1; `samples` are all.
    usage and timings are those of the request, the same in all.
    """

    request_id: str
    index: int
    text: str
    parsed: T | None
    finish_reason: FinishReason
    constraint_status: ConstraintStatus
    verified: bool
    closed_by_budget: bool
    constraint_start: int | None
    token_ids: list[int]
    logprobs: list[PositionLogprobs]
    prompt_logprobs: list[PositionLogprobs | None]
    usage: Usage | None
    timings: Timings | None
    constraint: ConstraintInfo | None
    stop_id: int | None
    stop_string: str | None
    detail: str
    others: list[Completion[T]] = []

    @property
    def samples(self) -> list[Completion[T]]:
        return [self, *self.others]


def check_request(constraint: SentConstraint) -> constraint_service_pb2.CheckConstraintRequest:
    message = convert.constraint_to_wire(_sent(constraint))
    return constraint_service_pb2.CheckConstraintRequest(constraint=message)


def check_text_request(
    constraint: SentConstraint, text: str
) -> constraint_service_pb2.CheckTextRequest:
    """Raises InvalidRequest: the text holds a lone surrogate."""
    message = convert.constraint_to_wire(_sent(constraint))
    try:
        return constraint_service_pb2.CheckTextRequest(constraint=message, text=text)
    except ValueError as error:
        raise InvalidRequest(f"the text cannot be sent: {error}", field="text") from None


def _sent(constraint: SentConstraint) -> Constraint | ConstraintId:
    return constraint if isinstance(constraint, ConstraintId) else to_constraint(constraint)


class Request:
    """What is sent for one prompt, and how the answer to it is read."""

    def __init__(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None,
        constraint: SentConstraint | None,
        options: Options,
    ) -> None:
        given, id = (
            (None, constraint.id) if isinstance(constraint, ConstraintId) else (constraint, "")
        )
        params = constrain(params or SamplingParams(), given)
        self._message = convert.to_wire(
            GenerationInput(
                prompt=to_prompt(prompt),
                params=params,
                request_id=options.get("request_id", ""),
                priority=options.get("priority", 0),
                special_tokens=options.get("special_tokens", False),
                constraint_id=id,
            )
        )
        self._message.response.token_ids = options.get("token_ids", False)
        self._model: type[SchemaModel] | None = constraint if isinstance(constraint, type) else None
        self._is_json = isinstance(params.constraint, JsonSchema | JsonObject)
        self._request_id = ""
        self._constraint: ConstraintInfo | None = None
        self.timeout_s = options.get("timeout_s")

    def unary(self) -> generation_service_pb2.GenerateRequest:
        return generation_service_pb2.GenerateRequest(input=self._message)

    def streaming(self) -> generation_service_pb2.StreamGenerateRequest:
        return generation_service_pb2.StreamGenerateRequest(input=self._message)

    def piece(self, event: generation_service_pb2.StreamGenerateResponse) -> RequestOutput:
        """Restore a piece; only the first event has the id and the constraint, so remember them."""
        output = results.from_event(event)
        self._request_id = output.request_id or self._request_id
        self._constraint = output.constraint or self._constraint
        return msgspec.structs.replace(
            output,
            request_id=self._request_id,
            constraint=self._constraint if output.usage is not None else None,
        )

    def completion(self, response: generation_service_pb2.GenerateResponse) -> Completion[object]:
        """Restore the first answer, with the others in it."""
        first, *others = map(self._completion, results.from_response(response))
        return msgspec.structs.replace(first, others=others) if others else first

    def _completion(self, answer: RequestOutput) -> Completion[object]:
        finish = answer.finish
        assert finish is not None
        parses = self._is_json and finish.constraint_status is ConstraintStatus.COMPLETE
        return Completion(
            request_id=answer.request_id,
            index=answer.index,
            text=answer.text,
            parsed=self._parse(finish.constrained(answer.text)) if parses else None,
            finish_reason=finish.reason,
            constraint_status=finish.constraint_status,
            verified=finish.verified,
            closed_by_budget=finish.closed_by_budget,
            constraint_start=finish.constraint_start,
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            prompt_logprobs=answer.prompt_logprobs,
            usage=answer.usage,
            timings=answer.timings,
            constraint=answer.constraint,
            stop_id=finish.stop_id,
            stop_string=finish.stop_string,
            detail=finish.detail,
        )

    def _parse(self, text: str) -> object:
        return json.loads(text) if self._model is None else self._model.model_validate_json(text)
