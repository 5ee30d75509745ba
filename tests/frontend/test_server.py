"""The services over a real server and a scripted AsyncLLM."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import psutil
import pytest
from frontend_fakes import FakeEngineClient, ToyTokenizer
from google.rpc.error_details_pb2 import BadRequest, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import (
    ServerReflectionRequest,
    ServerReflectionResponse,
)
from scripted_llm import ScriptedLLM, connected, serving

from structgen.config import EngineConfig, ServerConfig
from structgen.errors import ConfigError
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.grpc import reflection
from structgen.frontend.grpc._pb.constraint_pb2 import BACKEND_XGRAMMAR, Constraint
from structgen.frontend.grpc._pb.generation_pb2 import (
    CONSTRAINT_STATUS_COMPLETE,
    FINISH_REASON_STOP,
    Chat,
    ChatMessage,
    GenerationInput,
    ResponseOptions,
    SamplingParams,
)
from structgen.frontend.grpc._pb.generation_service_pb2 import (
    BatchGenerateRequest,
    GenerateRequest,
    StreamGenerateRequest,
)
from structgen.frontend.grpc._pb.generation_service_pb2_grpc import GenerationServiceStub
from structgen.frontend.grpc._pb.model_service_pb2 import (
    DetokenizeRequest,
    GetModelInfoRequest,
    TokenizeRequest,
)
from structgen.frontend.grpc._pb.model_service_pb2_grpc import ModelServiceStub
from structgen.frontend.grpc.server import Server

SERVICE = "structgen.v1.GenerationService"
STATUS_KEY = "grpc-status-details-bin"


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def text(prompt: str, **fields: Any) -> GenerateRequest:
    return GenerateRequest(input=GenerationInput(text=prompt, **fields))


def streamed(prompt: str, **fields: Any) -> StreamGenerateRequest:
    return StreamGenerateRequest(input=GenerationInput(text=prompt, **fields))


def violation(details: Status) -> tuple[str, str]:
    for detail in details.details:
        bad = BadRequest()
        if detail.Unpack(bad):
            return bad.field_violations[0].field, bad.field_violations[0].description
    raise AssertionError("no BadRequest")


def details_of(error: grpc.aio.AioRpcError) -> Status:
    return Status.FromString(dict(error.trailing_metadata())[STATUS_KEY])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# ---- generation


def test_generate_answers_the_whole_text() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            response = await GenerationServiceStub(channel).Generate(
                text("json", request_id="me", constraint=Constraint(json_object=True))
            )
        (completion,) = response.completions
        assert response.request_id == "me"
        assert completion.text == '{"name": "Ada"}'
        assert not completion.token_ids
        assert completion.finish_reason == FINISH_REASON_STOP
        assert completion.WhichOneof("matched") == "stop_token_id"
        assert completion.constraint_status == CONSTRAINT_STATUS_COMPLETE
        assert response.usage.prompt_tokens == 5
        assert response.timings.decode.ToMilliseconds() == 2000
        assert response.constraint.backend == BACKEND_XGRAMMAR
        assert response.constraint.compile_time.ToMilliseconds() == 250

    run(test)


def test_a_stream_starts_tells_and_finishes() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            call = GenerationServiceStub(channel).StreamGenerate(streamed("hi", request_id="me"))
            events = [event async for event in call]
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds == ["started", "delta", "delta", "finished"]
        assert events[0].started.request_id == "me"
        assert not events[0].started.HasField("constraint")
        assert "".join(event.delta.text for event in events) == "Hello"
        assert events[-1].finished.usage.completion_tokens == 3

    run(test)


def test_token_ids_come_if_asked_for() -> None:
    async def test() -> None:
        asked = ResponseOptions(token_ids=True)
        async with connected(ScriptedLLM()) as channel:
            stub = GenerationServiceStub(channel)
            whole = await stub.Generate(text("hi", response=asked))
            parts = [e async for e in stub.StreamGenerate(streamed("hi", response=asked))]
        assert list(whole.completions[0].token_ids) == [7, 9, 8]
        assert [i for event in parts for i in event.delta.token_ids] == [7, 9, 8]

    run(test)


def test_all_answers_come_in_one_response_by_index() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            response = await GenerationServiceStub(channel).Generate(
                text("hi", sampling=SamplingParams(n=3))
            )
        assert [(c.index, c.text) for c in response.completions] == [
            (index, "Hello") for index in range(3)
        ]
        assert all(c.finish_reason == FINISH_REASON_STOP for c in response.completions)

    run(test)


def test_a_stream_of_answers_starts_once_and_finishes_each() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            call = GenerationServiceStub(channel).StreamGenerate(
                streamed("hi", sampling=SamplingParams(n=2))
            )
            events = [event async for event in call]
        kinds = [event.WhichOneof("event") for event in events]
        assert kinds == ["started", *["delta"] * 3, "finished", "delta", "finished"]
        for index in range(2):
            deltas = [e.delta for e in events if e.HasField("delta") and e.delta.index == index]
            assert "".join(delta.text for delta in deltas) == "Hello"
        finished = [e.finished.completion.index for e in events if e.HasField("finished")]
        assert finished == [0, 1]

    run(test)


def test_log_probabilities_come_with_text_and_bytes() -> None:
    def check(positions: Any) -> None:
        assert [position.token.token_id for position in positions] == [7, 9, 8]
        assert [position.HasField("constraint_mass") for position in positions] == [True, 0, 0]
        own, likely = positions[0].top
        assert (own.text, own.token_bytes) == ("\x07", b"\x07")
        assert (likely.token_id, likely.text, likely.token_bytes) == (255, "�", b"\xc3")

    def check_prompt(positions: Any) -> None:
        assert [position.HasField("token") for position in positions] == [False, True]
        assert positions[1].token.token_id == 5

    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            stub = GenerationServiceStub(channel)
            whole = await stub.Generate(text("scored"))
            parts = [event async for event in stub.StreamGenerate(streamed("scored"))]
        check(whole.completions[0].logprobs)
        check([position for event in parts for position in event.delta.logprobs])
        check_prompt(whole.prompt_logprobs)
        check_prompt(parts[0].started.prompt_logprobs)
        assert not parts[-1].finished.completion.logprobs

    run(test)


def test_a_batch_answers_each_item_as_it_ends() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            inputs = [GenerationInput(text=prompt) for prompt in ("slow", "hi", "full")]
            inputs.append(GenerationInput(text="hi", sampling=SamplingParams(top_p=0)))
            call = GenerationServiceStub(channel).BatchGenerate(BatchGenerateRequest(inputs=inputs))
            answers = []
            async for answer in call:
                answers.append(answer)
                if len(answers) == 3:
                    llm.finish.set()
        by_index = {answer.index: answer for answer in answers}
        assert sorted(by_index) == [0, 1, 2, 3]
        assert answers[-1].index == 0
        assert by_index[1].response.completions[0].text == "Hello"
        assert by_index[2].error.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert violation(by_index[3].error)[0] == "inputs[3].sampling.top_p"

    run(test)


def test_a_cancelled_batch_aborts_every_item() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            inputs = [GenerationInput(text="hang") for _ in range(3)]
            call = GenerationServiceStub(channel).BatchGenerate(BatchGenerateRequest(inputs=inputs))
            await until(lambda: len(llm.live) == 3)
            call.cancel()
            await until(lambda: len(llm.aborted) == 3)

    run(test)


@pytest.mark.parametrize("number", [0, 3])
def test_the_size_of_a_batch_is_bounded(number: int) -> None:
    async def test() -> None:
        async with connected(ScriptedLLM(), max_batch_items=2) as channel:
            inputs = [GenerationInput(text="hi")] * number
            call = GenerationServiceStub(channel).BatchGenerate(BatchGenerateRequest(inputs=inputs))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation(details_of(caught.value))[0] == "inputs"

    run(test)


# ---- errors


async def failure(prompt: str, **fields: Any) -> grpc.aio.AioRpcError:
    async with connected(ScriptedLLM()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await GenerationServiceStub(channel).Generate(text(prompt, **fields))
    return caught.value


def test_an_invalid_field_is_named_in_the_details() -> None:
    async def test() -> None:
        error = await failure("hi", sampling=SamplingParams(top_p=0))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        field, description = violation(details_of(error))
        assert field == "input.sampling.top_p"
        assert description == "top_p must be in (0, 1], got 0.0"

    run(test)


def test_a_request_without_an_input_is_refused() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await GenerationServiceStub(channel).Generate(GenerateRequest())
        assert violation(details_of(caught.value))[0] == "input.prompt"

    run(test)


def test_a_full_queue_says_when_to_come_back() -> None:
    async def test() -> None:
        error = await failure("full")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert any(detail.Is(RetryInfo.DESCRIPTOR) for detail in details_of(error).details)

    run(test)


def test_our_bug_is_internal_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        error = await failure("bug")
        assert error.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in str(details_of(error))

    run(test)
    assert "secret detail" in caplog.text


def test_a_stream_that_breaks_ends_with_its_error() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            call = GenerationServiceStub(channel).StreamGenerate(streamed("lost"))
            assert (await call.read()).HasField("started")
            assert (await call.read()).delta.text == "Hel"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    run(test)


def test_a_live_request_id_is_refused() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            stub = GenerationServiceStub(channel)
            first = stub.Generate(text("slow", request_id="me"))
            await until(lambda: "me" in llm.live)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(text("hi", request_id="me"))
            llm.finish.set()
            await first
            await stub.Generate(text("hi", request_id="me"))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS

    run(test)


def numbers(descriptor: Any, path: str = "") -> Iterator[str]:
    for field in descriptor.fields:
        if field.message_type is None or field.is_repeated:
            yield path + field.name
        else:
            yield from numbers(field.message_type, f"{path}{field.name}.")


def put(target: Any, path: str, value: int) -> bool:
    """Set a number, or add it to a list of them; False if the field holds no such thing."""
    *parents, name = path.split(".")
    for parent in parents:
        target = getattr(target, parent)
    try:
        if name == "logit_bias":
            target.logit_bias[value] = 1.0
        elif target.DESCRIPTOR.fields_by_name[name].is_repeated:
            getattr(target, name).append(value)
        else:
            setattr(target, name, value)
    except (TypeError, ValueError):
        return False
    return True


def extreme_inputs() -> Iterator[GenerationInput]:
    for path in numbers(GenerationInput.DESCRIPTOR):
        for value in (-1, 0, 2**31, 2**63 - 1):
            given = GenerationInput()
            if not path.startswith(("token_ids", "chat")):
                given.text = "hi"
            if put(given, path, value):
                yield given


def test_no_number_whatever_its_field_is_our_bug() -> None:
    """B5.3, B5.14: With the checks that need the model and its tokenizer, over the wire."""
    allowed = {
        grpc.StatusCode.OK,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }

    async def test() -> None:
        llm = AsyncLLM(
            EngineConfig(), FakeEngineClient(), load_tokenizer=lambda folder: ToyTokenizer()
        )
        inputs = list(extreme_inputs())
        async with llm, connected(llm) as channel:
            stub = GenerationServiceStub(channel)
            for given in inputs:
                call = stub.Generate(GenerateRequest(input=given))
                assert await call.code() in allowed, f"{given}: {await call.details()}"
        assert len(inputs) > 60

    run(test)


# ---- leaving early


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
@pytest.mark.parametrize("prompt", ["hang", "begin"])
def test_a_client_that_cancels_aborts_its_request(method: str, prompt: str) -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            make = text if method == "Generate" else streamed
            call = getattr(GenerationServiceStub(channel), method)(make(prompt, request_id="me"))
            await until(lambda: llm.live == ["me"])
            call.cancel()
            await until(lambda: llm.aborted == ["me"])
            assert llm.live == []

    run(test)


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
def test_a_deadline_aborts_the_request(method: str) -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            make = text if method == "Generate" else streamed
            call = getattr(GenerationServiceStub(channel), method)(make("hang"), timeout=0.1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (call if method == "Generate" else call.read())
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            await until(lambda: len(llm.aborted) == 1)

    run(test)


def test_clients_that_leave_a_flood_at_random_moments_leave_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def leave(channel: grpc.aio.Channel, delay_s: float) -> None:
        call = GenerationServiceStub(channel).StreamGenerate(streamed("flood"))
        if delay_s > 0.01:
            await call.read()
        await asyncio.sleep(delay_s)
        call.cancel()

    async def test() -> None:
        llm = ScriptedLLM()
        draw = random.Random(5)
        async with connected(llm) as channel:
            await asyncio.gather(*(leave(channel, draw.uniform(0, 0.1)) for _ in range(40)))
            await until(lambda: not llm.live)
            assert await GenerationServiceStub(channel).Generate(text("hi"))
        assert len(llm.aborted) == len(llm.inputs) - 1

    run(test)
    assert caplog.text == ""


def test_an_expired_request_never_reaches_the_engine() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            stub = GenerationServiceStub(channel)
            await stub.Generate(text("hi"))
            call = stub.Generate(text("hi"), timeout=0.05)
            await asyncio.sleep(0)  # sent; the server's loop, which is this one, is now busy
            time.sleep(0.1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            await stub.Generate(text("hi"))
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert len(llm.inputs) == 2

    run(test)


# ---- sizes


def test_a_message_above_the_limit_is_refused() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm, max_message_bytes=10_000) as channel:
            stub = GenerationServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(text("x" * 20_000))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert llm.inputs == []
            assert await stub.Generate(text("hi"))

    run(test)


SEND_LARGE = """
import sys, grpc
channel = grpc.insecure_channel(sys.argv[1], [("grpc.max_send_message_length", -1)])
try:
    channel.unary_unary(sys.argv[2])(bytes(int(sys.argv[3])))
