"""What do hostile requests, or a hundred new schemas at once, cost the streams beside them?

    python benchmarks/hostile.py
    python benchmarks/hostile.py --target HOST:PORT --seconds 20

Streams run all the time, one request after another, with neither constraint nor end.  Lines:

    streams     milliseconds between the tokens of a stream: alone, then `beside` something:
                  hostile    the inputs of tests/hostile_inputs.py, a few at a time
                  plain      --burst short prompts at once, one token each
                  schemas    the same prompts, each with a schema that is new to the server
                `ratio` is of the p99, to that of the streams alone just before and after
    hostile     what became of the inputs, the slowest answers, and how much the engine has grown
    schemas     the first tokens of the burst: how long they took, and how many were refused

What new schemas cost is the difference between `schemas` and `plain`: the forward of a hundred
prompts is no fault of theirs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc
import msgspec
import psutil
from _common import DATA, REPOSITORY, Value, in_ms, percentile, print_line, print_machine
from _schemas import shuffled
from serve import START_TIMEOUT_S, server

from structgen.client import AsyncClient
from structgen.constraints import JsonSchema
from structgen.errors import StructgenError
from structgen.frontend.grpc._pb import (
    generation_pb2,
    generation_service_pb2,
    generation_service_pb2_grpc,
)
from structgen.params import SamplingParams

sys.path.insert(0, str(REPOSITORY / "tests"))
from hostile_inputs import HOSTILE  # needs the line above

AT_A_TIME = 4
SLOWEST = 5
STREAM_TOKENS = 200  # of one request of a stream; at any time some are at each part of them
SETTLE_S = 1.0  # between two measurements
# Its pages are all touched before anything is measured: they are no growth.
KV_BYTES = 256 << 20
FILLING = (24, 50)  # prompts, and words of each


class Streams:
    """Keeps some requests running, and notes when their tokens come."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._gaps: list[float] = []
        self._came = asyncio.Event()

    @asynccontextmanager
    async def running(self, count: int) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(self._run(number, STREAM_TOKENS * (number + 1) // count))
            for number in range(count)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def next_tokens(self) -> None:
        """Wait for those that are on their way: until then their gap is not known."""
        self._came.clear()
        await self._came.wait()

    def take(self) -> list[float]:
        """Return the seconds between tokens since the last call."""
        gaps, self._gaps = self._gaps, []
        return gaps

    async def _run(self, number: int, tokens_first: int) -> None:
        """tokens_first: of the first request."""
        for turn in itertools.count():
            max_tokens = STREAM_TOKENS if turn else tokens_first
            params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
            prompt = f"Story {number}.{turn}:"
            last: float | None = None
            async with aclosing(self._client.stream(prompt, params)) as pieces:
                async for piece in pieces:
                    now = time.perf_counter()
                    tokens = max(1, len(piece.token_ids))
                    if last is not None:
                        self._gaps += [(now - last) / tokens] * tokens
                        self._came.set()
                    last = now


class Outcome(msgspec.Struct, frozen=True):
    """code: of the answer, by name."""

    name: str
    code: str
    seconds: float


async def send_hostile(address: str, inputs: Mapping[str, object]) -> list[Outcome]:
    slots = asyncio.Semaphore(AT_A_TIME)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = generation_service_pb2_grpc.GenerationServiceStub(channel)

        async def send(name: str) -> Outcome:
            async with slots:
                input = inputs[name]
                assert isinstance(input, generation_pb2.GenerationInput)
                input.stopping.max_tokens = 4
                code, began = "OK", time.perf_counter()
                try:
                    await stub.Generate(generation_service_pb2.GenerateRequest(input=input))
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                return Outcome(name, code, time.perf_counter() - began)

        return list(await asyncio.gather(*map(send, inputs)))


async def fill_cache(client: AsyncClient) -> None:
    params = SamplingParams(max_tokens=1)
    count, words = FILLING
    for number in range(count):
        await client.generate(" ".join(f"{number}-{word}" for word in range(words)), params)


async def send_burst(
    client: AsyncClient, count: int, schemas: Sequence[JsonSchema]
) -> list[Outcome]:
    """Send short prompts at once, each with a schema of its own, or all without."""

    async def send(number: int) -> Outcome:
        constraint = schemas[number] if schemas else None
        params = SamplingParams(max_tokens=1, constraint=constraint, close_within_budget=False)
        code, began = "OK", time.perf_counter()
        try:
            await client.generate(f"Number {number}.", params)
        except StructgenError as error:
            code = error.status
        return Outcome(str(number), code, time.perf_counter() - began)

    return list(await asyncio.gather(*map(send, range(count))))


class Bench:
    def __init__(self, client: AsyncClient, seconds: float) -> None:
        self._streams = Streams(client)
        self._seconds = seconds

    async def beside(
        self, name: str, streams: int, work: Callable[[], Awaitable[list[Outcome]]]
    ) -> list[Outcome]:
        """Measure streams alone and beside some work; print a line of each."""
        async with self._streams.running(streams):
            await asyncio.sleep(SETTLE_S)
            self._streams.take()
            await asyncio.sleep(self._seconds / 2)
            alone = self._streams.take()
            outcomes = await work()
            await self._streams.next_tokens()
            loaded = self._streams.take()
            await asyncio.sleep(self._seconds / 2)
            alone += self._streams.take()
        print_line("streams", streams=streams, beside="nothing", **_gaps(alone))
        ratio = percentile(loaded, 99) / percentile(alone, 99)
        print_line("streams", streams=streams, beside=name, ratio=ratio, **_gaps(loaded))
        await asyncio.sleep(SETTLE_S)
        return outcomes


def _gaps(seconds: Sequence[float]) -> dict[str, Value]:
    return {"n": len(seconds), **in_ms("gap", seconds), "gap_max_ms": max(seconds) * 1e3}


def _report_hostile(outcomes: Sequence[Outcome], growth: int | None) -> None:
    slowest = sorted(outcomes, key=lambda one: -one.seconds)[:SLOWEST]
    print_line(
        "hostile",
        n=len(outcomes),
        answers=dict(Counter(one.code for one in outcomes)),
        answer_max_s=slowest[0].seconds,
        slowest={one.name: one.seconds for one in slowest},
        engine_growth_mb=None if growth is None else growth / 2**20,
    )


async def benchmark(given: argparse.Namespace) -> None:
    schemas = shuffled(given.schemas)[: given.burst]
    # Made beforehand: what that takes is no fault of the server's.
    inputs = {name: make() for name, make in list(HOSTILE.items())[:: given.every]}
    async with (
        server(given, "--kv-cache-memory", str(KV_BYTES)) as address,
        AsyncClient(address) as client,
    ):
        await client.wait_ready(START_TIMEOUT_S)
        model = await client.model_info()
        print_machine("hostile", model=model.name, dtype=model.dtype, threads=given.threads)
        engine = _engine()
        bench = Bench(client, given.seconds)
        await fill_cache(client)
        await send_burst(client, 8, ())  # warm up
        before = engine.memory_info().rss if engine else 0
        outcomes = await bench.beside(
            "hostile", given.streams, lambda: send_hostile(address, inputs)
        )
        growth = engine.memory_info().rss - before if engine else None
        _report_hostile(outcomes, growth)
        count = len(schemas)
        await bench.beside("plain", 1, lambda: send_burst(client, count, ()))
        outcomes = await bench.beside("schemas", 1, lambda: send_burst(client, count, schemas))
        print_line(
            "schemas",
            answers=dict(Counter(one.code for one in outcomes)),
            **in_ms("answer", [one.seconds for one in outcomes]),
        )


def _engine() -> psutil.Process | None:
    """Return the engine of the server that was started; None: another one is used."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "structgen.engine.process" in process.cmdline():
                return process
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.seconds, given.burst, given.every, given.streams = 0.5, 4, 30, 2
    asyncio.run(benchmark(given))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Streams beside hostile inputs and new schemas.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--target", metavar="HOST:PORT", help="use this server, start none")
    parser.add_argument("--model", default="smollm2-135m", help="of the server that is started")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument("--streams", type=int, default=8, metavar="N", help="beside the inputs")
    parser.add_argument("--seconds", type=float, default=10, metavar="S", help="streams alone")
    parser.add_argument("--burst", type=int, default=100, metavar="N", help="schemas at once")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="of N inputs send one")
    parser.add_argument(
        "--schemas", type=Path, default=DATA / "maskbench-1000.jsonl.gz", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
