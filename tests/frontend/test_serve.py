"""`serve`: readiness, signals, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from scripted_llm import ScriptedLLM

from structgen.config import EngineConfig, ServerConfig
from structgen.errors import ConfigError, EngineDead
from structgen.frontend.grpc import server
from structgen.frontend.grpc._pb.generation_pb2 import GenerationInput
from structgen.frontend.grpc._pb.generation_service_pb2 import GenerateRequest
from structgen.frontend.grpc._pb.generation_service_pb2_grpc import GenerationServiceStub


class Place:
    """A ScriptedLLM that `serve` will make, and the address it prints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.llm: Any = None
        monkeypatch.setattr(server, "AsyncLLM", self._make)

    def _make(self, config: EngineConfig, *, max_restarts: int) -> ScriptedLLM:
        self.llm = ScriptedLLM()
        self.llm.ready = False
        return self.llm  # type: ignore[no-any-return]

    async def address(self) -> str:
        printed = ""
        while "ready on" not in printed:
            await asyncio.sleep(0.005)
            printed += self._capsys.readouterr().out
        return printed.split()[-1]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(monkeypatch, capsys)


def run(test: Callable[[], Awaitable[None]], *, grace_s: float = 10.0) -> None:
    """Run `serve` beside a test until both end."""

    async def both() -> None:
        async with asyncio.timeout(20):
            config = ServerConfig(port=0, grace_s=grace_s)
            await asyncio.gather(server.serve(EngineConfig(), config), test())

    asyncio.run(both())


def slow() -> GenerateRequest:
    return GenerateRequest(input=GenerationInput(text="slow"))


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_running_requests_finish(place: Place, number: int) -> None:
    async def test() -> None:
        async with grpc.aio.insecure_channel(await place.address()) as channel:
            running = GenerationServiceStub(channel).Generate(slow())
            while not place.llm.live:
                await asyncio.sleep(0.005)
            kill(number)
            while place.llm.ready:
                await asyncio.sleep(0.005)
            place.llm.finish.set()
            assert (await running).completions[0].text == "slow"

    run(test)
    assert place.llm.closed


def test_a_second_signal_ends_it_at_once(place: Place) -> None:
    async def test() -> None:
        async with grpc.aio.insecure_channel(await place.address()) as channel:
            running = GenerationServiceStub(channel).Generate(slow())
            while not place.llm.live:
                await asyncio.sleep(0.005)
            kill(signal.SIGTERM)
            while place.llm.ready:
                await asyncio.sleep(0.005)
            kill(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                await running

    run(test, grace_s=1000)
    assert place.llm.closed
    assert len(place.llm.aborted) == 1


def test_a_signal_while_the_model_loads_ends_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading = asyncio.Event()

    async def load(self: ScriptedLLM) -> None:
        loading.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ScriptedLLM, "start", load)

    async def test() -> None:
        await loading.wait()
        kill(signal.SIGTERM)

    run(test)
    assert place.llm.closed


def test_an_engine_that_cannot_start_is_told(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: ScriptedLLM) -> None:
        raise ConfigError("no such model")

    monkeypatch.setattr(ScriptedLLM, "start", fail)
    with pytest.raises(ConfigError, match="no such model"):
        asyncio.run(server.serve(EngineConfig(), ServerConfig(port=0)))
    assert place.llm.closed


def test_an_engine_that_is_given_up_ends_it(place: Place) -> None:
    async def test() -> None:
        await place.address()
        place.llm.given_up.set()

    with pytest.raises(EngineDead, match="given up"):
        run(test)
    assert place.llm.closed
