"""Whatever comes in is answered soon, costs the engine little, and nobody else anything."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import grpc
import psutil
from hostile_inputs import HOSTILE

from structgen.config import EngineConfig, ServerConfig
from structgen.engine.client import ProcessClient
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.grpc._pb import (
    generation_pb2,
    generation_service_pb2,
    generation_service_pb2_grpc,
)
from structgen.frontend.grpc.server import Server

CONFIG = EngineConfig(
    model="random:llama",
    dtype="float32",
    threads=1,
    num_blocks=512,
    attention="torch_cpu",
    compile_time_s=0.5,
    log_level="ERROR",
)
ANSWER_WITHIN_S = 5.0
AT_A_TIME = 3
MAX_GROWTH_BYTES = 512 << 20
# What a client of this contract may be told; an engine that died would be UNAVAILABLE.
CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}

Input = generation_pb2.GenerationInput
Stub = generation_service_pb2_grpc.GenerationServiceStub


@asynccontextmanager
async def served(client: ProcessClient) -> AsyncIterator[Stub]:
    async with AsyncLLM(CONFIG, client) as llm:
        server = Server(llm, ServerConfig(port=0))
        port = await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield generation_service_pb2_grpc.GenerationServiceStub(channel)
        finally:
            await server.close()


class Answer(NamedTuple):
    code: grpc.StatusCode
    details: str
    text: str
    seconds: float


async def ask(stub: Stub, input: Input, max_tokens: int) -> Answer:
    input.stopping.max_tokens = max_tokens
    began = time.monotonic()
    code, details, text = grpc.StatusCode.OK, "", ""
    try:
        response = await stub.Generate(generation_service_pb2.GenerateRequest(input=input))
        text = response.completions[0].text
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), error.details() or ""
    return Answer(code, details, text, time.monotonic() - began)


async def ask_all(stub: Stub) -> dict[str, Answer]:
    slots = asyncio.Semaphore(AT_A_TIME)

    async def one(name: str) -> Answer:
        async with slots:
            return await ask(stub, HOSTILE[name](), max_tokens=4)

    answers = await asyncio.gather(*map(one, HOSTILE))
    return dict(zip(HOSTILE, answers, strict=True))


async def ask_for_plain(stub: Stub) -> str:
    sampling = generation_pb2.SamplingParams(temperature=0.0)
    answer = await ask(stub, Input(text="Once upon a time", sampling=sampling), max_tokens=12)
    assert answer.code is grpc.StatusCode.OK, answer
    return answer.text


def test_hostile_inputs_are_answered_soon_and_nothing_else_suffers() -> None:
    """B4.15, B5.1, B5.7, B5.8, B5.16: also the same answers as before, from the same process."""
    client = ProcessClient(CONFIG)

    async def test() -> None:
        async with served(client) as stub:
            assert client.pid is not None
            engine = psutil.Process(client.pid)
            plain = await ask_for_plain(stub)
            memory = engine.memory_info().rss
            hostile = asyncio.create_task(ask_all(stub))
            while not hostile.done():
                assert await ask_for_plain(stub) == plain
                await asyncio.sleep(0.1)
            check(hostile.result())
            assert client.pid == engine.pid
            assert engine.memory_info().rss - memory < MAX_GROWTH_BYTES
            assert await ask_for_plain(stub) == plain

    asyncio.run(asyncio.wait_for(test(), 200))


def check(answers: dict[str, Answer]) -> None:
    assert len(answers) >= 80
    for name, answer in answers.items():
        assert answer.code in CODES, (name, answer)
        assert answer.seconds < ANSWER_WITHIN_S, (name, answer)
        assert answer.details or answer.code is grpc.StatusCode.OK, name
    codes = Counter(answer.code for answer in answers.values())
    assert min(codes[code] for code in CODES - {grpc.StatusCode.UNIMPLEMENTED}) > 20, codes
