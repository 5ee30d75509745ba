"""Text that a constraint leaves no choice about is appended, not sampled."""

import random
import threading

import pytest
from stub_engine import EOS, StubEngine

from structgen.constraints import Choice
from structgen.messages import Abort, FinishReason
from structgen.params import JumpForward
from structgen.plan import StepPlan

FORKED = Choice(("CALLED AT NOON", "CALLED AT NIGHT", "CAME BY"))


def ids(text: str) -> list[int]:
    return [ord(c) - 32 for c in text]


def text(engine: StubEngine, name: str) -> str:
    return "".join(chr(32 + token) for token in engine.tokens[name])


def lowest(tokens: list[int]) -> int:
    """A "model" that has no wishes: the stub takes the lowest token that is allowed."""
    return EOS - 1


def alone(prompt: list[int], **params: object) -> str:
    engine = StubEngine(lowest)
    engine.add("alone", prompt, **params)
    engine.run(1)
    return text(engine, "alone")


def test_forced_text_takes_no_forward() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.compile(FORKED)
    engine.add("a", [1, 2], constraint=FORKED)
    engine.run(1)
    assert text(engine, "a") == "CALLED AT NIGHT"
    stats = engine.ends["a"].stats
    assert stats is not None
    assert (stats.forwards, stats.forced_tokens) == (2, 13)  # L and I were chosen
    engine.assert_clean()


def test_what_an_answer_begins_with_is_there_before_the_prompt_is_computed() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.add("a", [1, 2], constraint=FORKED)
    engine.run(1)
    first, *_ = engine.reported["a"]
    assert first.new_ids == ids("CA")
    assert first.stats is not None
    assert first.stats.forwards <= 1  # of the prompt without its last token


def test_an_answer_that_is_forced_as_a_whole_takes_no_forward() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.add("a", [1, 2], constraint=Choice(("ALWAYS",)))
    engine.run(1)
    end = engine.ends["a"]
    assert (text(engine, "a"), end.finish) == ("ALWAYS", FinishReason.CONSTRAINT_COMPLETE)
    engine.assert_clean()


def test_forced_tokens_are_computed_with_the_next_sampled_one() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.compile(FORKED)
    engine.add("a", [1, 2], constraint=FORKED)
    engine.run(1)
    rows = [row for plan in engine.executor.plans for row in plan.rows]
    computed = [token for row in rows for token in row.token_ids]
    assert computed == [1, 2, *ids("CALLED AT N")]
    assert [row.num_logits for row in rows if row.num_logits] == [1, 1]


def test_a_request_may_want_everything_sampled() -> None:
    engine = StubEngine(lowest, jump=True, drafts=False)
    engine.compile(FORKED)
    engine.add("a", [1, 2], constraint=FORKED, jump_forward=JumpForward.OFF)
    engine.run(1)
    stats = engine.ends["a"].stats
    assert stats is not None
    assert (text(engine, "a"), stats.forced_tokens) == ("CALLED AT NIGHT", 0)
    assert stats.forwards == len("CALLED AT NIGHT")


@pytest.mark.parametrize("option", [{"jump_forward": JumpForward.DRAFT}, {"logprobs": 0}])
def test_forced_text_can_be_guessed_and_sampled_at_once(option: dict[str, object]) -> None:
    engine = StubEngine(lowest, jump=True, drafts=False)
    engine.compile(FORKED)
    engine.add("a", [1, 2], constraint=FORKED, **option)
    engine.run(1)
    stats = engine.ends["a"].stats
    assert stats is not None
    assert (text(engine, "a"), stats.forced_tokens) == ("CALLED AT NIGHT", 0)
    # All but L and I; the last one ends the answer.
    assert (stats.drafted_tokens, stats.accepted_tokens) == (13, 12)
    assert stats.forwards == 3


def test_a_limit_ends_a_run_where_it_would_end_sampling() -> None:
    for limit in range(1, 16):
        answers = []
        for jump in (True, False):
            engine = StubEngine(lowest, jump=jump)
            options: dict[str, object] = {"max_tokens": limit, "close_within_budget": False}
            engine.add("a", [1, 2], constraint=FORKED, **options)
            engine.run(1)
            answers.append((text(engine, "a"), engine.ends["a"].finish))
            engine.assert_clean()
        assert answers[0] == answers[1]


