"""The servicers of structgen.v1: one request, one coroutine, closed with its call.

A client that cancels and a deadline that passes look alike here: grpc cancels the handler's task.
Handlers therefore hold every generator in `aclosing` and write events themselves, because a handler
that yields is not closed when its call is, but whenever it is collected.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import grpc
from grpc_status import rpc_status

from structgen import logs
from structgen.errors import (
    DeadlineExceeded,
    EngineDead,
    InternalError,
    InvalidRequest,
    StructgenError,
)
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.grpc import convert, errors, results
from structgen.frontend.grpc._pb import (
    constraint_service_pb2,
    constraint_service_pb2_grpc,
    generation_pb2,
    generation_service_pb2,
    generation_service_pb2_grpc,
    model_service_pb2,
    model_service_pb2_grpc,
)
from structgen.frontend.outputs import RequestOutput, merge_answers

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]  # not generic at run time

log = logs.get(__name__)


class GenerationService(generation_service_pb2_grpc.GenerationServiceServicer):
    def __init__(self, llm: AsyncLLM, *, max_batch_items: int) -> None:
        self._llm = llm
        self._max_batch_items = max_batch_items

    async def Generate(
        self, request: generation_service_pb2.GenerateRequest, context: Context
    ) -> generation_service_pb2.GenerateResponse:
        async with _Answering(context):
            return await self._answer(request.input)

    async def StreamGenerate(  # type: ignore[override]  # writes, where the stub expects yields
        self,
        request: generation_service_pb2.StreamGenerateRequest,
        context: Context,
    ) -> None:
        async with _Answering(context), self._outputs(request.input) as outputs:
            first = True
            async for output in outputs:
                if first:
                    await context.write(results.to_started(output))
                    first = False
                delta = results.to_delta(output, request.input.response)
                if delta is not None:
                    await context.write(delta)
                if output.finish is not None:
                    await context.write(results.to_finished(output))

    async def BatchGenerate(  # type: ignore[override]  # writes, where the stub expects yields
        self,
        request: generation_service_pb2.BatchGenerateRequest,
        context: Context,
    ) -> None:
        async with _Answering(context):
            self._check_size(request)
            items = [
                asyncio.create_task(self._answer_item(index, item))
                for index, item in enumerate(request.inputs)
            ]
            try:
                for item in asyncio.as_completed(items):
                    await context.write(await item)
            finally:
                await _cancel(items)

    async def _answer(
        self, message: generation_pb2.GenerationInput
    ) -> generation_service_pb2.GenerateResponse:
        async with self._outputs(message) as outputs:
            pieces = [output async for output in outputs]
        return results.to_response(merge_answers(pieces), message.response)

    async def _answer_item(
        self, index: int, message: generation_pb2.GenerationInput
    ) -> generation_service_pb2.BatchGenerateResponse:
        """Answer an item; its failure is an answer too."""
        try:
            response = await self._answer(message)
        except Exception as error:
            status = errors.to_status(_within(_ours(error), f"inputs[{index}]."))
            return generation_service_pb2.BatchGenerateResponse(index=index, error=status)
        return generation_service_pb2.BatchGenerateResponse(index=index, response=response)

    @asynccontextmanager
    async def _outputs(
        self, message: generation_pb2.GenerationInput
    ) -> AsyncIterator[AsyncIterator[RequestOutput]]:
        """Run a request for as long as the block; leaving it early aborts the request."""
        async with aclosing(self._llm.generate(convert.from_wire(message))) as outputs:
            yield outputs

    def _check_size(self, request: generation_service_pb2.BatchGenerateRequest) -> None:
        if not 1 <= len(request.inputs) <= self._max_batch_items:
            raise InvalidRequest(
                f"number of inputs must be in [1, {self._max_batch_items}], "
                f"got {len(request.inputs)}",
                field="inputs",
            )


class ConstraintService(constraint_service_pb2_grpc.ConstraintServiceServicer):
    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def CheckConstraint(
        self, request: constraint_service_pb2.CheckConstraintRequest, context: Context
    ) -> constraint_service_pb2.CheckConstraintResponse:
        async with _Answering(context, prefix=""):
            check = await self._llm.check(convert.constraint_from_wire(request))
            return results.to_checked_constraint(check)

    async def CheckText(
        self, request: constraint_service_pb2.CheckTextRequest, context: Context
    ) -> constraint_service_pb2.CheckTextResponse:
        async with _Answering(context, prefix=""):
            check = await self._llm.check(convert.constraint_from_wire(request), request.text)
            return results.to_checked_text(check)


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm

    async def GetModelInfo(
        self, request: model_service_pb2.GetModelInfoRequest, context: Context
    ) -> model_service_pb2.GetModelInfoResponse:
        async with _Answering(context):
            self._require_ready()
            return results.to_model_info(self._llm.model)

    async def Tokenize(
        self, request: model_service_pb2.TokenizeRequest, context: Context
    ) -> model_service_pb2.TokenizeResponse:
        async with _Answering(context, prefix=""):
            self._require_ready()
            ids = await asyncio.to_thread(self._encode, request)
            return model_service_pb2.TokenizeResponse(token_ids=ids)

    async def Detokenize(
        self, request: model_service_pb2.DetokenizeRequest, context: Context
    ) -> model_service_pb2.DetokenizeResponse:
        async with _Answering(context):
            self._require_ready()
            text = await asyncio.to_thread(self._decode, request)
            return model_service_pb2.DetokenizeResponse(text=text)

    def _require_ready(self) -> None:
        if not self._llm.ready:
            raise EngineDead("the server is not ready: starting, restarting or shutting down")

    def _encode(self, request: model_service_pb2.TokenizeRequest) -> list[int]:
        match request.WhichOneof("prompt"):
            case "text":
                return self._llm.tokenizer.encode(request.text, special=request.special_tokens)
            case "chat":
                return self._llm.tokenizer.encode_chat(convert.chat_messages(request.chat))
            case _:
                raise InvalidRequest("prompt must be text or chat, got none", field="prompt")

    def _decode(self, request: model_service_pb2.DetokenizeRequest) -> str:
        tokenizer = self._llm.tokenizer
        for index, token_id in enumerate(request.token_ids):
            if token_id >= tokenizer.size:
                raise InvalidRequest(
                    f"token ids must be in [0, {tokenizer.size}), got {token_id}",
                    field=f"token_ids[{index}]",
                )
        return tokenizer.decode(request.token_ids, skip_special=not request.special_tokens)


class _Answering:
    """Ends the call with a status if the block raises, and before it if the deadline has passed.

    prefix: what stands before field paths in place of "input.".
    """

    def __init__(self, context: Context, *, prefix: str = "input.") -> None:
        self._context = context
        self._prefix = prefix

    async def __aenter__(self) -> None:
        remaining = self._context.time_remaining()
        if remaining is not None and remaining <= 0:
            await self._abort(DeadlineExceeded("the deadline passed before the request began"))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Not CancelledError and its kin: nobody is there to be answered.
        if isinstance(error, Exception):
            await self._abort(_within(_ours(error), self._prefix))

    async def _abort(self, error: StructgenError) -> None:
        await self._context.abort_with_status(rpc_status.to_status(errors.to_status(error)))


def _ours(error: Exception) -> StructgenError:
    """Return an error that may be shown; what we did not raise on purpose stays in the log."""
    if isinstance(error, StructgenError):
        return error
    log.error("request failed", exc_info=error)
    return InternalError("internal error; the server's log has more")


def _within(error: StructgenError, prefix: str) -> StructgenError:
    """Return the error with its field path put where the request's message has it."""
    if not error.field.startswith("input.") or prefix == "input.":
        return error
    return type(error)(error.message, field=prefix + error.field.removeprefix("input."))


async def _cancel(tasks: list[asyncio.Task[generation_service_pb2.BatchGenerateResponse]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
