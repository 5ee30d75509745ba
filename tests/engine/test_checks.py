"""Checks in the engine: beside requests, with the same compiles, off the loop."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from stub_engine import StubEngine

from structgen.constraints import Choice, Constraint
from structgen.errors import LimitExceeded
from structgen.grammar import judging
from structgen.messages import Abort, Check, Checked, TextVerdict

YES_NO = Choice(("YES", "NO"))


@pytest.fixture
def engine() -> Iterator[StubEngine]:
    engine = StubEngine(lambda tokens: 1)
    yield engine
    engine.core.close()


def checked(engine: StubEngine, count: int = 1) -> list[Checked]:
    """Step until so many checks are answered."""
    answers: list[Checked] = []
    while len(answers) < count:
        engine.step()
        answers += engine.core.take_checked()
    return answers


def ask(engine: StubEngine, id: str, constraint: Constraint, text: str | None = None) -> None:
    engine.inbox.put(Check(id, constraint, text))


def compiling(engine: StubEngine) -> tuple[threading.Event, threading.Event]:
    """Hold up compiles; returns an event set when one has begun, and one to let it end."""
    begun, go_on = threading.Event(), threading.Event()

    def gate(constraint: Constraint) -> None:
        begun.set()
        assert go_on.wait(10)

    engine.backend.gate = gate
    return begun, go_on


def answer_requests(engine: StubEngine, until: threading.Event) -> None:
    """Keep the loop busy, so that no step waits."""
    while not until.is_set():
        count = len(engine.ends)
        engine.add(f"r{count}", [1, 2], max_tokens=3)
        engine.run(count + 1)


def assert_idle(engine: StubEngine) -> None:
    assert len(engine.grammars.checks) == 0
    engine.assert_clean()


def test_a_check_tells_what_a_request_would_be_told(engine: StubEngine) -> None:
    ask(engine, "c", YES_NO)
    (answer,) = checked(engine)
    assert answer.error is None
    assert answer.verdict is None
    assert answer.size_bytes > 0
    assert answer.constraint is not None
    assert answer.constraint.backend == "toy"
    assert answer.constraint.key == YES_NO.key()
    assert not answer.constraint.cached
    assert_idle(engine)


def test_what_was_checked_need_not_be_compiled_for_a_request(engine: StubEngine) -> None:
    ask(engine, "c", YES_NO)
    checked(engine)
    engine.add("r", [1, 2], constraint=YES_NO)
    engine.run(1)
    stats = engine.ends["r"].stats
    assert stats is not None
    assert stats.constraint is not None
    assert stats.constraint.cached
    ask(engine, "again", YES_NO)
    (answer,) = checked(engine)
    assert answer.constraint is not None
    assert answer.constraint.cached
    assert engine.backend.compiles == 1
    assert_idle(engine)


def test_checks_and_requests_that_come_together_share_a_compile(engine: StubEngine) -> None:
    begun, go_on = compiling(engine)
    ask(engine, "a", YES_NO)
    engine.add("r", [1, 2], constraint=YES_NO)
    ask(engine, "b", YES_NO, "YES")
    engine.step()
    assert begun.wait(10)
    go_on.set()
    answers = {answer.id: answer for answer in checked(engine, 2)}
    engine.run(1)
    assert engine.backend.compiles == 1
    assert answers["b"].verdict is not None
    assert answers["b"].verdict.accepted
    assert_idle(engine)


@pytest.mark.parametrize(
    ("text", "accepted", "offset"),
    [("YES", True, None), ("N", False, None), ("NOW", False, 2), ("yes", False, 0)],
)
def test_a_text_is_judged_by_the_masks(
    engine: StubEngine, text: str, accepted: bool, offset: int | None
) -> None:
    ask(engine, "c", YES_NO, text)
    (answer,) = checked(engine)
    assert answer.verdict is not None
    assert answer.verdict.accepted is accepted
    assert answer.verdict.error_offset == offset
    assert answer.constraint is not None
    assert_idle(engine)


def test_a_constraint_that_is_refused_is_the_check_s_error(engine: StubEngine) -> None:
    for id in ("first", "again"):
        ask(engine, id, Choice(("BAD",)), "BAD")
        (answer,) = checked(engine)
        assert answer.error is not None
        assert (answer.error.kind, answer.error.field) == (
            "ConstraintError",
            "input.constraint.choice",
        )
        assert answer.constraint is None
    assert engine.backend.compiles == 1
    assert_idle(engine)


def test_a_text_that_cannot_be_judged_is_the_check_s_error(
    engine: StubEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(*args: object) -> None:
        raise LimitExceeded("too slow", field="input.text")

    monkeypatch.setattr(judging, "judge", give_up)
    ask(engine, "c", YES_NO, "YES")
    (answer,) = checked(engine)
    assert answer.error is not None
    assert (answer.error.kind, answer.error.field) == ("LimitExceeded", "input.text")
    assert answer.constraint is None
    assert_idle(engine)


def test_a_bug_in_judging_is_answered_too(
    engine: StubEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(judging, "judge", fail)
    ask(engine, "c", YES_NO, "YES")
    (answer,) = checked(engine)
    assert answer.error is not None
    assert answer.error.kind == "InternalError"
    assert_idle(engine)


def test_a_check_that_waits_for_its_compile_is_forgotten_with_it(engine: StubEngine) -> None:
    begun, go_on = compiling(engine)
    for other in ("A", "B"):  # the stub's compile threads
        ask(engine, other, Choice((other,)))
    ask(engine, "c", YES_NO)
    ask(engine, "d", YES_NO)
    engine.inbox.put(Abort(["c"]))
    engine.inbox.put(Abort(["d"]))
    engine.inbox.put(Abort(["unknown"]))
    engine.add("r", [1], max_tokens=1)
    engine.step()
    assert begun.wait(10)
    go_on.set()
    assert {answer.id for answer in checked(engine, 2)} == {"A", "B"}
    assert engine.backend.compiles == 2
    assert_idle(engine)


def test_a_compile_goes_on_for_whoever_is_left(engine: StubEngine) -> None:
    _, go_on = compiling(engine)
    for other in ("A", "B"):
        ask(engine, other, Choice((other,)))
    ask(engine, "c", YES_NO)
    engine.add("r", [1], constraint=YES_NO)
    engine.add("s", [1], constraint=Choice(("MAYBE",)))
    ask(engine, "d", Choice(("MAYBE",)))
    engine.inbox.put(Abort(["c", "s"]))
    engine.add("free", [1], max_tokens=1)  # else the step would wait for a compile
    engine.step()
    go_on.set()
    answers = checked(engine, 3)
    assert {answer.id: answer.error for answer in answers} == {"A": None, "B": None, "d": None}
    engine.run(2)
    assert set(engine.ends) == {"free", "r"}
    assert_idle(engine)


def test_only_so_many_texts_may_wait_to_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    engine = StubEngine(lambda tokens: 1)
    monkeypatch.setattr(engine.grammars.checks, "_max_pending", 2)
    monkeypatch.setattr(judging, "judge", lambda *args: TextVerdict() if go_on.wait(10) else None)
    ask(engine, "known", YES_NO)
    checked(engine)
    for id in "abcd":
        ask(engine, id, YES_NO, id)
    ask(engine, "e", YES_NO)
    refused = {answer.id: answer.error for answer in checked(engine, 3)}
    assert set(refused) == {"c", "d", "e"}
    assert refused["e"] is None
    assert refused["c"] is not None
    assert refused["c"].kind == "LimitExceeded"
    assert "at most 2 texts" in refused["c"].message
    go_on.set()
    assert {answer.id for answer in checked(engine, 2)} == {"a", "b"}
    assert_idle(engine)
    engine.core.close()


def test_the_loop_goes_on_while_texts_are_judged_and_abandoned_ones_are_dropped(
    engine: StubEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    judged: list[bytes] = []

    def slow(grammar: object, backend: object, spelling: object, text: bytes) -> TextVerdict:
        judged.append(text)
        begun.set()
        assert go_on.wait(10)
        return TextVerdict()

    monkeypatch.setattr(judging, "judge", slow)
    for id, text in (("a", "first"), ("b", "dropped"), ("c", "second")):
        ask(engine, id, YES_NO, text)
    answer_requests(engine, until=begun)
    engine.inbox.put(Abort(["a", "b"]))
    engine.add("last", [1, 2], max_tokens=3)
    engine.run(len(engine.ends) + 1)
    go_on.set()
    assert [answer.id for answer in checked(engine)] == ["c"]
    assert judged == [b"first", b"second"]
    assert_idle(engine)
