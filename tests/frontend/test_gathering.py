"""What is held back comes in time, in order and whole."""

from __future__ import annotations

import pytest
from frontend_fakes import EOS

from structgen.errors import InternalError, to_wire
from structgen.frontend.gathering import Gathering, joined
from structgen.logprobs import TokenLogprobs
from structgen.messages import EngineOutput, FinishReason, RequestStats


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gathering(clock: Clock) -> Gathering:
    """Of an engine that has just said something of 40 answers: nothing is due for 20 ms."""
    gathering = Gathering(lambda id: id == "stops", clock=clock)
    said = [EngineOutput(f"r{index}", [index]) for index in range(40)]
    assert gathering.take(said) == said
    return gathering


def test_what_goes_on_with_an_answer_is_held_back_and_joined(
    gathering: Gathering, clock: Clock
) -> None:
    assert gathering.take([EngineOutput("r0", [1]), EngineOutput("r1", [2])]) == []
    assert gathering.take([EngineOutput("r0", [3], accepting=True)]) == []
    assert gathering
    assert gathering.due_at == pytest.approx(100.02)
    clock.now = 100.03
    assert gathering.take([EngineOutput("r1", [4])]) == [
        EngineOutput("r0", [1, 3], accepting=True),
        EngineOutput("r1", [2, 4]),
    ]
    assert not gathering


def test_it_goes_out_when_it_is_due_though_nothing_more_comes(
    gathering: Gathering, clock: Clock
) -> None:
    gathering.take([EngineOutput("r0", [1])])
    assert gathering.take(()) == []
    clock.now = gathering.due_at
    assert gathering.take(()) == [EngineOutput("r0", [1])]


def test_one_answer_alone_is_held_back_for_half_a_millisecond(clock: Clock) -> None:
    gathering = Gathering(lambda id: False, clock=clock)
    gathering.take([EngineOutput("r", [1])])
    assert gathering.due_at == pytest.approx(100.0005)


@pytest.mark.parametrize(
    "urgent",
    [
        EngineOutput("r0", [2], stats=RequestStats(3)),
        EngineOutput("r0", [2], FinishReason.STOP, stop_id=EOS, stats=RequestStats(3)),
        EngineOutput("r0", [], FinishReason.ERROR, error=to_wire(InternalError("no"))),
    ],
)
def test_a_first_or_last_output_takes_what_was_held_back_of_its_answer_along(
    gathering: Gathering, urgent: EngineOutput
) -> None:
    gathering.take([EngineOutput("r0", [1]), EngineOutput("r1", [5])])
    (out,) = gathering.take([EngineOutput("r1", [6]), urgent])
    assert out.new_ids == [1, *urgent.new_ids]
    assert (out.finish, out.stop_id, out.stats, out.error) == (
        urgent.finish,
        urgent.stop_id,
        urgent.stats,
        urgent.error,
    )
    assert gathering


def test_what_may_hold_a_stop_string_is_never_held_back(gathering: Gathering) -> None:
    output = EngineOutput("stops", [1])
    assert gathering.take([output]) == [output]
    assert not gathering


def test_answers_of_one_request_stay_apart(gathering: Gathering, clock: Clock) -> None:
    gathering.take([EngineOutput("r0", [1]), EngineOutput("r0", [2], index=1)])
    gathering.take([EngineOutput("r0", [3]), EngineOutput("r0", [4], index=1)])
    clock.now = 101.0
    out = gathering.take(())
    assert [(output.index, output.new_ids) for output in out] == [(0, [1, 3]), (1, [2, 4])]


def test_joined_outputs_keep_what_came_first_and_what_came_last() -> None:
    first = EngineOutput(
        "r",
        [1],
        stats=RequestStats(3),
        logprobs=[TokenLogprobs(1, -1.0, [])],
        prompt_logprobs=[None, TokenLogprobs(7, -2.0, [])],
    )
    last = EngineOutput(
        "r",
        [2],
        FinishReason.DEAD_END,
        detail="why",
        logprobs=[TokenLogprobs(2, -3.0, [])],
        closed=True,
    )
    assert joined([first, last]) == EngineOutput(
        "r",
        [1, 2],
        FinishReason.DEAD_END,
        stats=RequestStats(3),
        detail="why",
        logprobs=[*first.logprobs, *last.logprobs],
        prompt_logprobs=first.prompt_logprobs,
        closed=True,
    )
