"""GenerationInput on the wire <-> GenerationInput of the front end."""

from __future__ import annotations

import json

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st

from structgen.constraints import (
    Backend,
    Choice,
    Constraint,
    Ebnf,
    JsonObject,
    JsonSchema,
    Lark,
    Regex,
    StructuralTag,
    Whitespace,
)
from structgen.errors import (
    ConstraintError,
    InternalError,
    InvalidRequest,
    StructgenError,
)
from structgen.frontend.answer import ConstraintStatus, Finish
from structgen.frontend.grpc import convert, errors, results
from structgen.frontend.grpc._pb import constraint_pb2, generation_pb2
from structgen.frontend.inputs import GenerationInput
from structgen.frontend.outputs import RequestOutput
from structgen.keywords import KeywordReport, Treatment
from structgen.messages import ConstraintInfo, FinishReason
from structgen.params import JumpForward, SamplingParams
from structgen.tokenizer import ChatMessage

WORDS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=9)
BACKENDS = st.sampled_from(Backend)
WHITESPACES = st.sampled_from(Whitespace)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
SCHEMAS = st.booleans() | st.dictionaries(WORDS, VALUES, max_size=3)
CONSTRAINTS = (
    st.builds(JsonSchema, SCHEMAS.map(json.dumps), WHITESPACES, st.booleans(), backend=BACKENDS)
    | st.builds(JsonObject, WHITESPACES, backend=BACKENDS)
    | st.builds(Regex, WORDS, backend=BACKENDS)
    | st.builds(Ebnf, WORDS, WORDS, backend=BACKENDS)
    | st.builds(Lark, WORDS, WORDS, backend=BACKENDS)
    | st.builds(
        StructuralTag, st.dictionaries(WORDS, VALUES, max_size=3).map(json.dumps), backend=BACKENDS
    )
    | st.builds(Choice, st.lists(WORDS, min_size=1).map(tuple), backend=BACKENDS)
)


def message(**fields: object) -> generation_pb2.GenerationInput:
    return generation_pb2.GenerationInput(**({"text": "hi"} | fields))


def refusal(given: generation_pb2.GenerationInput) -> StructgenError:
    with pytest.raises(StructgenError) as caught:
        convert.from_wire(given)
    return caught.value


def refusal_or_none(given: generation_pb2.GenerationInput) -> StructgenError | None:
    try:
        convert.from_wire(given)
    except StructgenError as error:
        return error
    return None


def test_what_is_unset_has_its_default() -> None:
    assert convert.from_wire(message()) == GenerationInput(prompt="hi")


def test_an_explicit_zero_is_not_a_default() -> None:
    error = refusal(message(sampling=generation_pb2.SamplingParams(top_p=0)))
    assert isinstance(error, InvalidRequest)
    assert error.field == "input.sampling.top_p"


def test_an_explicit_zero_of_max_tokens_is_refused() -> None:
    error = refusal(message(stopping=generation_pb2.StoppingCriteria(max_tokens=0)))
    assert error.field == "input.stopping.max_tokens"


@given(CONSTRAINTS)
def test_constraints_survive_the_wire(constraint: Constraint) -> None:
    given = GenerationInput(prompt="hi", params=SamplingParams(constraint=constraint))
    assert convert.from_wire(convert.to_wire(given)) == given


@pytest.mark.parametrize(
    ("syntax", "constraint"),
    [
        ("SYNTAX_UNSPECIFIED", Ebnf("x", "root")),
        ("SYNTAX_EBNF", Ebnf("x", "root")),
        ("SYNTAX_LARK", Lark("x", "start")),
    ],
)
def test_a_grammar_has_the_usual_root_of_its_notation(syntax: str, constraint: Constraint) -> None:
    grammar = constraint_pb2.Grammar(syntax=syntax, text="x")  # type: ignore[arg-type]
    given = message(constraint=constraint_pb2.Constraint(grammar=grammar))
    assert convert.from_wire(given).params.constraint == constraint


def test_a_notation_that_is_none_is_refused() -> None:
    grammar = constraint_pb2.Grammar(syntax=9, text="x")  # type: ignore[arg-type]
    error = refusal(message(constraint=constraint_pb2.Constraint(grammar=grammar)))
    assert error.field == "input.constraint.grammar.syntax"


@pytest.mark.parametrize("verified", [False, True])
@pytest.mark.parametrize("backend", set(Backend) - {Backend.AUTO})
def test_what_became_of_a_constraint_survives_the_wire(backend: Backend, verified: bool) -> None:
    keywords = [KeywordReport(f"/{kind}", kind, kind) for kind in Treatment]
    answer = RequestOutput(
        request_id="me",
        text="1",
        token_ids=[],
        finish=Finish(
            reason=FinishReason.STOP,
            constraint_status=ConstraintStatus.COMPLETE,
            verified=verified,
        ),
        constraint=ConstraintInfo(backend, 0.5, True, "key", keywords),
    )
    options = generation_pb2.ResponseOptions()
    [whole] = results.from_response(results.to_response([answer], options))
    assert (whole.finish, whole.constraint) == (answer.finish, answer.constraint)
    assert results.from_event(results.to_started(answer)).constraint == answer.constraint
    assert results.from_event(results.to_finished(answer)).finish == answer.finish


