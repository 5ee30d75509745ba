"""A real engine process with a tiny random model: streams, cancellation, death, idleness."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from structgen.config import EngineConfig
from structgen.constraints import JsonSchema, Regex
from structgen.engine.client import ProcessClient
from structgen.errors import ConfigError, ConstraintError, EngineDead, InvalidRequest
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.outputs import RequestOutput
from structgen.messages import FinishReason
from structgen.params import SamplingParams

NUM_BLOCKS = 128
CONFIG = EngineConfig(
    model="random:llama",
    dtype="float32",
    threads=1,
    num_blocks=NUM_BLOCKS,
    max_num_batched_tokens=64,
    check=True,
    log_level="WARNING",
    attention="torch_cpu",
)
SCHEMA = JsonSchema('{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}')


@pytest.fixture(scope="module", autouse=True)
def temporary_folder() -> Iterator[Path]:
    """Where the sockets go, so that a test sees what is left of them."""
    short = Path(tempfile.mkdtemp(prefix="sg", dir="/tmp"))  # socket paths are limited in length
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(short))
        patch.setattr(tempfile, "tempdir", str(short))
        yield short
    shutil.rmtree(short, ignore_errors=True)


def socket_folders(folder: Path) -> set[Path]:
    return set(folder.glob("structgen-*"))


Run = Callable[[Coroutine[object, object, None]], None]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a coroutine on the event loop that all tests here share, as they share an engine."""
    with asyncio.Runner() as runner:
        yield lambda test: runner.run(asyncio.wait_for(test, 120))


@pytest.fixture(scope="module")
def served(run: Run, temporary_folder: Path) -> Iterator[tuple[AsyncLLM, ProcessClient]]:
    client = ProcessClient(CONFIG)
    llm = AsyncLLM(CONFIG, client, backoff_s=0.01)
    run(llm.start())
    yield llm, client
    run(llm.close())
    assert client.pid is None
    assert socket_folders(temporary_folder) == set()


Served = tuple[AsyncLLM, ProcessClient]


async def answer(
    llm: AsyncLLM, prompt: object = "hello", constraint_id: str = "", **params: object
) -> list[RequestOutput]:
    settings: dict[str, object] = {"temperature": 0.0, "max_tokens": 8}
    request = GenerationInput(
        prompt=prompt,  # type: ignore[arg-type]
        params=SamplingParams(**(settings | params)),  # type: ignore[arg-type]
        constraint_id=constraint_id,
    )
    async with contextlib.aclosing(llm.generate(request)) as outputs:
        return [output async for output in outputs]


async def start(client: ProcessClient) -> None:
    await client.start()
    await client.ready()


async def assert_pool_is_whole(llm: AsyncLLM) -> None:
    """A prompt that needs every block runs, and is never preempted."""
    prompt = [5] * (NUM_BLOCKS * 16 - 2)
    outputs = await answer(llm, prompt, max_tokens=1)
    assert outputs[-1].finish is not None
    assert outputs[-1].finish.reason is FinishReason.MAX_TOKENS


def test_free_and_constrained_streams_share_the_engine_and_a_bad_one_fails_alone(
    run: Run, served: Served
) -> None:
    """B4.1, B4.10: a bad constraint ends no stream but its own."""
    llm, _ = served

    async def test() -> None:
        free, constrained, bad = await asyncio.gather(
            answer(llm, max_tokens=20, ignore_eos=True),
            answer(llm, max_tokens=60, constraint=SCHEMA),
            answer(llm, constraint=JsonSchema('{"type":"nosuch"}')),
            return_exceptions=True,
        )
        assert isinstance(free, list)
        assert sum(len(output.token_ids) for output in free) == 20
        assert isinstance(constrained, list)
        assert constrained[0].constraint is not None
        assert constrained[0].constraint.backend == "llguidance"
        assert isinstance(bad, ConstraintError)
        assert bad.field == "input.constraint.json_schema"
        assert llm.num_open == 0

    run(test())


def test_what_was_checked_is_ready_for_requests_and_judges_what_they_answer(
    run: Run, served: Served
) -> None:
    llm, _ = served
    schema = JsonSchema('{"type":"object","properties":{"é":{"enum":["日本",1]}},"required":["é"]}')

    async def test() -> None:
        running = asyncio.create_task(answer(llm, max_tokens=200, ignore_eos=True))
        check = await llm.check(schema)
        assert (check.constraint.backend, check.constraint.cached) == ("llguidance", False)
        assert check.size_bytes > 0
        assert {report.keyword for report in check.constraint.keywords} >= {"type", "enum"}
        pieces = await answer(llm, constraint_id=check.constraint.key, max_tokens=60)
        assert pieces[0].constraint is not None
        assert pieces[0].constraint.cached
        text = "".join(piece.text for piece in pieces)
        verdicts = [
            (await llm.check(schema, text)).verdict
            for text in (text, text[:-1], text.replace('": ', '":', 1))
        ]
        assert verdicts[0] is not None
        assert verdicts[0].accepted
        assert verdicts[1] is not None
        assert verdicts[1].is_prefix
        assert verdicts[2] is not None
        assert verdicts[2].error_offset == text.encode().index(b'":') + 2
        with pytest.raises(ConstraintError) as caught:
            await llm.check(JsonSchema('{"type":"nosuch"}'), "x")
        assert caught.value.field == "input.constraint.json_schema"
        with pytest.raises(InvalidRequest, match="at most"):
            await llm.check(schema, "x" * 300_000)
        await running
        assert llm.num_open == 0

    run(test())


