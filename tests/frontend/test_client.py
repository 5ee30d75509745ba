"""Client and AsyncClient against a real server and a scripted AsyncLLM."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from pydantic import BaseModel
from scripted_llm import INFO, ScriptedLLM, position, serving, serving_aside

from structgen.client import AsyncClient, Client, ConstraintCheck, TextVerdict
from structgen.constraints import ConstraintId, JsonObject, JsonSchema, Regex
from structgen.errors import (
    ConstraintError,
    DeadlineExceeded,
    EngineDead,
    InternalError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from structgen.frontend.grpc._pb.generation_pb2 import GenerationInput
from structgen.frontend.outputs import merge, merge_answers
from structgen.messages import FinishReason
from structgen.params import SamplingParams
from structgen.tokenizer import ChatMessage


class Person(BaseModel):
    name: str


class Number(BaseModel):
    number: int


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[ScriptedLLM, str]]:
    with serving_aside() as place:
        yield place


@pytest.fixture
def llm(place: tuple[ScriptedLLM, str]) -> ScriptedLLM:
    llm, _ = place
    llm.inputs.clear()
    llm.aborted.clear()
    return llm


@pytest.fixture
def client(place: tuple[ScriptedLLM, str]) -> Iterator[Client]:
    with Client(place[1]) as client:
        yield client


def test_an_answer_has_all_that_the_server_told(client: Client) -> None:
    answer = client.generate("hi", request_id="me", token_ids=True)
    assert (answer.request_id, answer.text, answer.token_ids) == ("me", "Hello", [7, 9, 8])
    assert answer.finish_reason is FinishReason.STOP
    assert answer.stop_id == 0
    assert answer.parsed is None
    assert not answer.verified
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert answer.timings is not None
    assert answer.timings.time_to_first_token == 1.75


def test_a_model_class_is_a_schema_and_comes_back_as_an_object(
    client: Client, llm: ScriptedLLM
) -> None:
    answer = client.generate("json", constraint=Person)
    assert answer.parsed == Person(name="Ada")
    assert llm.inputs[0].params.constraint == JsonSchema.of(Person)
    assert answer.verified
    assert answer.constraint == INFO


def test_several_answers_are_the_samples_of_the_first(client: Client) -> None:
    answer = client.generate("hi", SamplingParams(n=3))
    assert [(sample.index, sample.text) for sample in answer.samples] == [
        (index, "Hello") for index in range(3)
    ]
    assert len(client.generate("hi").samples) == 1


def test_log_probabilities_arrive_with_text_and_bytes(client: Client) -> None:
    answer = client.generate("scored", SamplingParams(logprobs=2, prompt_logprobs=0))
    assert answer.logprobs == [position(7, 0.5), position(9), position(8)]
    assert answer.prompt_logprobs == [None, position(5)]
    whole = merge(list(client.stream("scored")))
    assert (whole.logprobs, whole.prompt_logprobs) == (answer.logprobs, answer.prompt_logprobs)


def test_several_answers_stream_by_index(client: Client) -> None:
    answers = merge_answers(client.stream("hi", SamplingParams(n=2), request_id="me"))
    assert [(a.request_id, a.index, a.text) for a in answers] == [
        ("me", 0, "Hello"),
        ("me", 1, "Hello"),
    ]
    assert all(answer.finish is not None for answer in answers)


@pytest.mark.parametrize("constraint", [{"type": "object"}, JsonObject()])
def test_other_json_comes_back_as_data(
    client: Client, constraint: dict[str, object] | JsonObject
) -> None:
    assert client.generate("json", constraint=constraint).parsed == {"name": "Ada"}


def test_text_that_is_not_json_is_not_parsed(client: Client) -> None:
    assert client.generate("json", constraint=Regex(".*")).parsed is None


@pytest.mark.parametrize(
    "prompt", ["hi", [1, 2], [ChatMessage("user", "hi")], [{"role": "user", "content": "hi"}]]
)
def test_every_kind_of_prompt_arrives(client: Client, llm: ScriptedLLM, prompt: object) -> None:
    client.generate(prompt, SamplingParams(max_tokens=5, temperature=0), priority=2)  # type: ignore[call-overload]
    (given,) = llm.inputs
    expected = (
        [ChatMessage("user", "hi")] if isinstance(prompt, list) and prompt[0] != 1 else prompt
    )
    assert given.prompt == expected
    assert given.params == SamplingParams(max_tokens=5, temperature=0)
    assert given.priority == 2


def test_the_pieces_of_a_stream_make_the_answer(client: Client) -> None:
    pieces = list(client.stream("json", constraint=Person, request_id="me"))
    assert "".join(piece.text for piece in pieces) == '{"name": "Ada"}'
    assert {piece.request_id for piece in pieces} == {"me"}
    assert pieces[-1].finish is not None
    assert pieces[-1].finish.verified
    assert pieces[-1].constraint == INFO
    assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


def test_a_stream_closed_early_aborts(client: Client, llm: ScriptedLLM) -> None:
    pieces = client.stream("begin", request_id="me")
    next(pieces)
    pieces.close()
    deadline = time.monotonic() + 10
    while llm.aborted != ["me"] and time.monotonic() < deadline:
        time.sleep(0.005)
    assert llm.aborted == ["me"]


@pytest.mark.parametrize(
    ("prompt", "kind"), [("full", LimitExceeded), ("bug", InternalError), ("lost", EngineDead)]
)
def test_errors_are_ours(client: Client, prompt: str, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        client.generate(prompt)
    with pytest.raises(kind):
        list(client.stream(prompt))


def test_an_error_names_the_field(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgen.frontend.grpc import convert

    def without_a_prompt(given: object) -> GenerationInput:
        return GenerationInput()

    monkeypatch.setattr(convert, "to_wire", without_a_prompt)
    with pytest.raises(InvalidRequest, match=r"^input\.prompt: prompt must be one of") as caught:
        client.generate("hi")
    assert caught.value.field == "input.prompt"


def test_a_deadline_that_passes_is_told(client: Client) -> None:
    with pytest.raises(DeadlineExceeded):
        client.generate("hang", timeout_s=0.1)


def test_a_server_that_is_not_there_is_told() -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(EngineDead):
            client.generate("hi")
        with pytest.raises(DeadlineExceeded):
            client.wait_ready(0.2)


def test_readiness_can_be_waited_for(client: Client) -> None:
    client.wait_ready(10)
    assert client.model_info().name == "scripted"


def test_the_async_client_does_the_same() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with serving(llm) as (_, address), AsyncClient(address) as client:
            await client.wait_ready(10)
            answer = await client.generate("json", constraint=Person)
            assert answer.parsed == Person(name="Ada")
            pieces = [piece async for piece in client.stream("hi")]
            assert "".join(piece.text for piece in pieces) == "Hello"
            assert (await client.model_info()).name == "scripted"
            with pytest.raises(LimitExceeded):
                await client.generate("full")
            waiting = asyncio.create_task(client.generate("hang"))
            while not llm.live:
                await asyncio.sleep(0.005)
            waiting.cancel()
            while llm.live:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(test(), 20))


def test_a_constraint_is_checked_and_its_id_used(client: Client, llm: ScriptedLLM) -> None:
    llm.checks.clear()
    check = client.check({"type": "string"})
    assert check == ConstraintCheck(constraint=INFO, size_bytes=1234)
    known = ConstraintId(check.constraint.key)
    client.generate("hi", SamplingParams(close_within_budget=False), constraint=known)
    assert client.check_text(known, "12").accepted
    assert llm.checks == [(JsonSchema('{"type":"string"}'), None), (known, "12")]
    assert llm.inputs[0].constraint_id == INFO.key
    assert not llm.inputs[0].params.close_within_budget


def test_a_text_is_judged(client: Client) -> None:
    assert client.check_text(Number, "1") == TextVerdict(may_end=True, expected=["0", "1"])
    assert client.check_text(Number, "+").is_prefix
    assert client.check_text(Regex("[0-9]+"), "1x") == TextVerdict(1, True, ["0", "1"])


def test_checks_raise_what_the_server_says(client: Client) -> None:
    with pytest.raises(ConstraintError, match=r"constraint\.regex: regex is bad"):
        client.check(Regex("bad"))
    with pytest.raises(NotFound, match="no nosuch"):
        client.check_text(ConstraintId("nosuch"), "1")
    with pytest.raises(DeadlineExceeded):
        client.check_text(Regex("a"), "hang", timeout_s=0.05)
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        client.check_text(Regex("a"), "\ud800")
    params = SamplingParams(constraint=JsonObject())
    with pytest.raises(InvalidRequest, match="given once"):
        client.generate("hi", params, constraint=ConstraintId(INFO.key))


def test_the_asynchronous_client_checks_too(place: tuple[ScriptedLLM, str]) -> None:
    async def test() -> None:
        async with AsyncClient(place[1]) as client:
            assert (await client.check(JsonObject())).constraint == INFO
            assert (await client.check_text(Number, "1")).accepted
            with pytest.raises(ConstraintError):
                await client.check(Regex("bad"))

    asyncio.run(test())
