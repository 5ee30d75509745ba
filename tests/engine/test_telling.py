"""What is held back comes in time, in order and whole."""

from __future__ import annotations

import pytest
from stub_engine import StubEngine

from structgen.messages import Abort, EngineOutput, FinishReason

SECONDS = 0.01


class Telling(StubEngine):
    """An engine that holds back, and a clock that stands still unless it is moved."""

    def __init__(self, **options: object) -> None:
        self.now = 100.0
        super().__init__(
            lambda tokens: len(tokens) % 50,
            seconds_per_output=SECONDS,
            clock=lambda: self.now,
            **options,  # type: ignore[arg-type]
        )
        self.said: list[EngineOutput] = []
        self.core.say = self.said.extend

    def begin(self, *names: str, **params: object) -> None:
        """Begin answers, each of which has said its first token."""
        for index, name in enumerate(names):
            self.add(name, [index, 1], **{"max_tokens": 20, **params})
        while not all(self.tokens[name] for name in names):
            self.now += 1.0
            self.step()


def test_what_goes_on_is_held_back_and_joined() -> None:
    engine = Telling()
    engine.begin("a", "b")
    assert [engine.step() for _ in range(3)] == [[], [], []]
    engine.now += 2 * SECONDS
    outputs = {output.id: output.new_ids for output in engine.step()}
    assert outputs == {"a": [3, 4, 5, 6], "b": [3, 4, 5, 6]}
    assert engine.step() == []


def test_the_more_answers_go_on_the_longer_they_are_held_back() -> None:
    few, many = Telling(), Telling()
    few.begin("a")
    many.begin("a", "b", "c", "d")
    for engine in (few, many):
        engine.step()
        engine.now += 1.5 * SECONDS
    assert few.step() != []
    assert many.step() == []
    many.now += 3 * SECONDS
    assert len(many.step()) == 4


def test_an_end_takes_what_was_held_back_of_its_answer_along() -> None:
    engine = Telling()
    engine.add("a", [0, 1], max_tokens=4)
    engine.add("b", [0, 1], max_tokens=20)
    outputs = []
    while "a" not in engine.ends:
        outputs += engine.step()
    assert [output.new_ids for output in outputs if output.id == "a"] == [[2], [3, 4, 5]]
    assert [output.new_ids for output in outputs if output.id == "b"] == [[2]]


def test_what_may_hold_a_stop_string_is_never_held_back() -> None:
    engine = Telling()
    engine.begin("a", stop=("#",))
    (output,) = engine.step()
    assert output.new_ids == [3]
    assert output.stats is not None


def test_answers_of_one_request_stay_apart() -> None:
    engine = Telling()
    engine.begin("a", n=2)
    while not engine.tokens.get("a/1"):
        engine.step()
    engine.step()
    engine.now += 2 * SECONDS
    told = [(output.index, len(output.new_ids)) for output in engine.step()]
    assert [index for index, _ in told] == [0, 1]
    assert min(count for _, count in told) > 1
    engine.run(2)
    assert engine.tokens["a"] == engine.tokens["a/1"] == list(range(2, 22))


def test_log_probabilities_stay_with_their_tokens() -> None:
    engine = Telling()
    engine.begin("a", logprobs=0)
    engine.step()
    engine.now += SECONDS
    (output,) = engine.step()
    assert output.new_ids == [3, 4]
    assert len(output.logprobs) == 2


def test_nothing_is_held_back_while_a_prompt_is_computed() -> None:
    """Such a step may take long."""
    engine = Telling(max_num_batched_tokens=32)
    engine.begin("a")
    engine.step()
    assert engine.said == []
    engine.add("b", [1] * 20, max_tokens=2)
    engine.step()
    assert [(output.id, output.new_ids) for output in engine.said] == [("a", [3])]


def test_a_request_that_fails_tells_what_it_had() -> None:
    engine = Telling()
    engine.begin("a", "b")
    engine.step()
    engine.executor.fail_ids.add("a")
    outputs = [output for _ in range(3) for output in engine.step()]
    assert [(output.id, output.new_ids, output.finish) for output in outputs] == [
        ("a", [3], None),
        ("a", [], FinishReason.ERROR),
    ]


def test_an_aborted_request_tells_nothing_more() -> None:
    engine = Telling()
    engine.begin("a", "b")
    engine.step()
    engine.inbox.put(Abort(["a"]))
    engine.now += 1.0
    assert {output.id for output in engine.step()} == {"b"}


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.1, 10.0])
def test_answers_are_whole_however_long_they_are_held_back(seconds: float) -> None:
    engine = Telling()
    for index in range(6):
        engine.add(f"r{index}", [index] * (index + 1), max_tokens=5 + index)
    while len(engine.ends) < 6:
        engine.step()
        engine.now += seconds
    for index in range(6):
        first = index + 1
        assert engine.tokens[f"r{index}"] == list(range(first, first + 5 + index))
    engine.assert_clean()