def test_killing_the_engine_fails_every_stream_and_the_next_request_is_served(
    run: Run, served: Served, temporary_folder: Path
) -> None:
    llm, client = served

    async def test() -> None:
        known = (await llm.check(SCHEMA)).constraint.key
        states: list[bool] = []
        llm.on_state = states.append
        streams = [
            asyncio.create_task(answer(llm, f"number {i}", max_tokens=1500, ignore_eos=True))
            for i in range(16)
        ]
        await asyncio.sleep(0.5)
        check = asyncio.create_task(llm.check(Regex("a*"), "a" * 200_000))
        await asyncio.sleep(0)
        assert client.pid is not None
        first = client.pid
        compilers = psutil.Process(first).children(recursive=True)
        # The template, those that compile, and one that judges; a job that took long was its last.
        assert 1 < len(compilers) <= 2 + CONFIG.compile_threads
        os.kill(first, signal.SIGKILL)
        killed_at = time.monotonic()
        results = await asyncio.gather(*streams, return_exceptions=True)
        assert time.monotonic() - killed_at < 2
        assert [type(result) for result in results] == [EngineDead] * 16
        with pytest.raises(EngineDead):
            await check
        while not llm.ready:
            await asyncio.sleep(0.05)
        assert states == [False, True]
        pieces = await answer(llm, constraint_id=known, max_tokens=60)
        assert pieces[-1].finish is not None
        assert pieces[0].constraint is not None
        assert (pieces[0].constraint.key, pieces[0].constraint.cached) == (known, False)
        assert client.pid != first
        assert not psutil.pid_exists(first)
        gone, alive = await asyncio.to_thread(psutil.wait_procs, compilers, 10)
        assert (set(gone), alive) == (set(compilers), [])
        assert len(socket_folders(temporary_folder)) == 1

    run(test())


def test_200_clients_that_cancel_at_random_moments_leave_nothing_behind(
    run: Run, served: Served
) -> None:
    llm, _ = served

    async def test() -> None:
        rng = random.Random(0)

        async def impatient(index: int) -> None:
            constraint = SCHEMA if index % 3 == 0 else None
            prompt = [rng.randrange(200) for _ in range(rng.randint(1, 60))]
            with contextlib.suppress(TimeoutError):  # cancels what runs inside
                async with asyncio.timeout(rng.random() * 1.5):
                    await answer(
                        llm,
                        prompt,
                        max_tokens=200,
                        constraint=constraint,
                        ignore_eos=constraint is None,
                    )

        await asyncio.gather(*(impatient(index) for index in range(200)))
        assert llm.num_open == 0
        await assert_pool_is_whole(llm)

    run(test())


def test_an_idle_engine_sleeps(run: Run, served: Served) -> None:
    llm, client = served

    async def test() -> None:
        await answer(llm)
        process = psutil.Process(client.pid)
        await asyncio.sleep(0.2)
        before = process.cpu_times()
        await asyncio.sleep(3)
        after = process.cpu_times()
        busy = after.user + after.system - before.user - before.system
        assert busy < 0.03, f"{busy} s of CPU in 3 s"

    run(test())


def test_a_time_limit_gives_a_partial_answer(run: Run, served: Served) -> None:
    llm, _ = served

    async def test() -> None:
        outputs = await answer(llm, max_tokens=2000, ignore_eos=True, time_limit_s=0.5)
        assert outputs[-1].finish is not None
        assert outputs[-1].finish.reason is FinishReason.TIME_LIMIT
        assert 0 < sum(len(output.token_ids) for output in outputs) < 2000
        await assert_pool_is_whole(llm)

    run(test())


def test_of_running_answers_so_many_pieces_a_second_are_told(run: Run) -> None:
    """The first and the last at once, and without a limit nothing is held back at all."""

    async def pieces(limit: int) -> tuple[int, float]:
        config = msgspec.structs.replace(CONFIG, max_outputs_per_s=limit)
        async with AsyncLLM(config) as llm:
            began = time.monotonic()
            outputs = await answer(llm, max_tokens=200, ignore_eos=True)
            assert sum(len(output.token_ids) for output in outputs) == 200
            return len(outputs), time.monotonic() - began

    async def test() -> None:
        few, seconds = await pieces(limit=2)
        assert few <= 2 + 2 * seconds + 1
        all_of_them, _ = await pieces(limit=0)
        assert all_of_them > 100  # two are joined where the caller was too slow for them

    run(test())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "no/such/place"}, "no/such/place"),
        ({"model": "random:llama", "max_model_len": 10**6}, "max_model_len must be at most"),
    ],
)
def test_an_engine_that_cannot_start_says_why(
    run: Run, options: dict[str, object], message: str
) -> None:
    async def test() -> None:
        client = ProcessClient(EngineConfig(log_level="ERROR", threads=1, **options))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=message):
            await start(client)
        await client.close()

    run(test())


def test_an_engine_whose_front_end_was_killed_ends_and_takes_its_sockets_along(
    served: Served, temporary_folder: Path
) -> None:
    others = socket_folders(temporary_folder)
    script = (
        "import asyncio, sys, msgspec\n"
        "from structgen.config import EngineConfig\n"
        "from structgen.engine.client import ProcessClient\n"
        "async def main():\n"
        "    client = ProcessClient(msgspec.json.decode(sys.argv[1], type=EngineConfig))\n"
        "    await client.start()\n"
        "    await client.ready()\n"
        "    print(client.pid, flush=True)\n"
        "    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    front_end = subprocess.Popen(
        [sys.executable, "-c", script, msgspec.json.encode(CONFIG).decode()],
        stdout=subprocess.PIPE,
        text=True,
    )
    with front_end:
        assert front_end.stdout is not None
        engine = psutil.Process(int(front_end.stdout.readline()))
        front_end.kill()
    engine.wait(timeout=10)
    assert socket_folders(temporary_folder) == others
