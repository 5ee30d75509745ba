"""Prompts in, results out, in order; and the public names cost nothing until they are used."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from frontend_fakes import FakeStepClient, ToyTokenizer, completing, echo, silent
from pydantic import BaseModel

import structgen
from structgen.constraints import Backend, Choice, Constraint, JsonObject, JsonSchema
from structgen.errors import (
    ConfigError,
    ConstraintError,
    EngineDead,
    InternalError,
    InvalidRequest,
    to_wire,
)
from structgen.frontend.answer import ConstraintStatus
from structgen.frontend.llm import LLM, GenerationResult
from structgen.messages import Abort, EngineOutput, EngineRequest, FinishReason
from structgen.params import SamplingParams
from structgen.tokenizer import ChatMessage


class Person(BaseModel):
    name: str


def llm(client: FakeStepClient | None = None, **options: object) -> LLM:
    return LLM(client=client or FakeStepClient(), tokenizer=ToyTokenizer(), **options)


def generate(prompts: object, client: FakeStepClient | None = None) -> list[GenerationResult]:
    return llm(client).generate(prompts, use_tqdm=False)


def constraints_sent(client: FakeStepClient) -> list[Constraint | None]:
    return [m.params.constraint for m in client.received if isinstance(m, EngineRequest)]


def test_results_come_in_input_order_whatever_order_they_end_in():
    prompts = ["a" * length for length in (30, 1, 20, 2, 10)]
    results = generate(prompts)
    assert [result.text for result in results] == prompts
    assert all(result.finish.reason is FinishReason.STOP for result in results)
    assert [result.usage.completion_tokens for result in results] == [30, 1, 20, 2, 10]


@pytest.mark.parametrize(
    ("prompts", "texts"),
    [
        ("hi", ["hi"]),
        ([], []),
        (["hi", "ho"], ["hi", "ho"]),
        ([104, 105], ["hi"]),
        (np.array([104, 105]), ["hi"]),
        ([[104], [105]], ["h", "i"]),
        ([np.array([104]), np.array([105])], ["h", "i"]),
        ([{"role": "user", "content": "hi"}], ["user:hi\n"]),
        ([ChatMessage("user", "hi")], ["user:hi\n"]),
        ([[{"role": "user", "content": "hi"}], "ho", [105]], ["user:hi\n", "ho", "i"]),
    ],
)
def test_one_prompt_or_many_of_any_kind(prompts, texts):
    assert [result.text for result in generate(prompts)] == texts


def test_a_chat_message_must_have_role_and_content():
    with pytest.raises(InvalidRequest, match="content") as error:
        generate([{"role": "user"}])
    assert error.value.field == "input.chat.messages[0]"


def test_params_may_differ_by_prompt():
    params = [SamplingParams(stop=("c",)), SamplingParams()]
    results = llm().generate(["abcd", "abcd"], params, use_tqdm=False)
    assert [result.text for result in results] == ["ab", "abcd"]


def test_params_must_be_as_many_as_prompts():
    with pytest.raises(InvalidRequest, match="each of the 2 prompts, got 1"):
        llm().generate(["a", "b"], [SamplingParams()])


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Choice(("a", "b")), Choice(("a", "b"))),
        ({"type": "object"}, JsonSchema('{"type":"object"}')),
        (Person, JsonSchema.of(Person)),
    ],
)
def test_a_constraint_may_be_a_constraint_a_schema_or_a_model_class(constraint, expected):
    client = FakeStepClient()
    llm(client).generate(["a", "b"], constraint=constraint, use_tqdm=False)
    assert constraints_sent(client) == [expected, expected]


def test_a_class_that_is_no_model_is_refused():
    with pytest.raises(InvalidRequest, match="Pydantic model class"):
        llm().generate("a", constraint=int)


def test_two_constraints_are_refused():
    params = SamplingParams(constraint=Choice(("a",)))
    with pytest.raises(InvalidRequest, match="given once"):
        llm().generate("a", params, constraint={})


def test_a_bad_prompt_or_a_failed_request_does_not_lose_the_others():
    def script(request: EngineRequest) -> list[EngineOutput]:
        if request.prompt_ids != [120]:
            return echo(request)
        error = to_wire(ConstraintError("unsatisfiable"))
        return [
            EngineOutput(request.id, [97]),
            EngineOutput(request.id, [], FinishReason.ERROR, error=error),
        ]

    good, long, failed, empty = generate(["a", "b" * 99, "x", ""], FakeStepClient(script))
    assert good.raise_for_error().text == "a"
    assert isinstance(long.error, InvalidRequest)
    assert isinstance(empty.error, InvalidRequest)
    assert (failed.text, failed.finish) == ("a", None)
    with pytest.raises(ConstraintError, match="unsatisfiable"):
        failed.raise_for_error()


def test_one_answer_is_its_only_sample():
    [result] = generate("ab")
    assert result.others == []
    assert result.samples == [result]


def test_several_answers_are_the_samples_of_one_result():
    params = [SamplingParams(n=3), SamplingParams()]
    several, one = llm().generate(["ab", "c"], params, use_tqdm=False)
    assert [(sample.index, sample.text) for sample in several.samples] == [
        (index, "ab") for index in range(3)
    ]
    assert {sample.usage.completion_tokens for sample in several.samples} == {6}
    assert all(sample.finish is not None for sample in several.samples)
    assert (one.text, len(one.samples)) == ("c", 1)


def test_a_stop_string_ends_one_of_several_answers():
    def script(request: EngineRequest) -> list[EngineOutput]:
        return [
            EngineOutput(request.id, list(b"ab"), index=1),
            EngineOutput(request.id, list(b"ac")),
            EngineOutput(request.id, [], FinishReason.STOP),
        ]

    client = FakeStepClient(script)
    [result] = llm(client).generate("x", SamplingParams(n=2, stop=("b",)), use_tqdm=False)
    assert [sample.text for sample in result.samples] == ["ac", "a"]
    assert client.received[-1] == Abort([], [("0", 1)])


def test_complete_json_is_judged_answer_by_answer():
    constraints = [JsonSchema('{"maximum": 5}'), JsonObject(), Choice(("4",)), None]
    params = [SamplingParams(n=2, constraint=constraint) for constraint in constraints]
    results = llm(FakeStepClient(completing)).generate(["4"] * 4, params, use_tqdm=False)
    verdicts = [
        {(s.finish.constraint_status, s.finish.verified) for s in result.samples}
        for result in results
    ]
    assert verdicts == [
        {(ConstraintStatus.COMPLETE, True)},
        {(ConstraintStatus.VIOLATED, False)},
        {(ConstraintStatus.COMPLETE, False)},
        {(ConstraintStatus.NOT_CONSTRAINED, False)},
    ]


def test_only_what_is_behind_the_marker_is_judged():
    params = SamplingParams(constraint=JsonObject(), constraint_after="/>")
    results = llm(FakeStepClient(completing)).generate(
        ['{/>{"a": 1}', "{/>[]"], params, use_tqdm=False
    )
    assert [(r.finish.constraint_status, r.finish.verified) for r in results] == [
        (ConstraintStatus.COMPLETE, True),
        (ConstraintStatus.VIOLATED, False),
    ]


def test_a_choice_keeps_its_backend_when_an_option_is_left_out():
    client = FakeStepClient()
    choice = Choice(("yes", "no"), backend=Backend.XGRAMMAR)
    llm(client).generate("a", SamplingParams(bad_words=("no",)), constraint=choice, use_tqdm=False)
    assert constraints_sent(client) == [Choice(("yes",), backend=Backend.XGRAMMAR)]


def test_a_failed_request_keeps_what_its_answers_had():
    def script(request: EngineRequest) -> list[EngineOutput]:
        error = to_wire(InternalError("not a number"))
        return [
            EngineOutput(request.id, [97], FinishReason.STOP, index=1),
            EngineOutput(request.id, [], FinishReason.ERROR, error=error),
        ]

    params = SamplingParams(n=2)
    [result] = llm(FakeStepClient(script)).generate("x", params, use_tqdm=False)
    assert [sample.text for sample in result.samples] == ["", "a"]
    assert all(isinstance(sample.error, InternalError) for sample in result.samples)
    with pytest.raises(InternalError):
        result.raise_for_error()


def test_no_more_than_max_waiting_requests_are_in_the_engine():
    client = FakeStepClient()
    results = llm(client, max_waiting=3).generate(["ab"] * 10, use_tqdm=False)
    assert client.most_open == 3
    assert len({result.request_id for result in results}) == 10


def test_a_stop_string_aborts_the_request_in_the_engine():
    client = FakeStepClient()
    llm(client).generate("abcd", SamplingParams(stop=("b",)), use_tqdm=False)
    assert [message.ids for message in client.received if isinstance(message, Abort)] == [["0"]]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EngineDead("gone"), InternalError("bug")])
def test_an_interrupted_call_leaves_no_request_behind(error, monkeypatch):
    client = FakeStepClient(silent)
    engine = llm(client)

    def step() -> list[EngineOutput]:
        raise error

    monkeypatch.setattr(client, "step", step)
    with pytest.raises(type(error)):
        engine.generate(["a", "b"], use_tqdm=False)
    assert client.received[-1] == Abort(["0", "1"])
    monkeypatch.undo()
    client.script = echo
    assert engine.generate("again", use_tqdm=False)[0].text == "again"


def test_the_bar_counts_requests(capsys):
    llm().generate(["a", "b"])
    assert "2/2" in capsys.readouterr().err


def test_options_are_those_of_the_engine():
    assert llm(max_num_seqs=7).config.max_num_seqs == 7
    with pytest.raises(ConfigError, match="unknown option 'max_seqs'"):
        llm(max_seqs=7)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        llm(max_num_seqs=0)


def test_leaving_the_context_closes_the_engine():
    client = FakeStepClient()
    with llm(client):
        assert not client.closed
    assert client.closed


# ---- the public names


def test_the_public_names_are_these():
    assert structgen.__all__ == [
        "LLM",
        "AsyncLLM",
        "ChatMessage",
        "Choice",
        "ConstraintId",
        "Ebnf",
        "GenerationInput",
        "JsonObject",
        "JsonSchema",
        "Lark",
        "Regex",
        "SamplingParams",
        "StructgenError",
        "StructuralTag",
    ]
    assert all(hasattr(structgen, name) and name in dir(structgen) for name in structgen.__all__)
    assert structgen.LLM is LLM


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Llm'"):
        _ = structgen.Llm


def test_importing_structgen_and_its_front_end_is_cheap():
    program = """
import sys, structgen
assert not [name for name in sys.modules if name.startswith("structgen.")]
assert structgen.LLM and structgen.AsyncLLM
heavy = {"torch", "transformers", "xgrammar", "numba"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)