except grpc.RpcError as error:
    print(error.code().name)
"""


def test_a_message_far_above_the_limit_takes_no_memory() -> None:
    """B5.19: it is refused by its length, before it is read."""
    large, own = 128 << 20, psutil.Process()

    async def test() -> None:
        async with serving(ScriptedLLM()) as (_, address):
            before = most = own.memory_info().rss
            arguments = (SEND_LARGE, address, f"/{SERVICE}/Generate", str(large))
            client = await asyncio.create_subprocess_exec(
                sys.executable, "-c", *arguments, stdout=asyncio.subprocess.PIPE
            )
            answer = asyncio.create_task(client.communicate())
            while not answer.done():
                most = max(most, own.memory_info().rss)
                await asyncio.sleep(0.002)
            assert answer.result()[0].decode().split() == ["RESOURCE_EXHAUSTED"]
            assert most - before < large // 4
            async with grpc.aio.insecure_channel(address) as channel:
                assert await GenerationServiceStub(channel).Generate(text("hi"))

    run(test)


@pytest.mark.parametrize("method", ["Generate", "StreamGenerate"])
def test_an_answer_above_the_limit_fails_alone(method: str) -> None:
    async def test() -> None:
        async with connected(ScriptedLLM(), max_message_bytes=10_000) as channel:
            stub = GenerationServiceStub(channel)
            make = text if method == "Generate" else streamed
            call = getattr(stub, method)(make("long 20000"))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (call if method == "Generate" else anext(aiter_all(call)))
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await stub.Generate(text("hi"))

    run(test)


async def aiter_all(call: Any) -> Any:
    yield [event async for event in call]


# ---- model service


def test_the_model_is_described_without_the_servers_paths() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            info = await ModelServiceStub(channel).GetModelInfo(GetModelInfoRequest())
        assert (info.name, info.vocab_size, list(info.eos_token_ids)) == ("scripted", 128, [0])
        assert "secret" not in str(info)

    run(test)


def test_text_becomes_ids_and_text_again() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            stub = ModelServiceStub(channel)
            ids = (await stub.Tokenize(TokenizeRequest(text="hi"))).token_ids
            assert list(ids) == [104, 105]
            assert (await stub.Detokenize(DetokenizeRequest(token_ids=ids))).text == "hi"
            chat = Chat(messages=[ChatMessage(role="u", content="x")])
            assert len((await stub.Tokenize(TokenizeRequest(chat=chat))).token_ids) == 4

    run(test)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    """B5.12, B5.13: before the engine sees them."""

    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ModelServiceStub(channel).Detokenize(DetokenizeRequest(token_ids=[5, 128]))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert violation(details_of(caught.value))[0] == "token_ids[1]"

    run(test)


def test_nothing_is_told_of_a_model_that_is_not_there() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        llm.ready = False
        async with connected(llm) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ModelServiceStub(channel).GetModelInfo(GetModelInfoRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

    run(test)


# ---- health


async def status(stub: HealthStub, service: str) -> int:
    return int((await stub.Check(HealthCheckRequest(service=service))).status)


def test_readiness_follows_the_engine_and_liveness_does_not() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        llm.ready = False
        async with connected(llm) as channel:
            stub = HealthStub(channel)
            seen = []
            for ready in (False, True, False, True):
                llm.set_ready(ready)
                assert await status(stub, "") == HealthCheckResponse.SERVING
                seen.append(await status(stub, SERVICE))
        not_serving, serving = HealthCheckResponse.NOT_SERVING, HealthCheckResponse.SERVING
        assert seen == [not_serving, serving, not_serving, serving]

    run(test)


def test_health_of_an_unknown_service_is_not_found() -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status(HealthStub(channel), "nobody")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    run(test)


def test_a_watch_sees_changes_and_ends_with_the_server() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with (
            serving(llm) as (server, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            call = HealthStub(channel).Watch(HealthCheckRequest(service=SERVICE))
            assert (await call.read()).status == HealthCheckResponse.SERVING
            llm.set_ready(False)
            assert (await call.read()).status == HealthCheckResponse.NOT_SERVING
            llm.set_ready(True)
            assert (await call.read()).status == HealthCheckResponse.SERVING
            draining = asyncio.create_task(server.drain())
            assert (await call.read()).status == HealthCheckResponse.NOT_SERVING
            assert await call.read() is grpc.aio.EOF
            await draining

    run(test)


# ---- draining


def test_draining_finishes_what_runs_and_refuses_what_comes() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with (
            serving(llm, grace_s=10) as (server, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            stub = GenerationServiceStub(channel)
            running = stub.Generate(text("slow"))
            await until(lambda: len(llm.live) == 1)
            draining = asyncio.create_task(server.drain())
            await until(lambda: not llm.ready)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(text("hi"))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert await status(HealthStub(channel), "") == HealthCheckResponse.SERVING
            llm.finish.set()
            assert (await running).completions[0].text == "slow"
            await draining

    run(test)


def test_a_port_in_use_is_a_configuration_error() -> None:
    async def test() -> None:
        async with serving(ScriptedLLM()) as (_, address):
            config = ServerConfig(port=int(address.rpartition(":")[2]))
            second = Server(ScriptedLLM(), config)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="cannot listen"):
                await second.start()
            await second.close()

    run(test)


# ---- reflection


@pytest.mark.parametrize("version", [reflection.V1ALPHA, reflection.V1])
def test_reflection_lists_and_describes_every_service(version: str) -> None:
    async def ask(channel: grpc.aio.Channel, **question: str) -> ServerReflectionResponse:
        method = channel.stream_stream(
            f"/{version}/ServerReflectionInfo",
            ServerReflectionRequest.SerializeToString,
            ServerReflectionResponse.FromString,
        )
        call = method()
        await call.write(ServerReflectionRequest(**question))
        answer = await call.read()
        await call.done_writing()
        return answer

    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            listed = await ask(channel, list_services="")
            names = [service.name for service in listed.list_services_response.service]
            assert names == [
                "grpc.health.v1.Health",
                "grpc.reflection.v1.ServerReflection",
                "grpc.reflection.v1alpha.ServerReflection",
                "structgen.v1.ConstraintService",
                "structgen.v1.GenerationService",
                "structgen.v1.ModelService",
            ]
            for name in [*names, "google.rpc.BadRequest", "google.rpc.RetryInfo"]:
                answer = await ask(channel, file_containing_symbol=name)
                assert answer.file_descriptor_response.file_descriptor_proto, name

    run(test)
