"""Answers under a constraint are completed before a limit would cut them."""

import random

import pytest
from stub_engine import StubEngine

from structgen.constraints import Choice
from structgen.messages import EngineOutput, FinishReason


def ids(text: str) -> list[int]:
    return [ord(c) - 32 for c in text]


def text(engine: StubEngine, name: str) -> str:
    return "".join(chr(32 + token) for token in engine.tokens[name])


def wanting(answer: str) -> StubEngine:
    """Return an engine whose model answers so, to prompts of one token, where it may."""
    wanted = ids(answer)
    return StubEngine(lambda tokens: wanted[min(len(tokens) - 1, len(wanted) - 1)])


def end_of(engine: StubEngine) -> EngineOutput:
    engine.run(1)
    engine.assert_clean()
    return engine.ends["a"]


LONG_OR_SHORT = Choice(("ABCDEFGHIJKL", "ABX", "ABCDY"))


def test_a_token_that_leaves_too_little_is_not_taken() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=6, constraint=LONG_OR_SHORT)
    end = end_of(engine)
    assert (text(engine, "a"), end.finish) == ("ABCDY", FinishReason.MAX_TOKENS)
    assert (end.closed, end.accepting) == (True, True)


def test_what_completes_the_text_takes_no_forward() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=3, constraint=LONG_OR_SHORT)
    assert end_of(engine).closed
    assert text(engine, "a") == "ABX"
    assert len(engine.executor.plans) == 3  # the third would have been C


@pytest.mark.parametrize("limit", [12, 13, 40])
def test_an_answer_that_fits_is_left_alone(limit: int) -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=limit, constraint=LONG_OR_SHORT)
    end = end_of(engine)
    assert text(engine, "a") == "ABCDEFGHIJKL"
    assert not end.closed


def test_the_end_of_the_context_is_a_limit_too() -> None:
    engine = StubEngine(lambda tokens: ids("ABCDEFGHIJKL")[min(len(tokens) - 1, 11)])
    prompt = [1] * (engine.core._config.context_length - 4)
    engine.add("a", prompt, constraint=LONG_OR_SHORT, bad=[ids("L")])
    end = end_of(engine)
    assert (text(engine, "a"), end.finish) == ("ABX", FinishReason.CONTEXT_LIMIT)
    assert (end.closed, end.accepting) == (True, True)


def test_a_request_may_ask_to_be_cut() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=6, constraint=LONG_OR_SHORT, close_within_budget=False)
    end = end_of(engine)
    assert (text(engine, "a"), end.finish) == ("ABCDEF", FinishReason.MAX_TOKENS)
    assert (end.closed, end.accepting) == (False, False)


def test_what_no_way_completes_is_cut() -> None:
    engine = wanting("ABCDEFGHIJKL")
    bad = [ids("X"), ids("Y"), ids("L")]
    engine.add("a", [1], max_tokens=4, constraint=LONG_OR_SHORT, bad=bad)
    end = end_of(engine)
    assert (text(engine, "a"), end.finish) == ("ABCD", FinishReason.MAX_TOKENS)
    assert (end.closed, end.accepting) == (False, False)


def test_a_limit_below_every_text_is_refused_unless_it_is_to_cut() -> None:
    engine = wanting("ABCDEFGHIJKL")
    for warm in (False, True):
        engine.add(
            f"cut {warm}", [1], max_tokens=2, constraint=LONG_OR_SHORT, close_within_budget=False
        )
        engine.add(f"closed {warm}", [1], max_tokens=2, constraint=LONG_OR_SHORT)
        engine.run(4 if warm else 2)
        error = engine.ends[f"closed {warm}"].error
        assert error is not None
        assert (error.kind, error.field) == ("InvalidRequest", "input.stopping.max_tokens")
        assert "at least 3" in error.message
        assert "got 2" in error.message
        assert text(engine, f"cut {warm}") == "AB"
    engine.assert_clean()


def test_a_way_out_avoids_what_is_banned() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=5, constraint=LONG_OR_SHORT, bad=[ids("X")])
    assert end_of(engine).closed
    assert text(engine, "a") == "ABCDY"


def test_a_way_out_avoids_the_ids_that_would_end_it() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=5, constraint=LONG_OR_SHORT, stop_token_ids=tuple(ids("X")))
    assert end_of(engine).closed
    assert text(engine, "a") == "ABCDY"


def test_a_way_that_the_model_takes_by_itself_is_not_called_closed() -> None:
    engine = wanting("ABX")
    engine.add("a", [1], max_tokens=3, constraint=LONG_OR_SHORT)
    end = end_of(engine)
    assert (text(engine, "a"), end.closed) == ("ABX", False)


def test_with_log_probabilities_the_way_out_is_sampled() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], max_tokens=5, logprobs=0, constraint=LONG_OR_SHORT, bad=[ids("X")])
    end = end_of(engine)
    assert (text(engine, "a"), end.finish) == ("ABCDY", FinishReason.MAX_TOKENS)
    assert (end.closed, end.accepting) == (True, True)
    starts = [row.start for plan in engine.executor.plans for row in plan.rows]
    assert starts == [0, 1, 2, 3, 4, 4], "the token before the way out was not computed again"


def test_an_answer_out_of_time_is_completed() -> None:
    engine = wanting("ABCDEFGHIJKL")
    engine.add("a", [1], constraint=LONG_OR_SHORT)
    for _ in range(10):
        if engine.tokens["a"]:
            break
        engine.step()
    request = engine.core.scheduler.get("a")
    assert request is not None
    engine.core._end_in_time(request)
    engine.step()
    end = engine.ends["a"]
    assert text(engine, "a") in LONG_OR_SHORT.options
    assert (end.finish, end.closed, end.accepting) == (FinishReason.TIME_LIMIT, True, True)
    engine.assert_clean()


def test_each_sample_is_completed_for_itself() -> None:
    wanted = [ids("ABCDEFGHIJKL"), ids("ABXXXXXXXXXX")]
    engine = StubEngine(lambda tokens: wanted[0][min(len(tokens) - 1, 11)])
    engine.add("a", [1], max_tokens=6, n=2, constraint=LONG_OR_SHORT)
    engine.run(2)
    assert [text(engine, name) for name in ("a", "a/1")] == ["ABCDY", "ABCDY"]
    engine.assert_clean()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_model_wants_answers_are_complete_if_one_option_fits(seed: int) -> None:
    rng = random.Random(seed)
    options = sorted({"".join(rng.choices("AB", k=rng.randint(1, 14))) for _ in range(8)})
    shortest = min(map(len, options))
    for limit in range(1, 16):
        engine = StubEngine(lambda tokens: rng.randrange(60))
        engine.add("a", [1], max_tokens=limit, constraint=Choice(tuple(options)))
        end = end_of(engine)
        if limit >= shortest:
            assert text(engine, "a") in options
            assert end.accepting
        else:
            assert end.error is not None