def test_what_is_banned_is_not_jumped_over() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.add("a", [1, 2], constraint=FORKED, bad=[ids("LE")])
    engine.run(1)
    assert engine.ends["a"].finish is FinishReason.DEAD_END
    assert text(engine, "a") == "CAL" or text(engine, "a") == "CALL"


def test_prompt_log_probabilities_come_with_the_first_tokens_all_the_same() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.add("a", [1, 2, 3], constraint=FORKED, prompt_logprobs=0)
    engine.run(1)
    first = engine.reported["a"][0]
    assert [one and one.token for one in first.prompt_logprobs] == [None, 2, 3]
    assert text(engine, "a") == "CALLED AT NIGHT"


def test_each_sample_jumps_for_itself() -> None:
    engine = StubEngine(lowest, jump=True)
    engine.add("a", [1, 2], n=3, constraint=FORKED)
    engine.add("b", [1, 2], n=2, constraint=Choice(("ALWAYS",)))
    engine.run(5)
    assert {text(engine, name) for name in ("a", "a/1", "a/2")} == {"CALLED AT NIGHT"}
    assert {text(engine, name) for name in ("b", "b/1")} == {"ALWAYS"}
    engine.assert_clean()


@pytest.mark.parametrize("seed", range(4))
def test_jumping_changes_no_answer_whatever_happens_beside(seed: int) -> None:
    rng = random.Random(seed)
    engine = StubEngine(
        lowest,
        jump=True,
        num_blocks=18,
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice([3, 9, 40]),
    )
    added: dict[str, tuple[list[int], dict[str, object]]] = {}
    for event in range(500):
        if rng.random() < 0.35:
            name = f"r{event}"
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 24))]
            options = ["AB", "ABCDEFG", "ABCDXYZ", "HIJKLM", "HIJ", "BAD"]
            params: dict[str, object] = {"max_tokens": rng.randint(2, 12)}
            if rng.random() < 0.7:
                params["constraint"] = Choice(tuple(rng.sample(options, 3)))
                params["jump_forward"] = rng.choice(list(JumpForward))
            engine.add(name, prompt, priority=rng.randrange(2), **params)
            added[name] = prompt, params
        if rng.random() < 0.1 and added:
            name = rng.choice(list(added))
            engine.inbox.put(Abort([name]))
            added.pop(name)
        if set(added) - set(engine.ends):  # with nothing open, a step would wait for ever
            engine.step()
    engine.run(len(set(engine.ends) | set(added)))
    for name, (prompt, params) in added.items():
        if engine.ends[name].error is None:
            reference = alone(prompt, **params | {"jump_forward": JumpForward.OFF})
            assert text(engine, name) == reference, (name, params)
    engine.assert_clean()


@pytest.mark.parametrize("moment", ["during", "after"])
@pytest.mark.parametrize("constraint", [FORKED, Choice(("BOTH", "NONE"))])
def test_a_constraint_that_is_ready_during_the_forward_leads_to_the_same_answer(
    moment: str, constraint: Choice
) -> None:
    """What was sampled behind the prompt is not taken for what comes behind forced text."""
    engine = StubEngine(lowest, jump=True)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None

    def compile_meanwhile(plan: StepPlan) -> None:
        gate.set()
        engine.inbox.put(engine.inbox.get(timeout=10))

    if moment == "during":
        engine.executor.on_forward = compile_meanwhile
    engine.add("a", list(range(9)), constraint=constraint)
    engine.add("b", [1, 2], max_tokens=3)
    engine.step()
    engine.executor.on_forward = lambda plan: None
    gate.set()
    engine.run(2)
    assert text(engine, "a") == alone(list(range(9)), constraint=constraint)
    assert text(engine, "b") == alone([1, 2], max_tokens=3)
    computed = [
        (row.start + place, token)
        for plan in engine.executor.plans
        for row in plan.rows
        if row.id == "a"
        for place, token in enumerate(row.token_ids)
    ]
    tokens = [*range(9), *engine.tokens["a"]]
    assert {token == tokens[place] for place, token in computed} == {True}
    engine.assert_clean()
