"""Checks and constraint ids in the asynchronous front end, over a scripted engine."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from frontend_fakes import FakeEngineClient, ToyTokenizer, echo

from structgen.config import EngineConfig
from structgen.constraints import Choice, Constraint, ConstraintId, JsonSchema, Regex
from structgen.errors import (
    ConstraintError,
    EngineDead,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    to_wire,
)
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.known import KnownConstraints
from structgen.frontend.outputs import RequestOutput
from structgen.messages import (
    MAX_CHECKED_BYTES,
    Check,
    Checked,
    ConstraintInfo,
    EngineOutput,
    EngineRequest,
    RequestStats,
    TextVerdict,
)
from structgen.params import SamplingParams

DIGITS = Regex("[0-9]+")


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 20))

    return run


def info(constraint: Constraint) -> ConstraintInfo:
    return ConstraintInfo("toy", 0.25, False, constraint.key())


def usable(check: Check) -> Checked:
    verdict = TextVerdict(may_end=True) if check.text is not None else None
    return Checked(check.id, info(check.constraint), 100, verdict)


def compiling_echo(request: EngineRequest) -> list[EngineOutput]:
    """Echo the prompt, and report the constraint as the engine does, with the first tokens."""
    first, *others = echo(request)
    constraint = request.params.constraint
    stats = RequestStats(1, constraint=None if constraint is None else info(constraint))
    return [EngineOutput(first.id, first.new_ids, stats=stats), *others]


@asynccontextmanager
async def started(
    answer: Callable[[Check], Checked | None] = usable, max_waiting: int = 4096
) -> AsyncIterator[tuple[AsyncLLM, FakeEngineClient]]:
    client = FakeEngineClient(compiling_echo)
    client.answer_check = answer
    config = EngineConfig(max_waiting=max_waiting)
    async with AsyncLLM(
        config, client, load_tokenizer=lambda folder: ToyTokenizer(), backoff_s=0.001
    ) as llm:
        yield llm, client


async def generate(llm: AsyncLLM, id: str = "", **params: object) -> list[RequestOutput]:
    input = GenerationInput(
        prompt="ab",
        params=SamplingParams(**params),  # type: ignore[arg-type]
        constraint_id=id,
    )
    return [piece async for piece in llm.generate(input)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


# ---- checks


@asynchronous
async def test_a_check_is_answered_and_leaves_nothing() -> None:
    async with started() as (llm, client):
        check = await llm.check(DIGITS)
        assert check.constraint == info(DIGITS)
        assert check.size_bytes == 100
        assert check.verdict is None
        judged = await llm.check(DIGITS, "12")
        assert judged.verdict is not None
        assert judged.verdict.accepted
        assert [(sent.constraint, sent.text) for sent in client.checks] == [
            (DIGITS, None),
            (DIGITS, "12"),
        ]
        assert llm.num_open == 0
        assert client.aborted == []


@asynchronous
async def test_what_the_engine_says_against_a_constraint_is_raised() -> None:
    error = to_wire(ConstraintError("no such type", field="input.constraint.json_schema"))
    async with started(lambda check: Checked(check.id, error=error)) as (llm, _):
        with pytest.raises(ConstraintError, match="no such type") as caught:
            await llm.check(JsonSchema('{"type":"nosuch"}'))
        assert caught.value.field == "input.constraint.json_schema"
        assert llm.num_open == 0


@asynchronous
async def test_a_text_that_is_too_long_does_not_reach_the_engine() -> None:
    async with started() as (llm, client):
        assert await llm.check(DIGITS, "é" * (MAX_CHECKED_BYTES // 2))
        with pytest.raises(InvalidRequest, match="at most 262144 bytes, got 262146") as caught:
            await llm.check(DIGITS, "é" * (MAX_CHECKED_BYTES // 2 + 1))
        assert caught.value.field == "input.text"
        assert len(client.checks) == 1
        assert client.aborted == []
        assert llm.num_open == 0


@asynchronous
async def test_an_answer_goes_to_the_check_it_is_for() -> None:
    async with started(lambda check: None) as (llm, client):
        constraints = [Regex("a"), Regex("b")]
        tasks = [asyncio.create_task(llm.check(constraint)) for constraint in constraints]
        await until(lambda: len(client.checks) == 2)
        for check in reversed(client.checks):
            client.say_checked(usable(check))
        answers = [await task for task in tasks]
        assert [answer.constraint.key for answer in answers] == [c.key() for c in constraints]


@asynchronous
async def test_a_check_that_nobody_waits_for_is_dropped_by_the_engine() -> None:
    async with started(lambda check: None) as (llm, client):
        task = asyncio.create_task(llm.check(DIGITS, "1"))
        await until(lambda: bool(client.checks))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.aborted == [client.checks[0].id]
        assert llm.num_open == 0
        client.say_checked(usable(client.checks[0]))  # too late, and harmless
        client.answer_check = usable
        assert (await llm.check(DIGITS)).size_bytes == 100


@asynchronous
async def test_a_dead_engine_fails_its_checks_and_the_next_is_answered_by_the_new_one() -> None:
    async with started(lambda check: None) as (llm, client):
        task = asyncio.create_task(llm.check(DIGITS))
        await until(lambda: bool(client.checks))
        client.die()
        with pytest.raises(EngineDead, match="the engine process died"):
            await task
        with pytest.raises(EngineDead, match="the engine is not running"):
            await llm.check(DIGITS)
        client.answer_check = usable
        await until(lambda: llm.ready)
        assert (await llm.check(DIGITS)).constraint.key == DIGITS.key()
        assert client.aborted == []


@asynchronous
async def test_checks_count_among_what_the_server_holds() -> None:
    async with started(lambda check: None, max_waiting=1) as (llm, client):
        task = asyncio.create_task(llm.check(DIGITS))
        await until(lambda: bool(client.checks))
        with pytest.raises(LimitExceeded, match="max_waiting"):
            await llm.check(DIGITS)
        with pytest.raises(LimitExceeded, match="max_waiting"):
            await generate(llm)
        client.say_checked(usable(client.checks[0]))
        await task
        assert await generate(llm)


@asynchronous
async def test_draining_waits_for_checks_and_takes_no_new_ones() -> None:
    async with started(lambda check: None) as (llm, client):
        task = asyncio.create_task(llm.check(DIGITS))
        await until(lambda: bool(client.checks))
        drained = asyncio.create_task(llm.drain(10))
        await asyncio.sleep(0.01)
        assert not drained.done()
        with pytest.raises(EngineDead, match="shutting down"):
            await llm.check(DIGITS)
        client.say_checked(usable(client.checks[0]))
        await task
        await drained


@asynchronous
async def test_a_check_beyond_the_grace_period_is_told_so() -> None:
    async with started(lambda check: None) as (llm, client):
        task = asyncio.create_task(llm.check(DIGITS))
        await until(lambda: bool(client.checks))
        await llm.drain(0.01)
        with pytest.raises(EngineDead, match="shutting down"):
            await task


# ---- constraint ids


@asynchronous
async def test_an_id_of_a_check_stands_for_its_constraint() -> None:
    async with started() as (llm, client):
        id = (await llm.check(DIGITS)).constraint.key
        await generate(llm, id, max_tokens=7)
        assert client.requests[-1].params == SamplingParams(constraint=DIGITS, max_tokens=7)
        await llm.check(ConstraintId(id), "12")
        assert client.checks[-1].constraint == DIGITS


@asynchronous
async def test_an_id_of_an_answer_stands_for_its_constraint() -> None:
    async with started() as (llm, client):
        first, *_ = await generate(llm, constraint=DIGITS)
        assert first.constraint is not None
        await generate(llm, first.constraint.key)
        assert client.requests[-1].params.constraint == DIGITS


@asynchronous
async def test_an_id_stands_for_what_was_enforced() -> None:
    """Of a choice, the bad words among its options are left out."""
    async with started() as (llm, client):
        given = Choice(("yes", "no", "bad"))
        first, *_ = await generate(llm, constraint=given, bad_words=("bad",))
        assert first.constraint is not None
        await generate(llm, first.constraint.key)
        assert client.requests[-1].params.constraint == Choice(("yes", "no"))
        with pytest.raises(NotFound):
            await generate(llm, given.key())


@asynchronous
async def test_an_id_outlives_the_engine() -> None:
    async with started() as (llm, client):
        id = (await llm.check(DIGITS)).constraint.key
        client.die()
        await until(lambda: client.num_starts == 2 and llm.ready)
        await generate(llm, id)
        assert client.requests[-1].params.constraint == DIGITS


@asynchronous
async def test_an_unknown_id_is_not_found_and_holds_nothing() -> None:
    async with started() as (llm, client):
        for call in (generate(llm, "nosuch"), llm.check(ConstraintId("nosuch"))):
            with pytest.raises(NotFound, match="'nosuch'") as caught:
                await call
            assert caught.value.field == "input.constraint.constraint_id"
        assert llm.num_open == 0
        assert client.received == []


@asynchronous
async def test_what_did_not_compile_has_no_id() -> None:
    error = to_wire(ConstraintError("no"))
    async with started(lambda check: Checked(check.id, error=error)) as (llm, _):
        with pytest.raises(ConstraintError):
            await llm.check(DIGITS)
        with pytest.raises(NotFound):
            await llm.check(ConstraintId(DIGITS.key()))


@asynchronous
async def test_what_cannot_go_with_a_constraint_cannot_go_with_its_id() -> None:
    async with started() as (llm, _):
        id = (await llm.check(DIGITS)).constraint.key
        with pytest.raises(InvalidRequest, match="ignore_eos cannot be combined"):
            await generate(llm, id, ignore_eos=True)
        with pytest.raises(InvalidRequest, match="given once"):
            await generate(llm, id, constraint=DIGITS)


# ---- what is remembered


def test_the_least_recently_used_is_forgotten_first() -> None:
    known = KnownConstraints(max_entries=2)
    for pattern in "ab":
        known.add(pattern, Regex(pattern))
    known.get("a")
    known.add("c", Regex("c"))
    assert known.get("a") == Regex("a")
    assert known.get("c") == Regex("c")
    with pytest.raises(NotFound):
        known.get("b")


def test_what_is_added_again_is_used_again() -> None:
    known = KnownConstraints(max_entries=2)
    for pattern in "abac":
        known.add(pattern, Regex(pattern))
    assert known.get("a") == Regex("a")
    assert len(known) == 2


def test_the_bytes_of_all_texts_are_bounded() -> None:
    known = KnownConstraints(max_bytes=10_000)
    for index in range(50):
        known.add(str(index), Regex("a" * 1000 + str(index)))
    assert 5 < len(known) < 10
    known.add("large", Regex("a" * 20_000))
    assert len(known) == 0
    known.add("small", Regex("a"))
    assert known.get("small") == Regex("a")
