"""ConstraintService over a real server and a scripted AsyncLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import BadRequest
from google.rpc.status_pb2 import Status
from scripted_llm import INFO, ScriptedLLM, connected

from structgen.constraints import Backend, ConstraintId, JsonSchema, Regex, Whitespace
from structgen.frontend.grpc._pb import constraint_pb2
from structgen.frontend.grpc._pb.constraint_pb2 import Constraint, ConstraintOptions
from structgen.frontend.grpc._pb.constraint_service_pb2 import (
    CheckConstraintRequest,
    CheckTextRequest,
    CheckTextResponse,
)
from structgen.frontend.grpc._pb.constraint_service_pb2_grpc import ConstraintServiceStub
from structgen.frontend.grpc._pb.generation_pb2 import GenerationInput
from structgen.frontend.grpc._pb.generation_service_pb2 import GenerateRequest
from structgen.frontend.grpc._pb.generation_service_pb2_grpc import GenerationServiceStub

STATUS_KEY = "grpc-status-details-bin"
DIGITS = Constraint(regex="[0-9]+")


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def violation(error: grpc.aio.AioRpcError) -> tuple[str, str]:
    status = Status.FromString(dict(error.trailing_metadata())[STATUS_KEY])
    for detail in status.details:
        bad = BadRequest()
        if detail.Unpack(bad):
            return bad.field_violations[0].field, bad.field_violations[0].description
    raise AssertionError("no BadRequest")


async def refused(call: grpc.aio.UnaryUnaryCall) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


def test_a_constraint_is_checked_with_its_options() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        options = ConstraintOptions(
            backend=constraint_pb2.BACKEND_XGRAMMAR,
            whitespace=constraint_pb2.WHITESPACE_FLEXIBLE,
            truncation=constraint_pb2.TRUNCATION_MARK,  # of a request, and no harm here
        )
        async with connected(llm) as channel:
            response = await ConstraintServiceStub(channel).CheckConstraint(
                CheckConstraintRequest(
                    constraint=Constraint(json_schema='{"type": "object"}', options=options)
                )
            )
        schema = JsonSchema('{"type":"object"}', Whitespace.FLEXIBLE, backend=Backend.XGRAMMAR)
        assert llm.checks == [(schema, None)]
        assert response.constraint.backend == constraint_pb2.BACKEND_XGRAMMAR
        assert response.constraint.compile_time.ToMilliseconds() == 250
        assert response.constraint.constraint_id == INFO.key
        assert [k.json_pointer for k in response.constraint.keywords] == ["/title"]
        assert response.size_bytes == 1234

    run(test)


@pytest.mark.parametrize(
    ("text", "accepted", "prefix", "offset"),
    [("12", True, False, None), ("+", False, True, None), ("+1é", False, False, 2)],
)
def test_a_text_is_accepted_a_prefix_or_wrong_somewhere(
    text: str, accepted: bool, prefix: bool, offset: int | None
) -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            response = await ConstraintServiceStub(channel).CheckText(
                CheckTextRequest(constraint=DIGITS, text=text)
            )
        assert isinstance(response, CheckTextResponse)
        assert (response.accepted, response.prefix) == (accepted, prefix)
        assert response.HasField("error_offset") == (offset is not None)
        assert response.error_offset == (offset or 0)
        assert list(response.expected) == ["0", "1"]
        assert response.may_end == (text != "+")

    run(test)


@pytest.mark.parametrize(
    ("constraint", "code", "field", "description"),
    [
        (Constraint(), grpc.StatusCode.INVALID_ARGUMENT, "constraint.kind", "got none"),
        (None, grpc.StatusCode.INVALID_ARGUMENT, "constraint.kind", "got none"),
        (
            Constraint(json_schema="{"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "constraint.json_schema",
            "not JSON",
        ),
        (
            Constraint(regex="bad"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "constraint.regex",
            "regex is bad",
        ),
        (
            Constraint(constraint_id="nosuch"),
            grpc.StatusCode.NOT_FOUND,
            "constraint.constraint_id",
            "no nosuch",
        ),
        (
            Constraint(constraint_id=""),
            grpc.StatusCode.INVALID_ARGUMENT,
            "constraint.constraint_id",
            "must not be empty",
        ),
        (
            Constraint(
                regex="a",
                options=ConstraintOptions(whitespace=constraint_pb2.WHITESPACE_FLEXIBLE),
            ),
            grpc.StatusCode.INVALID_ARGUMENT,
            "constraint.options.whitespace",
            "does not apply to regex",
        ),
    ],
)
def test_what_is_unusable_is_refused_by_both_at_its_path(
    constraint: Constraint | None, code: grpc.StatusCode, field: str, description: str
) -> None:
    async def test() -> None:
        async with connected(ScriptedLLM()) as channel:
            stub = ConstraintServiceStub(channel)
            for call in (
                stub.CheckConstraint(CheckConstraintRequest(constraint=constraint)),
                stub.CheckText(CheckTextRequest(constraint=constraint, text="x")),
            ):
                error = await refused(call)
                assert error.code() is code
                assert violation(error)[0] == field
                assert description in violation(error)[1]

    run(test)


@pytest.mark.parametrize(
    ("option", "value"), [("backend", 1), ("backend", 2), ("unsupported", 1), ("whitespace", 1)]
)
def test_options_that_make_another_constraint_are_refused_beside_an_id(
    option: str, value: int
) -> None:
    async def test() -> None:
        constraint = Constraint(
            constraint_id=INFO.key, options=ConstraintOptions(**{option: value})
        )
        async with connected(ScriptedLLM()) as channel:
            check = ConstraintServiceStub(channel).CheckConstraint(
                CheckConstraintRequest(constraint=constraint)
            )
            generate = GenerationServiceStub(channel).Generate(
                GenerateRequest(input=GenerationInput(text="hi", constraint=constraint))
            )
            assert violation(await refused(check))[0] == f"constraint.options.{option}"
            assert violation(await refused(generate))[0] == f"input.constraint.options.{option}"

    run(test)


def test_an_id_reaches_generation_with_the_options_of_the_request() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        options = ConstraintOptions(truncation=constraint_pb2.TRUNCATION_MARK)
        async with connected(llm) as channel:
            await GenerationServiceStub(channel).Generate(
                GenerateRequest(
                    input=GenerationInput(
                        text="hi", constraint=Constraint(constraint_id="some", options=options)
                    )
                )
            )
            await ConstraintServiceStub(channel).CheckText(
                CheckTextRequest(constraint=Constraint(constraint_id=INFO.key), text="1")
            )
        assert llm.inputs[0].constraint_id == "some"
        assert llm.inputs[0].params.constraint is None
        assert not llm.inputs[0].params.close_within_budget
        assert llm.checks == [(ConstraintId(INFO.key), "1")]

    run(test)


def test_a_client_that_leaves_abandons_its_check() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        async with connected(llm) as channel:
            call = ConstraintServiceStub(channel).CheckText(
                CheckTextRequest(constraint=DIGITS, text="hang")
            )
            while not llm.checks:
                await asyncio.sleep(0.005)
            call.cancel()
            while not llm.aborted:
                await asyncio.sleep(0.005)
            late = await refused(
                ConstraintServiceStub(channel).CheckText(
                    CheckTextRequest(constraint=DIGITS, text="hang"), timeout=0.05
                )
            )
            assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert llm.checks[0] == (Regex("[0-9]+"), "hang")

    run(test)


def test_a_server_that_is_not_ready_says_so() -> None:
    async def test() -> None:
        llm = ScriptedLLM()
        llm.ready = False
        async with connected(llm) as channel:
            error = await refused(
                ConstraintServiceStub(channel).CheckConstraint(
                    CheckConstraintRequest(constraint=DIGITS)
                )
            )
        assert error.code() is grpc.StatusCode.UNAVAILABLE

    run(test)
