"""Client and AsyncClient: a structgen server from Python.

    with Client("127.0.0.1:50051") as client:
        person = client.generate("Ada, 36 years old.", constraint=Person).parsed

What is sent and how answers are read is `_Request`, shared by both; the clients only make calls.
Errors are those of structgen.errors, with the path of the field at fault before the message.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, Protocol, Self, TypedDict, TypeVar, Unpack, overload

import grpc
import msgspec
from grpc_health.v1 import health_pb2

from structgen.constraints import JsonObject, JsonSchema
from structgen.errors import EngineDead
from structgen.frontend.arguments import AnyConstraint, AnyPrompt, constrain, to_prompt
from structgen.frontend.grpc import convert, errors, results
from structgen.frontend.grpc._pb import (
    generation_service_pb2,
    generation_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
)
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.outputs import ConstraintStatus, RequestOutput, Timings, Usage
from structgen.messages import ConstraintInfo, FinishReason
from structgen.params import SamplingParams

READY = "structgen.v1.GenerationService"
WATCH = (
    "/grpc.health.v1.Health/Watch",
    health_pb2.HealthCheckRequest.SerializeToString,
    health_pb2.HealthCheckResponse.FromString,
)

CHANNEL_OPTIONS = (
    # The server bounds its messages; a second, lower bound here would only lose answers.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
)


class SchemaModel(Protocol):
    """What is used of a Pydantic model class."""

    @classmethod
    def model_json_schema(cls) -> dict[str, object]: ...

    @classmethod
    def model_validate_json(cls, json_data: str) -> Self: ...


T = TypeVar("T")
Model = TypeVar("Model", bound=SchemaModel)


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

    parsed: of a text that obeys its JSON constraint: the model's instance, or plain JSON data.
    """

    request_id: str
    text: str
    parsed: T | None
    finish_reason: FinishReason
    constraint_status: ConstraintStatus
    token_ids: list[int]
    usage: Usage | None
    timings: Timings | None
    constraint: ConstraintInfo | None
    stop_id: int | None
    stop_string: str | None
    detail: str


class Client:
    """A connection to a server.  Any thread may use it."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._generation = generation_service_pb2_grpc.GenerationServiceStub(self._channel)
        self._model = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._watch = self._channel.unary_stream(*WATCH)

    @overload
    def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: type[Model],
        **options: Unpack[Options],
    ) -> Completion[Model]: ...

    @overload
    def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: AnyConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[object]: ...

    def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: AnyConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[Model] | Completion[object]:
        """Answer a prompt.  constraint: a mapping or a Pydantic model class is a JSON schema.

        Raises StructgenError: the server's, or EngineDead if it cannot be reached.
        """
        request = _Request(prompt, params, constraint, options)
        with _our_errors():
            response = self._generation.Generate(request.unary(), timeout=request.timeout_s)
        return request.completion(results.from_response(response))

    def stream(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: AnyConstraint | None = None,
        **options: Unpack[Options],
    ) -> Generator[RequestOutput, None, None]:
        """Answer a prompt in pieces; the last one has `finish`.  Closing it early aborts."""
        request = _Request(prompt, params, constraint, options)
        call = self._generation.StreamGenerate(request.streaming(), timeout=request.timeout_s)
        try:
            with _our_errors():
                for event in call:
                    yield request.piece(event)
        finally:
            call.cancel()

    def model_info(self) -> model_service_pb2.GetModelInfoResponse:
        with _our_errors():
            return self._model.GetModelInfo(model_service_pb2.GetModelInfoRequest())

    def wait_ready(self, timeout_s: float) -> None:
        """Return once the server takes requests.  Raises DeadlineExceeded: not in time."""
        call = self._watch(_READY_REQUEST, timeout=timeout_s, wait_for_ready=True)
        try:
            with _our_errors():
                for response in call:
                    if _is_ready(response):
                        return
        finally:
            call.cancel()
        raise EngineDead("the server is shutting down")

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """Client, for use in one event loop."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._generation = generation_service_pb2_grpc.GenerationServiceStub(self._channel)
        self._model = model_service_pb2_grpc.ModelServiceStub(self._channel)
        self._watch = self._channel.unary_stream(*WATCH)

    @overload
    async def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: type[Model],
        **options: Unpack[Options],
    ) -> Completion[Model]: ...

    @overload
    async def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: AnyConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[object]: ...

    async def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: AnyConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[Model] | Completion[object]:
        """As Client.generate; cancelling the task aborts the request."""
        request = _Request(prompt, params, constraint, options)
        with _our_errors():
            response = await self._generation.Generate(request.unary(), timeout=request.timeout_s)
        return request.completion(results.from_response(response))

    async def stream(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: AnyConstraint | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[RequestOutput, None]:
        """As Client.stream; hold it in `contextlib.aclosing` if you may leave it early."""
        request = _Request(prompt, params, constraint, options)
        call = self._generation.StreamGenerate(request.streaming(), timeout=request.timeout_s)
        try:
            with _our_errors():
                async for event in call:
                    yield request.piece(event)
        finally:
            call.cancel()

    async def model_info(self) -> model_service_pb2.GetModelInfoResponse:
        with _our_errors():
            return await self._model.GetModelInfo(model_service_pb2.GetModelInfoRequest())

    async def wait_ready(self, timeout_s: float) -> None:
        """As Client.wait_ready."""
        call = self._watch(_READY_REQUEST, timeout=timeout_s, wait_for_ready=True)
        try:
            with _our_errors():
                async for response in call:
                    if _is_ready(response):
                        return
        finally:
            call.cancel()
        raise EngineDead("the server is shutting down")

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


_READY_REQUEST = health_pb2.HealthCheckRequest(service=READY)


def _is_ready(response: health_pb2.HealthCheckResponse) -> bool:
    return response.status == health_pb2.HealthCheckResponse.SERVING


class _Request:
    """One request: what is sent, and how what comes back is read."""

    def __init__(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None,
        constraint: AnyConstraint | None,
        options: Options,
    ) -> None:
        params = constrain(params or SamplingParams(), constraint)
        self._message = convert.to_wire(
            GenerationInput(
                prompt=to_prompt(prompt),
                params=params,
                request_id=options.get("request_id", ""),
                priority=options.get("priority", 0),
                special_tokens=options.get("special_tokens", False),
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

    def completion(self, output: RequestOutput) -> Completion[object]:
        finish = output.finish
        assert finish is not None
        complete = finish.constraint_status is ConstraintStatus.COMPLETE
        return Completion(
            request_id=output.request_id,
            text=output.text,
            parsed=self._parse(output.text) if self._is_json and complete else None,
            finish_reason=finish.reason,
            constraint_status=finish.constraint_status,
            token_ids=output.token_ids,
            usage=output.usage,
            timings=output.timings,
            constraint=output.constraint,
            stop_id=finish.stop_id,
            stop_string=finish.stop_string,
            detail=finish.detail,
        )

    def _parse(self, text: str) -> object:
        return json.loads(text) if self._model is None else self._model.model_validate_json(text)


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise errors.from_call(error) from error
