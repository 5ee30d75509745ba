"""Streams over one engine: nothing leaks, everything ends, and a dead engine comes back."""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
from frontend_fakes import FakeEngineClient, ToyTokenizer, completing, echo, model_info, silent

from structgen.config import EngineConfig
from structgen.constraints import Choice, JsonObject, JsonSchema
from structgen.errors import (
    ConfigError,
    ConstraintError,
    DuplicateRequest,
    EngineDead,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    WireError,
    to_wire,
)
from structgen.frontend import verify
from structgen.frontend.answer import ConstraintStatus
from structgen.frontend.async_llm import INLINE_CHARS, AsyncLLM
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.outputs import RequestOutput, merge, merge_answers
from structgen.messages import Abort, EngineOutput, EngineRequest, FinishReason
from structgen.params import SamplingParams


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own; hanging is a failure."""

    @functools.wraps(test)
    def run(*args: object, **kwargs: object) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 20))

    return run


@asynccontextmanager
async def started(client: FakeEngineClient, **options: object) -> AsyncIterator[AsyncLLM]:
    config = EngineConfig(max_waiting=options.pop("max_waiting", 4096))
    options = {"load_tokenizer": lambda folder: ToyTokenizer(), "backoff_s": 0.001, **options}
    async with AsyncLLM(config, client, **options) as llm:
        yield llm


def say(prompt: str = "abc", request_id: str = "", **params: object) -> GenerationInput:
    return GenerationInput(prompt=prompt, request_id=request_id, params=SamplingParams(**params))


async def answer(llm: AsyncLLM, input: GenerationInput) -> RequestOutput:
    async with aclosing(llm.generate(input)) as stream:
        return merge([piece async for piece in stream])


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def assert_nothing_left(llm: AsyncLLM, client: FakeEngineClient) -> None:
    assert llm.num_open == 0
    assert len(llm._loaded.outputs) == 0
    assert client.open_ids == []


@asynchronous
async def test_an_answer_streams_to_its_end_and_leaves_nothing():
    client = FakeEngineClient()
    async with started(client) as llm:
        pieces = [piece async for piece in llm.generate(say("abc", "mine"))]
        assert "".join(piece.text for piece in pieces) == "abc"
        assert {piece.request_id for piece in pieces} == {"mine"}
        assert [piece.finish is not None for piece in pieces][-2:] == [False, True]
        assert client.aborted == []
        assert_nothing_left(llm, client)


@asynchronous
async def test_the_last_piece_frees_the_request_even_if_the_caller_stops_there():
    client = FakeEngineClient()
    async with started(client) as llm:
        stream = llm.generate(say())
        while (await anext(stream)).finish is None:
            pass
        assert_nothing_left(llm, client)
        await stream.aclose()
        assert client.aborted == []


@asynchronous
async def test_closing_a_stream_aborts_its_request_once():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        stream = llm.generate(say(request_id="mine"))
        task = asyncio.create_task(anext(stream))
        await settle()
        client.say(EngineOutput(client.requests[0].id, [97]))
        await task
        await stream.aclose()
        await stream.aclose()
        assert client.aborted == [client.requests[0].id]
        assert_nothing_left(llm, client)


@asynchronous
async def test_cancelling_the_caller_aborts_its_request_once():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        task = asyncio.create_task(answer(llm, say()))
        await settle()
        task.cancel()
        await asyncio.wait([task])
        assert client.aborted == [client.requests[0].id]
        assert_nothing_left(llm, client)


@asynchronous
async def test_an_id_may_be_used_again_while_outputs_of_its_old_request_arrive():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        first = asyncio.create_task(answer(llm, say(request_id="mine")))
        await settle()
        first.cancel()
        await asyncio.wait([first])
        second = asyncio.create_task(answer(llm, say(request_id="mine")))
        await settle()
        old, new = [request.id for request in client.requests]
        client.say(EngineOutput(old, [120], FinishReason.MAX_TOKENS))
        client.say(EngineOutput(new, [121], FinishReason.MAX_TOKENS))
        assert (await second).text == "y"


@asynchronous
async def test_a_stop_string_ends_the_answer_and_the_engines_work():
    client = FakeEngineClient()
    async with started(client) as llm:
        whole = await answer(llm, say("abcdef", stop=("cd",)))
        assert whole.text == "ab"
        await settle()
        assert client.aborted == [client.requests[0].id]
        assert_nothing_left(llm, client)


@asynchronous
async def test_a_live_duplicate_is_refused_and_the_first_goes_on():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        first = asyncio.create_task(answer(llm, say(request_id="mine")))
        await settle()
        with pytest.raises(DuplicateRequest, match="'mine'"):
            await answer(llm, say(request_id="mine"))
        client.say(EngineOutput(client.requests[0].id, [97], FinishReason.MAX_TOKENS))
        assert (await first).text == "a"


@asynchronous
async def test_a_long_text_reserves_its_id_before_it_is_encoded():
    client = FakeEngineClient(model=model_info(2 * INLINE_CHARS))
    async with started(client) as llm:
        long = say("x" * (INLINE_CHARS + 1), "mine")
        results = await asyncio.gather(answer(llm, long), answer(llm, long), return_exceptions=True)
        assert [type(result) for result in results] == [RequestOutput, DuplicateRequest]
        assert len(results[0].text) == INLINE_CHARS + 1


@asynchronous
async def test_a_caller_that_leaves_while_its_text_is_encoded_sends_nothing():
    client = FakeEngineClient(model=model_info(2 * INLINE_CHARS))
    async with started(client) as llm:
        task = asyncio.create_task(answer(llm, say("x" * (INLINE_CHARS + 1))))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert client.received == []
        assert_nothing_left(llm, client)


@asynchronous
async def test_more_than_max_waiting_requests_are_refused():
    client = FakeEngineClient(silent)
    async with started(client, max_waiting=2) as llm:
        tasks = [asyncio.create_task(answer(llm, say())) for _ in range(2)]
        await settle()
        with pytest.raises(LimitExceeded, match="at most 2") as error:
            await answer(llm, say())
        assert error.value.retryable
        await llm.close()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynchronous
async def test_a_refused_prompt_leaves_nothing():
    client = FakeEngineClient()
    async with started(client) as llm:
        with pytest.raises(InvalidRequest):
            await answer(llm, say("x" * 100))
        assert client.received == []
        assert_nothing_left(llm, client)


def fails(request: EngineRequest) -> list[EngineOutput]:
    error = to_wire(ConstraintError("no such rule", field="input.constraint.grammar"))
    return [EngineOutput(request.id, [], FinishReason.ERROR, error=error)]


@asynchronous
async def test_a_requests_error_is_raised_to_its_caller_alone():
    client = FakeEngineClient(lambda r: fails(r) if r.prompt_ids == [98] else echo(r))
    async with started(client) as llm:
        good, bad = await asyncio.gather(
            answer(llm, say("a")), answer(llm, say("b")), return_exceptions=True
        )
        assert good.text == "a"
        assert isinstance(bad, ConstraintError)
        assert_nothing_left(llm, client)


@asynchronous
async def test_what_a_slow_reader_has_not_taken_becomes_one_piece():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        stream = llm.generate(say())
        first = asyncio.create_task(anext(stream))
        await settle()
        id = client.requests[0].id
        client.say(EngineOutput(id, [97]))
        assert (await first).text == "a"
        client.say(*[EngineOutput(id, [code]) for code in b"bcdefg"])
        await until(lambda: not client.waiting(id))
        await settle()
        piece = await anext(stream)
        assert (piece.text, piece.token_ids) == ("bcdefg", list(b"bcdefg"))
        await stream.aclose()


@asynchronous
async def test_200_callers_that_leave_at_random_moments_leave_nothing():
    client = FakeEngineClient()
    rng = random.Random(0)
    async with started(client) as llm:

        async def call(moment: int) -> None:
            task = asyncio.create_task(answer(llm, say("x" * rng.randint(1, 40))))
            for _ in range(moment):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        await asyncio.gather(*[call(rng.randint(0, 120)) for _ in range(200)])
        await settle()
        assert_nothing_left(llm, client)
        assert len(client.aborted) == len(set(client.aborted)) > 20
        assert (await answer(llm, say("still here"))).text == "still here"


# ---- several answers to a request


@asynchronous
async def test_answers_stream_by_index_and_the_last_one_ends_the_stream():
    client = FakeEngineClient()
    async with started(client) as llm:
        pieces = [piece async for piece in llm.generate(say("abc", n=3))]
        answers = merge_answers(pieces)
        assert [(whole.index, whole.text) for whole in answers] == [(i, "abc") for i in range(3)]
        assert sum(piece.finish is not None for piece in pieces) == 3
        assert pieces[-1].usage.completion_tokens == 9
        assert client.aborted == []
        assert_nothing_left(llm, client)


@asynchronous
async def test_what_a_slow_reader_has_not_taken_becomes_one_piece_of_each_answer():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        stream = llm.generate(say(n=2))
        first = asyncio.create_task(anext(stream))
        await settle()
        id = client.requests[0].id
        client.say(EngineOutput(id, [97], index=1))
        assert (await first).index == 1
        client.say(*[EngineOutput(id, [code], index=code % 2) for code in b"bcdefg"])
        client.say(EngineOutput(id, [], FinishReason.MAX_TOKENS, index=1))
        await until(lambda: not client.waiting(id))
        await settle()
        pieces = [await anext(stream), await anext(stream)]
        assert [(piece.index, piece.text) for piece in pieces] == [(0, "bdf"), (1, "ceg")]
        assert [piece.finish is not None for piece in pieces] == [False, True]
        await stream.aclose()
        assert client.aborted == [id]


@asynchronous
async def test_a_stop_string_ends_one_answer_in_the_engine_and_the_others_go_on():
    def script(request: EngineRequest) -> list[EngineOutput]:
        ab, ac = [EngineOutput(request.id, list(b"ab"))], list(b"acdef")
        return ab + [EngineOutput(request.id, [id], index=1) for id in ac] + echo(request)[-2:]

    client = FakeEngineClient(script)
    async with started(client) as llm:
        pieces = [piece async for piece in llm.generate(say(n=2, stop=("b",)))]
        assert [whole.text for whole in merge_answers(pieces)] == ["a", "acdef"]
        [abort] = [message for message in client.received if isinstance(message, Abort)]
        assert abort == Abort([], [(client.requests[0].id, 0)])
        assert_nothing_left(llm, client)


@asynchronous
@pytest.mark.parametrize("num_finished", [0, 1, 2])
async def test_leaving_aborts_all_answers_with_one_message(num_finished):
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        stream = llm.generate(say(n=3))
        first = asyncio.create_task(anext(stream))
        await settle()
        id = client.requests[0].id
        client.say(*[EngineOutput(id, [97], index=index) for index in range(3)])
        await first
        for index in range(num_finished):
            client.say(EngineOutput(id, [], FinishReason.STOP, index=index))
        await settle()
        await stream.aclose()
        assert client.aborted == [id]
        assert_nothing_left(llm, client)


@asynchronous
async def test_complete_answers_are_delivered_before_the_failure_of_their_request():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        stream = llm.generate(say(n=2))
        first = asyncio.create_task(anext(stream))
        await settle()
        id = client.requests[0].id
        client.say(EngineOutput(id, [97], FinishReason.STOP, index=1))
        await settle()
        client.die()
        await settle()
        assert (await first).finish is not None
        with pytest.raises(EngineDead):
            await anext(stream)


# ---- a dying engine


# ---- verdicts


def verdict(answer: RequestOutput) -> tuple[ConstraintStatus, bool]:
    assert answer.finish is not None
    return answer.finish.constraint_status, answer.finish.verified


VERIFIED = (ConstraintStatus.COMPLETE, True)
UNVERIFIED = (ConstraintStatus.COMPLETE, False)
VIOLATED = (ConstraintStatus.VIOLATED, False)


@asynchronous
@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [
        (JsonSchema('{"maximum": 5}'), "5", VERIFIED),
        (JsonSchema('{"maximum": 5}'), "6", VIOLATED),
        (JsonSchema('{"maximum": 5}', best_effort=True), "6", VIOLATED),
        (JsonSchema("true"), '{"a": 1, "a": 1}', VIOLATED),
        (JsonSchema('{"$ref": "elsewhere"}'), "6", UNVERIFIED),
        (JsonObject(), "{}", VERIFIED),
        (JsonObject(), "[]", VIOLATED),
        (Choice(("yes", "no")), "yes", UNVERIFIED),
        (None, "{}", (ConstraintStatus.NOT_CONSTRAINED, False)),
    ],
)
async def test_the_whole_text_of_a_complete_answer_is_judged(constraint, text, expected):
    client = FakeEngineClient(completing)
    async with started(client) as llm:
        whole = await answer(llm, say(text, constraint=constraint))
        assert (whole.text, verdict(whole)) == (text, expected)
        assert_nothing_left(llm, client)


@asynchronous
async def test_an_incomplete_answer_is_not_judged():
    def cut(request: EngineRequest) -> list[EngineOutput]:
        return [EngineOutput(request.id, [ord("[")], FinishReason.MAX_TOKENS)]

    async with started(FakeEngineClient(cut)) as llm:
        constraint = JsonSchema("true", best_effort=True)
        whole = await answer(llm, say(constraint=constraint))
        assert verdict(whole) == (ConstraintStatus.INCOMPLETE, False)


@asynchronous
async def test_each_of_several_answers_has_its_own_verdict():
    def script(request: EngineRequest) -> list[EngineOutput]:
        end = FinishReason.CONSTRAINT_COMPLETE
        return [
            EngineOutput(request.id, list(b"1")),
            EngineOutput(request.id, list(b"2"), index=1),
            EngineOutput(request.id, list(b"0"), end),
            EngineOutput(request.id, [], end, index=1),
            EngineOutput(request.id, list(b"x"), FinishReason.MAX_TOKENS, index=2),
        ]

    async with started(FakeEngineClient(script)) as llm:
        params = say(constraint=JsonSchema('{"maximum": 5}'), n=3)
        answers = merge_answers([piece async for piece in llm.generate(params)])
        assert [answer.text for answer in answers] == ["10", "2", "x"]
        incomplete = (ConstraintStatus.INCOMPLETE, False)
        assert [verdict(answer) for answer in answers] == [VIOLATED, VERIFIED, incomplete]


@asynchronous
async def test_a_violation_is_an_error_in_the_log_without_the_text(caplog):
    caplog.set_level(logging.INFO, "structgen")
    async with started(FakeEngineClient(completing)) as llm:
        for number in (1, 2):
            await answer(llm, say('"secret"', f"r{number}", constraint=JsonSchema("false")))
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert [("request=r1" in e, "violations=1" in e) for e in errors] == [(1, 1), (0, 0)]
    assert "violations=2" in errors[1]
    assert "secret" not in caplog.text


@asynchronous
async def test_other_requests_go_on_while_an_answer_is_judged(monkeypatch):
    begun, over = threading.Event(), threading.Event()
    threads = []

    def slow(constraint: JsonSchema, text: str) -> bool:
        threads.append(threading.current_thread())
        begun.set()
        return over.wait(10)

    monkeypatch.setattr(verify, "is_met", slow)
    client = FakeEngineClient(completing)
    async with started(client) as llm:
        judged = asyncio.create_task(answer(llm, say("{}", constraint=JsonObject())))
        await until(begun.is_set)
        assert (await answer(llm, say("free"))).text == "free"
        assert (llm.num_open, judged.done()) == (1, False)
        over.set()
        assert verdict(await judged) == VERIFIED
        assert threads[0] is not threading.current_thread()
        assert_nothing_left(llm, client)


@asynchronous
async def test_a_caller_that_leaves_while_its_answer_is_judged_leaves_nothing(monkeypatch):
    begun, over = threading.Event(), threading.Event()
    monkeypatch.setattr(verify, "is_met", lambda *given: begun.set() or over.wait(10))
    client = FakeEngineClient(completing)
    async with started(client) as llm:
        task = asyncio.create_task(answer(llm, say("{}", constraint=JsonObject())))
        await until(begun.is_set)
        task.cancel()
        await asyncio.wait([task])
        over.set()
        assert client.aborted == []
        assert_nothing_left(llm, client)


@asynchronous
async def test_a_complete_answer_that_is_taken_after_closing_is_not_judged():
    client = FakeEngineClient(completing)
    async with started(client) as llm:
        stream = llm.generate(say("{}", constraint=JsonObject()))
        first = await anext(stream)
        await until(lambda: not client.open_ids)
        await settle()
        await llm.close()
        whole = merge([first, *[piece async for piece in stream]])
        assert (whole.text, verdict(whole)) == ("{}", UNVERIFIED)


# ---- a dead engine


@asynchronous
async def test_engine_death_fails_all_and_a_restart_serves_again():
    client = FakeEngineClient(silent)
    states: list[bool] = []
    async with started(client, on_state=states.append) as llm:
        tasks = [asyncio.create_task(answer(llm, say())) for _ in range(16)]
        await settle()
        client.die()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [EngineDead] * 16
        assert not llm.ready
        with pytest.raises(EngineDead, match="not running"):
            await answer(llm, say())
        client.script = echo
        await until(lambda: llm.ready)
        assert (await answer(llm, say("again"))).text == "again"
        assert states == [True, False, True]
        assert client.aborted == []
        assert_nothing_left(llm, client)
    assert states == [True, False, True, False]


@asynchronous
async def test_text_that_came_before_the_death_is_still_delivered():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        stream = llm.generate(say())
        first = asyncio.create_task(anext(stream))
        await settle()
        client.say(EngineOutput(client.requests[0].id, [97]))
        await settle()
        client.die()
        await settle()
        assert (await first).text == "a"
        with pytest.raises(EngineDead):
            await anext(stream)


@asynchronous
async def test_a_restart_that_fails_is_tried_again():
    client = FakeEngineClient()
    async with started(client) as llm:
        client.failures = [EngineDead("no memory")] * 2
        client.die()
        await until(lambda: client.num_starts == 4 and llm.ready)
        assert (await answer(llm, say())).text == "abc"


@asynchronous
async def test_a_served_request_resets_the_count_of_restarts():
    client = FakeEngineClient()
    async with started(client, max_restarts=1) as llm:
        for _ in range(3):
            client.die()
            await settle()
            await until(lambda: llm.ready)
            await answer(llm, say())


@asynchronous
async def test_an_engine_that_keeps_dying_is_given_up():
    client = FakeEngineClient()
    async with started(client, max_restarts=2) as llm:
        client.failures = [EngineDead("no memory")] * 9
        client.die()
        with pytest.raises(EngineDead, match="after 2 restarts"):
            await llm.wait_closed()
        assert client.num_starts == 3
        with pytest.raises(EngineDead, match="not running"):
            await answer(llm, say())


@asynchronous
async def test_an_engine_that_cannot_start_is_not_tried_again():
    client = FakeEngineClient()
    async with started(client) as llm:
        client.failures = [ConfigError("no such model")]
        client.die()
        with pytest.raises(ConfigError):
            await llm.wait_closed()
        assert client.num_starts == 2


@asynchronous
async def test_a_first_start_that_fails_is_raised_and_closes_the_engine():
    client = FakeEngineClient()
    client.failures = [ConfigError("no such model")]
    with pytest.raises(ConfigError, match="no such model"):
        async with started(client):
            pass
    assert client.closed


@asynchronous
async def test_a_bug_of_the_front_end_leaves_nobody_waiting():
    unheard_of = WireError("UnheardOfError", "what")
    client = FakeEngineClient(lambda request: [EngineOutput(request.id, [], error=unheard_of)])
    async with started(client) as llm:
        with pytest.raises(InternalError):
            await answer(llm, say())
        assert not llm.ready
        with pytest.raises(KeyError):
            await llm.wait_closed()


# ---- the end


@asynchronous
async def test_draining_refuses_new_requests_and_lets_running_ones_finish():
    client = FakeEngineClient(silent)
    states: list[bool] = []
    async with started(client, on_state=states.append) as llm:
        running = asyncio.create_task(answer(llm, say("a")))
        await settle()
        draining = asyncio.create_task(llm.drain(10))
        await settle()
        assert not llm.ready
        with pytest.raises(EngineDead, match="shutting down"):
            await answer(llm, say())
        client.say(EngineOutput(client.requests[0].id, [97], FinishReason.MAX_TOKENS))
        assert (await running).text == "a"
        await draining
        assert states == [True, False]
        assert client.aborted == []


@asynchronous
async def test_what_outlives_the_grace_period_is_aborted_and_says_so():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        tasks = [asyncio.create_task(answer(llm, say())) for _ in range(3)]
        await settle()
        await llm.drain(0.01)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(result) for result in results] == ["the server is shutting down"] * 3
        assert client.aborted == [request.id for request in client.requests]
        assert_nothing_left(llm, client)


@asynchronous
async def test_closing_fails_what_is_open_and_may_be_repeated():
    client = FakeEngineClient(silent)
    async with started(client) as llm:
        task = asyncio.create_task(answer(llm, say()))
        await settle()
        await llm.close()
        await llm.close()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], EngineDead)
        await llm.wait_closed()
        assert client.closed
