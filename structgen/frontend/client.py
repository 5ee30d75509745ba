"""Client and AsyncClient: a structgen server from Python.

    with Client("127.0.0.1:50051") as client:
        person = client.generate("Ada, 36 years old.", constraint=Person).parsed

What is sent and how answers are read is `Request`, shared by both; the clients only make calls.
Errors are those of structgen.errors, with the path of the field at fault before the message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self, Unpack, overload

import grpc
from grpc_health.v1 import health_pb2

from structgen.errors import EngineDead
from structgen.frontend.arguments import AnyPrompt
from structgen.frontend.checks import ConstraintCheck
from structgen.frontend.grpc import errors, results
from structgen.frontend.grpc._pb import (
    constraint_service_pb2_grpc,
    generation_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
)
from structgen.frontend.grpc.requests import (
    Completion,
    Model,
    Options,
    Request,
    SentConstraint,
    check_request,
    check_text_request,
)
from structgen.frontend.outputs import RequestOutput
from structgen.messages import TextVerdict
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


class Client:
    """A connection to a server.  Any thread may use it."""

    def __init__(self, target: str) -> None:
        self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        self._generation = generation_service_pb2_grpc.GenerationServiceStub(self._channel)
        self._constraints = constraint_service_pb2_grpc.ConstraintServiceStub(self._channel)
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
        constraint: SentConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[object]: ...

    def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: SentConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[Model] | Completion[object]:
        """Answer a prompt.  constraint: a mapping or a Pydantic model class is a JSON schema.

        A ConstraintId stands for a constraint that the server has compiled before.

        With params.n above 1 the first answer is returned; its `samples` are all of them.

        Raises StructgenError: the server's, or EngineDead if it cannot be reached.
        """
        request = Request(prompt, params, constraint, options)
        with _our_errors():
            response = self._generation.Generate(request.unary(), timeout=request.timeout_s)
        return request.completion(response)

    def stream(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: SentConstraint | None = None,
        **options: Unpack[Options],
    ) -> Generator[RequestOutput, None, None]:
        """Answer a prompt in pieces; the last one of each answer has `finish`.

        Closing it early aborts.
        """
        request = Request(prompt, params, constraint, options)
        call = self._generation.StreamGenerate(request.streaming(), timeout=request.timeout_s)
        try:
            with _our_errors():
                for event in call:
                    yield request.piece(event)
        finally:
            call.cancel()

    def check(
        self, constraint: SentConstraint, *, timeout_s: float | None = None
    ) -> ConstraintCheck:
        """Have a constraint compiled: what enforces it, how, and its id for requests to come.

        Raises ConstraintError, Unsupported: it cannot be used, and why.
        """
        request = check_request(constraint)
        with _our_errors():
            response = self._constraints.CheckConstraint(request, timeout=timeout_s)
        return results.from_checked_constraint(response)

    def check_text(
        self, constraint: SentConstraint, text: str, *, timeout_s: float | None = None
    ) -> TextVerdict:
        """Have a text judged by the masks that generation would be under.

        Raises as `check`; InvalidRequest: the text is too long.
        """
        request = check_text_request(constraint, text)
        with _our_errors():
            response = self._constraints.CheckText(request, timeout=timeout_s)
        return results.from_checked_text(response)

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
        self._constraints = constraint_service_pb2_grpc.ConstraintServiceStub(self._channel)
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
        constraint: SentConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[object]: ...

    async def generate(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: SentConstraint | None = None,
        **options: Unpack[Options],
    ) -> Completion[Model] | Completion[object]:
        """As Client.generate; cancelling the task aborts the request."""
        request = Request(prompt, params, constraint, options)
        with _our_errors():
            response = await self._generation.Generate(request.unary(), timeout=request.timeout_s)
        return request.completion(response)

    async def stream(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        constraint: SentConstraint | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[RequestOutput, None]:
        """As Client.stream; hold it in `contextlib.aclosing` if you may leave it early."""
        request = Request(prompt, params, constraint, options)
        call = self._generation.StreamGenerate(request.streaming(), timeout=request.timeout_s)
        try:
            with _our_errors():
                async for event in call:
                    yield request.piece(event)
        finally:
            call.cancel()

    async def check(
        self, constraint: SentConstraint, *, timeout_s: float | None = None
    ) -> ConstraintCheck:
        """As Client.check."""
        request = check_request(constraint)
        with _our_errors():
            response = await self._constraints.CheckConstraint(request, timeout=timeout_s)
        return results.from_checked_constraint(response)

    async def check_text(
        self, constraint: SentConstraint, text: str, *, timeout_s: float | None = None
    ) -> TextVerdict:
        """As Client.check_text."""
        request = check_text_request(constraint, text)
        with _our_errors():
            response = await self._constraints.CheckText(request, timeout=timeout_s)
        return results.from_checked_text(response)

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


@contextmanager
def _our_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise errors.from_call(error) from error