@pytest.mark.parametrize("prompt", ["text", [1, 2], [ChatMessage("user", "hello")]])
def test_everything_survives_the_wire(prompt: str | list[int] | list[ChatMessage]) -> None:
    given = GenerationInput(
        prompt=prompt,
        request_id="me",
        priority=-3,
        special_tokens=True,
        params=SamplingParams(
            max_tokens=9,
            min_tokens=2,
            temperature=0.0,
            top_k=-1,
            top_p=0.9,
            min_p=0.1,
            seed=2**64 - 1,
            stop=("a", "b"),
            stop_token_ids=(3, 4),
            include_stop=True,
            ignore_eos=True,
            time_limit_s=1.5,
            n=5,
            repetition_penalty=1.25,
            frequency_penalty=-0.5,
            presence_penalty=0.5,
            logit_bias=((3, -1.5), (70_000, 2.0)),
            allowed_token_ids=(1, 2, 70_000),
            bad_words=("a", "b c"),
            bad_token_ids=(7,),
            logprobs=0,
            prompt_logprobs=2,
            constraint_mass=True,
            drafts=False,
        ),
    )
    of_constraints = {"constraint", "close_within_budget", "constraint_after", "jump_forward"}
    for name in set(SamplingParams.__struct_fields__) - of_constraints:
        assert getattr(given.params, name) != getattr(SamplingParams(), name), name
    assert convert.from_wire(convert.to_wire(given)) == given


def test_what_no_wire_can_carry_is_refused_by_the_client() -> None:
    with pytest.raises(InvalidRequest):
        convert.to_wire(GenerationInput(prompt=[-1]))
    with pytest.raises(InvalidRequest):
        convert.to_wire(GenerationInput(prompt="\ud800"))


@pytest.mark.parametrize("marker", ["", "</think>", "é\n"])
def test_the_marker_before_a_constraint_survives_the_wire(marker: str) -> None:
    params = SamplingParams(constraint=Regex("a"), constraint_after=marker)
    given = GenerationInput(prompt="hi", params=params)
    assert convert.from_wire(convert.to_wire(given)) == given


def test_a_marker_that_is_too_long_is_refused() -> None:
    options = constraint_pb2.ConstraintOptions(after="x" * 65)
    given = message(constraint=constraint_pb2.Constraint(regex="a", options=options))
    error = refusal(given)
    assert error.field == "input.constraint.options.after"
    assert "must be in [1, 64], got 65" in error.message


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("jump", JumpForward)
def test_truncation_and_jumps_survive_the_wire(closes: bool, jump: JumpForward) -> None:
    params = SamplingParams(constraint=Regex("a"), close_within_budget=closes, jump_forward=jump)
    given = GenerationInput(prompt="x", params=params)
    assert convert.from_wire(convert.to_wire(given)) == given


def test_a_missing_prompt_is_named() -> None:
    assert refusal(generation_pb2.GenerationInput()).field == "input.prompt"


def test_a_constraint_without_a_kind_is_refused() -> None:
    error = refusal(message(constraint=constraint_pb2.Constraint()))
    assert isinstance(error, ConstraintError)
    assert error.field == "input.constraint.kind"


def test_json_object_false_is_refused() -> None:
    error = refusal(message(constraint=constraint_pb2.Constraint(json_object=False)))
    assert error.field == "input.constraint.json_object"


def test_whitespace_is_refused_where_it_means_nothing() -> None:
    options = constraint_pb2.ConstraintOptions(whitespace=constraint_pb2.WHITESPACE_FLEXIBLE)
    error = refusal(message(constraint=constraint_pb2.Constraint(regex="a", options=options)))
    assert error.field == "input.constraint.options.whitespace"


@pytest.mark.parametrize("kind", [{"regex": "a"}, {"json_object": True}])
def test_best_effort_is_refused_where_there_are_no_keywords(kind: dict[str, object]) -> None:
    options = constraint_pb2.ConstraintOptions(
        unsupported=constraint_pb2.UNSUPPORTED_POLICY_BEST_EFFORT
    )
    error = refusal(message(constraint=constraint_pb2.Constraint(**kind, options=options)))
    assert isinstance(error, ConstraintError)
    assert error.field == "input.constraint.options.unsupported"
    options.unsupported = constraint_pb2.UNSUPPORTED_POLICY_REJECT
    assert convert.from_wire(message(constraint=constraint_pb2.Constraint(**kind, options=options)))


