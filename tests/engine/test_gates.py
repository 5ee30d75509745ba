"""Answers that are free until a marker, and constrained behind it."""

from __future__ import annotations

from stub_engine import EOS, StubEngine

from structgen.constraints import Choice
from structgen.messages import EngineOutput, FinishReason

ANSWER = Choice(("AB", "ABC"))


def ids(text: str) -> list[int]:
    return [ord(c) - 32 for c in text]


def wanting(answer: str) -> StubEngine:
    """Return an engine whose model answers so, to prompts of one token, and then wants to stop."""
    wanted = [*ids(answer), EOS]
    return StubEngine(lambda tokens: wanted[min(len(tokens) - 1, len(wanted) - 1)])


def run(engine: StubEngine, **params: object) -> tuple[str, EngineOutput]:
    engine.add("a", [1], constraint=ANSWER, constraint_after="</T>", **params)
    engine.run(1)
    engine.assert_clean()
    return "".join(chr(32 + token) for token in engine.tokens["a"]), engine.ends["a"]


def test_the_text_is_free_until_the_marker_and_constrained_behind_it() -> None:
    text, end = run(wanting("XY ABC, </</T>XBX"), max_tokens=40)
    assert text == "XY ABC, </</T>ABC"
    assert end.finish is FinishReason.CONSTRAINT_COMPLETE
    assert end.accepting


def test_it_cannot_end_before_the_marker() -> None:
    text, end = run(wanting("XY"), max_tokens=12, close_within_budget=False)
    assert text == "XY" + 10 * " "  # what the stub takes where it must not stop
    assert end.finish is FinishReason.MAX_TOKENS
    assert not end.accepting


def test_a_limit_that_comes_near_ends_the_free_text() -> None:
    text, end = run(wanting("X" * 30), max_tokens=12)
    assert text == "X" * 6 + "</T>AB"
    assert (end.finish, end.closed, end.accepting) == (FinishReason.MAX_TOKENS, True, True)


def test_a_limit_that_comes_near_inside_the_marker_leaves_the_rest_of_it() -> None:
    text, end = run(wanting("X" * 6 + "</" + "X" * 30), max_tokens=12)
    assert text == "X" * 6 + "</T>AB"
    assert end.closed


def test_samples_pass_their_gates_on_their_own() -> None:
    engine = wanting("XX</T>ABC")
    engine.add("a", [1], constraint=ANSWER, constraint_after="</T>", max_tokens=20, n=2)
    engine.run(2)
    assert engine.tokens["a"] == engine.tokens["a/1"] == ids("XX</T>ABC")


def test_a_marker_that_cannot_be_spelt_fails_the_request_alone() -> None:
    engine = wanting("AB")
    engine.add("a", [1], constraint=ANSWER, constraint_after="é", max_tokens=20)
    engine.add("b", [1], constraint=ANSWER, max_tokens=20)
    engine.run(2)
    error = engine.ends["a"].error
    assert error is not None
    assert error.field == "input.constraint.options.after"
    assert engine.ends["b"].error is None