@pytest.mark.parametrize(
    "name", ["backend", "jump_forward", "truncation", "unsupported", "whitespace"]
)
def test_an_option_that_is_none_of_ours_is_refused_by_name(name: str) -> None:
    options = constraint_pb2.ConstraintOptions(**{name: 77})
    given = constraint_pb2.Constraint(json_schema="true", options=options)
    error = refusal(message(constraint=given))
    assert isinstance(error, ConstraintError)
    assert (error.field, "77" in error.message) == (f"input.constraint.options.{name}", True)


@pytest.mark.parametrize(("seconds", "nanos"), [(1, -1), (0, 10**9), (0, 0), (-1, 0)])
def test_a_malformed_or_empty_time_limit_is_refused(seconds: int, nanos: int) -> None:
    error = refusal(message(time_limit=Duration(seconds=seconds, nanos=nanos)))
    assert error.field == "input.time_limit"


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        ({"n": 0}, "sampling.n"),
        ({"n": 1_000_000_000}, "sampling.n"),
        ({"repetition_penalty": 0}, "sampling.repetition_penalty"),
        ({"frequency_penalty": float("nan")}, "sampling.frequency_penalty"),
        ({"presence_penalty": 1e308}, "sampling.presence_penalty"),
        ({"logit_bias": {5: float("nan")}}, "sampling.logit_bias[5]"),
        ({"logit_bias": {5: 1e38}}, "sampling.logit_bias[5]"),
        ({"logit_bias": dict.fromkeys(range(300_000), 1.0)}, "sampling.logit_bias"),
        ({"bad_words": ["fine", " "]}, "sampling.bad_words[1]"),
        ({"bad_words": ["x"] * 257}, "sampling.bad_words"),
        ({"allowed_token_ids": [3], "bad_token_ids": [3]}, "sampling.allowed_token_ids"),
    ],
)
def test_sampling_options_outside_their_range_are_refused_by_name(
    sampling: dict[str, object], field: str
) -> None:
    error = refusal(message(sampling=generation_pb2.SamplingParams(**sampling)))
    assert isinstance(error, InvalidRequest)
    assert error.field == f"input.{field}"


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_log_probabilities_than_the_limit_are_refused(name: str) -> None:
    response = generation_pb2.ResponseOptions(**{name: 2**31})
    assert refusal(message(response=response)).field == f"input.response.{name}"


def test_a_token_biased_twice_is_refused_before_the_wire_could_lose_one() -> None:
    with pytest.raises(InvalidRequest, match="each token id once"):
        SamplingParams(logit_bias=((5, 1.0), (5, 2.0)))


def test_a_huge_value_is_not_echoed_whole() -> None:
    tag = constraint_pb2.Constraint(structural_tag="x" * 10_000)
    assert len(refusal(message(constraint=tag)).message) < 200


def numeric_fields(descriptor: Descriptor, prefix: str = "") -> list[str]:
    paths = []
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        if field.message_type is not None and not field.is_repeated:
            paths += numeric_fields(field.message_type, f"{path}.")
        elif field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
            paths.append(path)
    return paths


NUMERIC = numeric_fields(generation_pb2.GenerationInput.DESCRIPTOR)
INTERESTING = [-1, 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
FLOATS = [-1.0, 0.0, 1e-9, 1.0, 1e308, float("inf"), float("nan")]


def put_number(target: Message, path: str, value: float) -> bool:
    """Set a numeric field; False if its type has no such value."""
    *parents, name = path.split(".")
    for parent in parents:
        target = getattr(target, parent)
    try:
        if target.DESCRIPTOR.fields_by_name[name].is_repeated:
            getattr(target, name).append(value)
        else:
            setattr(target, name, value)
    except (OverflowError, TypeError, ValueError):
        return False
    return True


@given(
    st.dictionaries(st.sampled_from(NUMERIC), st.sampled_from([*INTERESTING, *FLOATS]), max_size=4)
)
def test_numbers_are_taken_or_refused_by_name(values: dict[str, float]) -> None:
    """Whatever a client puts into numeric fields, it never looks like our bug."""
    given = message()
    for path, value in values.items():
        put_number(given, path, value)
    error = refusal_or_none(given)
    if error is not None:
        assert error.status in ("INVALID_ARGUMENT", "UNIMPLEMENTED")
        assert error.field.startswith("input.")


def test_errors_survive_the_wire() -> None:
    for cls in errors._CLASSES:
        error = errors.from_status(errors.to_status(cls("what", field="input.text")))
        assert type(error) is cls
        assert (error.message, error.field) == ("input.text: what", "input.text")


@pytest.mark.parametrize(
    ("code", "cls"), [(3, InvalidRequest), (13, InternalError), (2, InternalError)]
)
def test_a_status_without_our_details_goes_by_its_code(
    code: int, cls: type[StructgenError]
) -> None:
    assert type(errors.from_status(Status(code=code, message="what"))) is cls


def test_a_long_error_fits_into_headers() -> None:
    status = errors.to_status(InvalidRequest("ä" * 100_000, field="input." + "x" * 100_000))
    assert len(status.SerializeToString()) < 4000
