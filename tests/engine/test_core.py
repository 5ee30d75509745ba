import random
import threading

import pytest
from stub_engine import EOS, StubEngine

from structgen.constraints import Backend, Choice
from structgen.errors import (
    ConstraintTooLarge,
    InternalError,
    LimitExceeded,
    StructgenError,
    Unsupported,
)
from structgen.grammar import bitmask
from structgen.grammar.base import Matcher, TooSlow
from structgen.messages import Abort, EngineOutput, EngineRequest, FinishReason
from structgen.params import SamplingParams
from structgen.plan import StepPlan


def counting(tokens: list[int]) -> int:
    """A deterministic "model": the next token depends on every token before it."""
    return sum((i + 1) * t for i, t in enumerate(tokens)) % 60


def alone(prompt: list[int], **params: object) -> list[int]:
    engine = StubEngine(counting)
    engine.add("alone", prompt, **params)
    engine.run(1)
    return engine.tokens["alone"]


def ids(text: str) -> list[int]:
    return [ord(c) - 32 for c in text]


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    engine = StubEngine(counting, max_num_batched_tokens=5)
    engine.add("a", list(range(12)), max_tokens=3)
    engine.run(1)
    assert [len(p.rows[0].token_ids) for p in engine.executor.plans] == [5, 5, 2, 1, 1]
    assert engine.tokens["a"] == alone(list(range(12)), max_tokens=3)


def test_prefill_chunks_and_decodes_share_a_step() -> None:
    engine = StubEngine(counting, max_num_batched_tokens=6)
    engine.add("a", [1, 2], max_tokens=20)
    engine.step()
    engine.add("b", list(range(12)), max_tokens=2)
    engine.step()
    assert [len(r.token_ids) for r in engine.executor.plans[-1].rows] == [1, 5]


@pytest.mark.parametrize("budget", [1, 3, 4, 7, 64])
@pytest.mark.parametrize("num_blocks", [16, 20, 64])
def test_answers_do_not_depend_on_budget_or_space(budget: int, num_blocks: int) -> None:
    engine = StubEngine(counting, max_num_batched_tokens=budget, num_blocks=num_blocks)
    rng = random.Random(0)
    prompts = [[rng.randrange(3) for _ in range(rng.randint(1, 20))] for _ in range(12)]
    for index, prompt in enumerate(prompts):
        engine.add(f"r{index}", prompt, max_tokens=15)
    engine.run(len(prompts))
    for index, prompt in enumerate(prompts):
        assert engine.tokens[f"r{index}"] == alone(prompt, max_tokens=15)
    engine.assert_clean()


def test_preempted_requests_finish_with_few_preemptions() -> None:
    engine = StubEngine(counting, num_blocks=16, max_num_seqs=32, max_num_batched_tokens=64)
    for index in range(32):
        engine.add(f"r{index}", [index] * 8, max_tokens=20)
    engine.run(32)
    preemptions = [end.stats.preemptions for end in engine.ends.values() if end.stats]
    assert sum(preemptions) > 0
    assert max(preemptions) <= 5
    engine.assert_clean()


def test_a_repeated_prompt_is_read_from_the_cache() -> None:
    engine = StubEngine(counting)
    for index, length in enumerate((3, 4, 5, 8)):
        prompt = [index] * length
        for round_ in range(2):
            engine.add(f"{length}.{round_}", prompt, max_tokens=2)
            engine.run(len(engine.ends) + 1)
        assert engine.tokens[f"{length}.0"] == engine.tokens[f"{length}.1"]
        stats = engine.ends[f"{length}.1"].stats
        assert stats is not None
        assert stats.cached_tokens == (length - 1) // 4 * 4
    engine.assert_clean()


def test_without_prefix_caching_a_repeated_prompt_is_computed_again() -> None:
    engine = StubEngine(counting, prefix_caching=False)
    for name in ("a", "b"):
        engine.add(name, [1] * 9, max_tokens=2)
        engine.run(len(engine.ends) + 1)
    assert engine.ends["b"].stats is not None
    assert engine.ends["b"].stats.cached_tokens == 0
    engine.assert_clean()


def test_priority_goes_before_arrival() -> None:
    engine = StubEngine(counting, max_num_seqs=1)
    engine.add("late", [1], max_tokens=2, priority=1)
    engine.add("early", [1], max_tokens=2, priority=0)
    engine.run(2)
    assert list(engine.ends) == ["early", "late"]


def test_a_prompt_that_can_never_fit_is_refused_and_the_next_runs() -> None:
    engine = StubEngine(counting, num_blocks=4, context_length=16)
    engine.add("big", [1] * 16)
    engine.add("small", [1] * 3, max_tokens=2)
    engine.run(2)
    error = engine.ends["big"].error
    assert error is not None
    assert error.kind == "InvalidRequest"
    assert "1 to 15 tokens, got 16" in error.message
    assert engine.ends["small"].finish is FinishReason.MAX_TOKENS


def test_the_context_limit_ends_an_answer() -> None:
    engine = StubEngine(counting, context_length=16)
    engine.add("a", [1] * 10)
    engine.run(1)
    assert engine.ends["a"].finish is FinishReason.CONTEXT_LIMIT
    assert len(engine.tokens["a"]) == 6


def test_a_stop_id_ends_the_answer_and_is_not_part_of_it() -> None:
    engine = StubEngine(lambda tokens: EOS if len(tokens) == 4 else 7)
    engine.add("a", [1, 2])
    engine.add("b", [1, 2], ignore_eos=True, max_tokens=4)
    engine.add("c", [1, 2], stop_token_ids=(7,))
    engine.run(3)
    assert engine.tokens == {"a": [7, 7], "b": [7, 7, EOS, 7], "c": []}
    assert engine.ends["a"].finish is FinishReason.STOP
    assert engine.ends["a"].stop_id == EOS
    assert engine.ends["c"].stop_id == 7


def test_min_tokens_bans_stop_ids_until_then() -> None:
    engine = StubEngine(lambda tokens: EOS)
    engine.add("a", [1, 2], min_tokens=3)
    engine.run(1)
    assert len(engine.tokens["a"]) == 3
    assert engine.ends["a"].finish is FinishReason.STOP


def test_a_choice_is_obeyed_and_ends_without_a_forward_for_eos() -> None:
    """B4.5: nothing is asked of a matcher behind the end."""
    engine = StubEngine(lambda tokens: 40)
    engine.add("a", [1, 2], constraint=Choice(("AB", "AC")))
    engine.run(1)
    assert engine.tokens["a"] == ids("AB")
    assert engine.ends["a"].finish is FinishReason.CONSTRAINT_COMPLETE
    assert engine.ends["a"].accepting
    assert engine.ends["a"].stats is not None
    assert engine.ends["a"].stats.forwards <= 3


@pytest.mark.parametrize("stop", [EOS, 1, 50])
def test_any_of_the_models_stop_ids_ends_a_complete_text(stop: int) -> None:
    """B4.13: and none of them comes before that."""
    engine = StubEngine(lambda tokens: stop, eos=(EOS, 1, 50))
    engine.add("a", [1, 2], constraint=Choice(("AB", "ABC")))
    engine.run(1)
    assert engine.tokens["a"] == ids("AB")
    assert engine.ends["a"].finish is FinishReason.STOP
    assert engine.ends["a"].stop_id == stop


def test_where_the_grammar_may_end_or_go_on_the_model_decides() -> None:
    for script, text, reason in (
        (lambda tokens: EOS, "A", FinishReason.STOP),
        (lambda tokens: ord("B") - 32, "AB", FinishReason.CONSTRAINT_COMPLETE),
    ):
        engine = StubEngine(script)
        engine.add("a", [1, 2], constraint=Choice(("A", "AB")))
        engine.run(1)
        assert engine.tokens["a"] == ids(text)
        assert engine.ends["a"].finish is reason


def test_a_complete_grammar_wins_over_min_tokens() -> None:
    engine = StubEngine(lambda tokens: EOS)
    engine.add("a", [1, 2], min_tokens=60, constraint=Choice(("AB",)))
    engine.run(1)
    assert engine.tokens["a"] == ids("AB")
    assert engine.ends["a"].finish is FinishReason.CONSTRAINT_COMPLETE


def test_a_stop_id_inside_the_grammar_is_masked_until_it_accepts() -> None:
    engine = StubEngine(lambda tokens: ord("B") - 32)
    engine.add("a", [1, 2], stop_token_ids=(ord("B") - 32,), constraint=Choice(("AC", "ABX")))
    engine.run(1)
    assert engine.tokens["a"] == ids("AC")


def test_a_grammar_that_needs_a_stop_id_is_a_dead_end_for_that_request_alone() -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2], stop_token_ids=(ord("B") - 32,), constraint=Choice(("ABX",)))
    engine.add("b", [1, 2], max_tokens=5)
    engine.run(2)
    assert engine.ends["a"].finish is FinishReason.DEAD_END
    assert engine.tokens["a"] == ids("A")
    assert "no token is left" in engine.ends["a"].detail
    assert engine.tokens["b"] == alone([1, 2], max_tokens=5)


def test_the_prompt_is_computed_while_its_constraint_compiles() -> None:
    engine = StubEngine(counting)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    engine.add("a", list(range(9)), constraint=Choice(("AB",)))
    engine.step()
    plan = engine.executor.plans[-1]
    assert (plan.rows[0].token_ids, plan.rows[0].num_logits) == (list(range(9)), 1)
    assert engine.tokens["a"] == []  # nothing is sampled without the mask
    gate.set()
    engine.run(1)
    assert engine.tokens["a"] == ids("AB")
    assert engine.executor.plans[1].rows[0].token_ids == [8]


def test_a_constraint_that_compiles_during_the_forward_costs_no_other() -> None:
    engine = StubEngine(counting)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None

    def compile_meanwhile(plan: StepPlan) -> None:
        gate.set()
        engine.inbox.put(engine.inbox.get(timeout=10))

    engine.executor.on_forward = compile_meanwhile
    engine.add("a", list(range(9)), constraint=Choice(("AB",)))
    engine.step()
    assert engine.tokens["a"] == ids("A")
    engine.executor.on_forward = lambda plan: None
    engine.run(1)
    assert engine.tokens["a"] == ids("AB")
    assert [plan.rows[0].start for plan in engine.executor.plans] == [0, 9]
    engine.assert_clean()


def test_what_an_answer_begins_with_is_said_before_the_forward_is_over() -> None:
    engine = StubEngine(lambda tokens: 0, jump=True)
    said: list[EngineOutput] = []
    engine.core.say = said.extend
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None

    def compile_meanwhile(plan: StepPlan) -> None:
        gate.set()
        engine.inbox.put(engine.inbox.get(timeout=10))

    engine.executor.on_forward = compile_meanwhile
    engine.add("a", [1, 2], constraint=Choice(("ABLE", "ABET")))
    engine.step()
    assert [output.new_ids for output in said] == [ids("AB")]
    assert engine.tokens["a"] == []
    engine.executor.on_forward = lambda plan: None
    engine.run(1)
    assert engine.tokens["a"] == ids("ET")
    engine.assert_clean()


def test_a_lone_prompt_waits_a_little_for_its_constraint() -> None:
    """What that forces is said first, and computed with the prompt."""
    engine = StubEngine(lambda tokens: 0, jump=True, head_start_s=10.0)
    engine.add("a", [1, 2], constraint=Choice(("ABLE", "ABET")))
    engine.run(1)
    assert engine.reported["a"][0].new_ids == ids("AB")
    assert engine.executor.plans[0].rows[0].token_ids == [1, 2, *ids("AB")]
    assert engine.tokens["a"] == ids("ABET")
    engine.assert_clean()


def test_a_prompt_waits_no_longer_for_its_constraint_than_it_may() -> None:
    engine = StubEngine(counting, head_start_s=0.01)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    engine.add("a", [1, 2], constraint=Choice(("AB",)))
    engine.step()
    engine.add("b", [1, 2], constraint=Choice(("AB",)))  # it has no time of its own
    engine.step()
    assert [row.id for row in engine.executor.plans[0].rows] == ["a", "b"]
    gate.set()
    engine.run(2)
    assert engine.tokens["a"] == engine.tokens["b"] == ids("AB")
    engine.assert_clean()


def test_who_has_no_constraint_waits_for_nobody_elses() -> None:
    engine = StubEngine(counting, head_start_s=10.0)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    engine.add("a", [1, 2], constraint=Choice(("AB",)))
    engine.add("b", [1, 2], max_tokens=1)
    engine.step()
    assert [row.id for row in engine.executor.plans[0].rows] == ["a", "b"]
    gate.set()
    engine.run(2)
    engine.assert_clean()


@pytest.mark.parametrize("outcome", ["fails", "aborted"])
def test_a_request_that_ends_before_its_forward_leaves_nothing(outcome: str) -> None:
    engine = StubEngine(counting, head_start_s=10.0)
    engine.add("a", [1, 2], constraint=Choice(("BAD",)))
    if outcome == "aborted":
        engine.inbox.put(Abort(["a"]))
    engine.add("b", [1, 2], constraint=Choice(("AB",)))
    engine.run(2 if outcome == "fails" else 1)
    assert engine.tokens["a"] == []
    assert engine.tokens["b"] == ids("AB")
    engine.assert_clean()


@pytest.mark.parametrize("outcome", ["fails", "aborted"])
def test_a_request_that_ends_during_the_forward_leaves_nothing_of_it(outcome: str) -> None:
    engine = StubEngine(counting)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None

    def end_meanwhile(plan: StepPlan) -> None:
        if outcome == "aborted":
            engine.inbox.put(Abort(["a"]))
        gate.set()
        engine.inbox.put(engine.inbox.get(timeout=10))

    engine.executor.on_forward = end_meanwhile
    engine.add("a", list(range(9)), constraint=Choice(("BAD",)))
    engine.add("b", [1, 2], max_tokens=3)
    engine.step()
    engine.executor.on_forward = lambda plan: None
    engine.run(2 if outcome == "fails" else 1)
    assert engine.tokens["a"] == []
    assert engine.tokens["b"] == alone([1, 2], max_tokens=3)
    engine.assert_clean()


def test_the_logprobs_of_a_prompt_are_those_of_all_its_tokens_while_its_constraint_compiles() -> (
    None
):
    engine = StubEngine(counting, max_num_batched_tokens=5)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    engine.add("a", list(range(9)), constraint=Choice(("AB",)), prompt_logprobs=0)
    for _ in range(2):
        engine.step()
    gate.set()
    engine.run(1)
    logprobs = engine.reported["a"][0].prompt_logprobs
    assert [one and one.token for one in logprobs] == [None, *range(1, 9)]


def test_ten_requests_share_one_compile() -> None:
    """B4.7: however many ask."""
    engine = StubEngine(counting, max_num_seqs=16)
    for index in range(10):
        engine.add(f"r{index}", [index, 2], constraint=Choice(("AB", "C")))
    engine.run(10)
    engine.add("later", [5], constraint=Choice(("AB", "C")))
    engine.run(11)
    assert engine.backend.compiles == 1
    info = engine.ends["later"].stats.constraint  # type: ignore[union-attr]
    assert info is not None
    assert info.cached
    assert info.backend == "toy"


def test_a_failed_compile_ends_that_request_alone_and_is_remembered() -> None:
    engine = StubEngine(counting)
    engine.add("bad", [1, 2, 3], constraint=Choice(("BAD",)))
    engine.add("good", [1, 2], max_tokens=5)
    engine.run(2)
    engine.add("again", [1], constraint=Choice(("BAD",)))
    engine.run(3)
    for name in ("bad", "again"):
        error = engine.ends[name].error
        assert error is not None
        assert (error.kind, error.message) == ("ConstraintError", "BAD is bad")
        assert error.field == "input.constraint.choice"
    assert engine.backend.compiles == 1
    assert engine.tokens["good"] == alone([1, 2], max_tokens=5)
    engine.assert_clean()


def test_a_failure_that_is_not_the_constraints_is_not_remembered() -> None:
    engine = StubEngine(counting)

    def fail(constraint: object) -> None:
        raise MemoryError("no room")

    engine.backend.gate = fail
    engine.add("a", [1, 2], constraint=Choice(("AB",)))
    engine.run(1)
    assert engine.ends["a"].error is not None
    assert engine.ends["a"].error.kind == "InternalError"
    engine.backend.gate = lambda constraint: None
    engine.add("b", [1, 2], constraint=Choice(("AB",)))
    engine.run(2)
    assert engine.tokens["b"] == ids("AB")


def test_a_compile_that_ran_out_of_time_is_tried_again() -> None:
    """B4.9: it is not remembered as invalid."""
    engine = StubEngine(counting)

    def fail(constraint: object) -> None:
        raise LimitExceeded("no time", field="input.constraint.choice")

    engine.backend.gate = fail
    engine.add("a", [1, 2], constraint=Choice(("AB",)))
    engine.run(1)
    error = engine.ends["a"].error
    assert error is not None
    assert (error.kind, error.field) == ("LimitExceeded", "input.constraint.choice")
    engine.backend.gate = lambda constraint: None
    engine.add("b", [1, 2], constraint=Choice(("AB",)))
    engine.run(2)
    assert engine.tokens["b"] == ids("AB")


@pytest.mark.parametrize("kind", [ConstraintTooLarge, InternalError, Unsupported])
def test_a_compile_that_can_only_fail_again_is_not_tried_again(kind: type[StructgenError]) -> None:
    engine = StubEngine(counting)
    tries = []

    def fail(constraint: object) -> None:
        tries.append(constraint)
        raise kind("no way")

    engine.backend.gate = fail
    for number in (1, 2):
        engine.add(f"r{number}", [1, 2], constraint=Choice(("AB",)))
        engine.run(number)
        error = engine.ends[f"r{number}"].error
        assert error is not None
        assert error.kind == kind.__name__
    assert len(tries) == 1


def test_who_names_the_library_that_auto_chose_shares_what_it_compiled() -> None:
    engine = StubEngine(counting)
    engine.backend.name = "xgrammar"
    engine.add("auto", [1], constraint=Choice(("AB",)))
    engine.run(1)
    engine.add("named", [1], constraint=Choice(("AB",), backend=Backend.XGRAMMAR))
    engine.run(2)
    assert engine.backend.compiles == 1
    engine.add("other", [1], constraint=Choice(("AB",), backend=Backend.LLGUIDANCE))
    engine.run(3)
    assert engine.backend.compiles == 2
    info = engine.ends["named"].stats.constraint  # type: ignore[union-attr]
    assert info is not None
    assert info.cached
    assert info.key == Choice(("AB",), backend=Backend.XGRAMMAR).key()


def test_the_least_recently_used_constraints_leave_the_cache() -> None:
    """B5.2: it is bounded, and there is none on disk."""
    engine = StubEngine(counting)  # it holds 8
    names = [f"AB{letter}" for letter in "CDEFGHIJKL"]
    for number, name in enumerate(names, 1):
        engine.add(name, [1], constraint=Choice((name,)))
        engine.run(number)
    for name, compiles in (("ABL", 10), ("ABE", 10), ("ABC", 11), ("ABE", 11), ("ABF", 12)):
        engine.add(f"{name} {compiles}", [1], constraint=Choice((name,)))
        engine.run(len(engine.ends) + 1)
        assert engine.backend.compiles == compiles, name


def test_what_waits_to_be_compiled_is_bounded_and_plain_requests_go_on() -> None:
    """B4.8: nobody else waits for it."""
    engine = StubEngine(counting, max_num_seqs=2)  # 16 may wait
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    for index in range(20):
        engine.add(f"slow{index}", [1, 2], constraint=Choice((f"A{index % 18}",)))
    engine.add("plain", [1], max_tokens=3)
    engine.run(3)
    assert engine.tokens["plain"] == alone([1], max_tokens=3)
    refused = [engine.ends[f"slow{index}"].error for index in (16, 17)]
    for error in refused:
        assert error is not None
        assert error.kind == "LimitExceeded"
        assert "at most 16 constraints" in error.message
    gate.set()
    engine.run(21)
    assert engine.tokens["slow18"] == ids("A0")  # the same constraint takes no place of its own
    engine.assert_clean()


def test_parked_requests_neither_take_seats_nor_keep_blocks_from_others() -> None:
    engine = StubEngine(counting, max_num_seqs=2, num_blocks=16)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    for index in range(8):
        engine.add(f"slow{index}", [index] * 9, constraint=Choice((f"A{index}",)))
    for _ in range(3):  # five of them fit; a further step would wait for the compiler
        engine.step()
    engine.add("plain", [1] * 40, max_tokens=5)
    engine.run(1)
    assert engine.tokens["plain"] == alone([1] * 40, max_tokens=5)
    gate.set()
    engine.run(9)
    engine.assert_clean()


def test_aborting_the_last_waiter_cancels_a_queued_compile() -> None:
    """B4.7: who gives up leaves nothing waiting."""
    engine = StubEngine(counting)
    gate = threading.Event()
    engine.backend.gate = lambda constraint: gate.wait(10) and None
    for index in range(4):  # two compile at a time, two wait
        engine.add(f"r{index}", [1, 2], constraint=Choice((f"A{index}",)))
    engine.step()
    engine.inbox.put(Abort(["r0", "r1", "r2", "r3"]))
    engine.add("plain", [1], max_tokens=1)
    engine.run(1)
    gate.set()
    engine.add("after", [1], constraint=Choice(("Z",)))
    engine.run(2)
    assert engine.backend.compiles <= 3
    engine.assert_clean()


def test_an_abort_during_the_forward_commits_nothing() -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2])
    engine.add("b", [1, 2], max_tokens=4)
    engine.step()
    engine.executor.on_forward = lambda plan: engine.inbox.put(Abort(["a", "unknown"]))
    outputs = engine.step()
    assert [output.id for output in outputs] == ["b"]
    engine.executor.on_forward = lambda plan: None
    engine.run(1)
    engine.assert_clean()


def test_a_duplicate_id_is_refused_and_the_first_goes_on() -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2], max_tokens=4)
    engine.step()
    engine.inbox.put(EngineRequest("a", [1], SamplingParams(), 0.0))
    outputs = engine.core.step()
    kinds = [output.error.kind for output in outputs if output.error]
    assert kinds == ["DuplicateRequest"]


def test_a_row_that_fails_on_the_device_ends_alone() -> None:
    engine = StubEngine(counting)
    engine.executor.fail_ids = {"a"}
    engine.add("a", [1, 2])
    engine.add("b", [1, 2], max_tokens=4)
    engine.run(2)
    assert engine.ends["a"].error is not None
    assert engine.ends["a"].error.kind == "InternalError"
    assert engine.tokens["b"] == alone([1, 2], max_tokens=4)
    engine.assert_clean()


def test_a_token_that_the_matcher_refuses_ends_that_request_alone() -> None:
    """B4.3: within the step, with an error."""
    engine = StubEngine(counting)
    engine.backend.refuse = {ord("B") - 32}
    engine.add("a", [1, 2], constraint=Choice(("AB",)))
    engine.add("b", [1, 2], max_tokens=4)
    engine.run(2)
    error = engine.ends["a"].error
    assert error is not None
    assert error.kind == "InternalError"
    assert "refused" in error.message
    assert engine.tokens["b"] == alone([1, 2], max_tokens=4)


def test_a_time_limit_ends_with_what_there_is() -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2], time_limit_s=1e-9)  # arrival is long past on the monotonic clock
    engine.run(1)
    assert engine.ends["a"].finish is FinishReason.TIME_LIMIT
    engine.assert_clean()


@pytest.mark.parametrize("seed", range(4))
def test_random_submits_cancels_and_preemptions_leave_nothing_behind(seed: int) -> None:
    rng = random.Random(seed)
    engine = StubEngine(
        counting, num_blocks=18, max_num_seqs=6, max_num_batched_tokens=rng.choice([3, 9, 40])
    )
    added: dict[str, tuple[list[int], dict[str, object]]] = {}
    for event in range(700):
        if rng.random() < 0.35:
            name = f"r{event}"
            prompt = [rng.randrange(2) for _ in range(rng.randint(1, 24))]
            params: dict[str, object] = {"max_tokens": rng.randint(1, 12)}
            if rng.random() < 0.4:
                params["constraint"] = Choice(tuple(rng.sample(["AB", "AC", "B", "BAD"], 2)))
            engine.add(name, prompt, priority=rng.randrange(2), **params)
            added[name] = prompt, params
        if rng.random() < 0.15 and added:
            name = rng.choice(list(added))
            engine.inbox.put(Abort([name]))
            added.pop(name)
        if set(added) - set(engine.ends):  # with nothing open, a step would wait for ever
            engine.step()
    while set(added) - set(engine.ends):
        engine.step()
    engine.add("last", [1], max_tokens=1)  # lets the engine see the last aborts
    engine.run(len(engine.ends) + 1)
    assert set(added) <= set(engine.ends)
    for name, (prompt, params) in rng.sample(sorted(added.items()), 20):
        if engine.ends[name].error is None:
            assert engine.tokens[name] == alone(prompt, **params)
    engine.assert_clean()


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_samples_share_the_prompt_and_end_one_by_one(prefix_caching: bool) -> None:
    engine = StubEngine(counting, num_blocks=64, max_num_seqs=16, prefix_caching=prefix_caching)
    prompt = list(range(18))
    engine.add("a", prompt, n=4, max_tokens=5)
    engine.run(4)
    assert set(engine.ends) == {"a", "a/1", "a/2", "a/3"}
    for name in engine.ends:
        assert engine.tokens[name] == alone(prompt, max_tokens=5)
    computed = sum(plan.num_tokens for plan in engine.executor.plans)
    # The prompt once, for each other sample what lies behind the last full block, and the answers.
    assert computed == 18 + 3 * 2 + 4 * 4
    engine.assert_clean()


def test_samples_have_matchers_of_their_own() -> None:
    letters = iter("XAXBCAXX")
    engine = StubEngine(lambda tokens: ord(next(letters, "C")) - 32)
    engine.add("a", [1], n=3, constraint=Choice(("AB", "AC", "BC")))
    engine.run(3)
    texts = {"".join(chr(32 + t) for t in engine.tokens[name]) for name in engine.ends}
    assert texts <= {"AB", "AC", "BC"}
    assert all(end.accepting for end in engine.ends.values())
    engine.assert_clean()


def test_a_sample_can_be_aborted_alone_and_a_request_as_a_whole() -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2], n=3, max_tokens=30)
    engine.add("b", [1, 2], n=3, max_tokens=30)
    for _ in range(4):
        engine.step()
    engine.inbox.put(Abort(["b"], [("a", 1), ("a", 7), ("unknown", 0)]))
    engine.run(2)
    assert set(engine.ends) == {"a", "a/2"}
    engine.assert_clean()


def test_a_leader_that_goes_does_not_take_the_other_samples_along() -> None:
    engine = StubEngine(counting, max_num_batched_tokens=4)
    prompt = list(range(20))
    engine.add("a", prompt, n=2, max_tokens=5)
    engine.step()
    engine.inbox.put(Abort([], [("a", 0)]))
    engine.run(1)
    assert engine.tokens["a/1"] == alone(prompt, max_tokens=5)
    engine.assert_clean()


def test_a_failed_compile_ends_all_samples_with_one_error() -> None:
    engine = StubEngine(counting)
    for name in ("a", "again"):
        engine.add(name, [1, 2, 3], n=3, constraint=Choice(("BAD",)))
        engine.run(len(engine.ends) + 1)
        assert engine.ends[name].error is not None
    engine.assert_clean()


def test_only_allowed_ids_are_answered_under_a_grammar_too() -> None:
    engine = StubEngine(lambda tokens: 5)
    engine.add("free", [1], allowed_token_ids=(3, 9), max_tokens=3)
    engine.add("grammar", [1], allowed_token_ids=tuple(ids("AC")), constraint=Choice(("AB", "AC")))
    engine.run(2)
    assert engine.tokens == {"free": [3, 3, 3], "grammar": ids("AC")}


def test_the_last_token_of_a_bad_word_is_banned_only_after_the_others() -> None:
    script = iter([7, 8, 9, 8, 9, 7, 9, 5])
    engine = StubEngine(lambda tokens: next(script))
    # The prompt's end is no part of the word: what counts is the answer.
    engine.add("a", [7, 8], bad=[[7, 8, 9], [5]], max_tokens=8)
    engine.run(1)
    assert engine.tokens["a"] == [7, 8, 0, 8, 9, 7, 9, 0]


def test_a_stop_id_that_is_bad_stays_banned() -> None:
    engine = StubEngine(lambda tokens: EOS)
    engine.add("a", [1], bad=[[EOS]], max_tokens=3)
    engine.run(1)
    assert engine.tokens["a"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"allowed_token_ids": (1,)}, ["the constraint", "allowed_token_ids"]),
        ({"bad": [[ord("A") - 32]]}, ["the constraint", "bad words"]),
    ],
)
def test_a_dead_end_names_the_masks_that_met(options: dict[str, object], names: list[str]) -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2], constraint=Choice(("AB",)), **options)  # type: ignore[arg-type]
    engine.add("b", [1, 2], max_tokens=5)
    engine.run(2)
    assert engine.ends["a"].finish is FinishReason.DEAD_END
    assert engine.tokens["a"] == []
    assert all(name in engine.ends["a"].detail for name in names)
    assert engine.tokens["b"] == alone([1, 2], max_tokens=5)


def test_bad_words_that_empty_a_free_row_are_a_dead_end() -> None:
    engine = StubEngine(counting)
    engine.add("a", [1, 2], allowed_token_ids=(4,), bad=[[4, 4]], max_tokens=5)
    engine.run(1)
    assert engine.tokens["a"] == [4]
    assert engine.ends["a"].finish is FinishReason.DEAD_END
    assert "allowed_token_ids, bad words" in engine.ends["a"].detail


def test_prompt_targets_cover_the_prompt_once_even_with_its_prefix_cached() -> None:
    engine = StubEngine(counting, max_num_batched_tokens=5)
    prompt = list(range(12))
    engine.add("warm", prompt, max_tokens=1)
    engine.run(1)
    first = len(engine.executor.plans)
    engine.add("a", prompt, max_tokens=3, prompt_logprobs=0)
    engine.run(2)
    targets = [row.targets for plan in engine.executor.plans[first:] for row in plan.rows]
    assert targets == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [11], [], []]


def test_penalties_are_given_the_tokens_that_the_cache_skipped() -> None:
    engine = StubEngine(counting)
    prompt = list(range(10))
    engine.add("warm", prompt, max_tokens=1)
    engine.run(1)
    engine.add("a", prompt, max_tokens=1, presence_penalty=1.0)
    engine.run(2)
    [new] = engine.executor.plans[-1].added
    assert (new.history, new.num_prompt) == (prompt[:8], 10)


def test_prompt_logprobs_come_even_if_there_is_no_first_token() -> None:
    engine = StubEngine(counting)
    engine.add(
        "a",
        [1, 2, 3],
        prompt_logprobs=0,
        constraint=Choice(("AB",)),
        allowed_token_ids=(5,),
    )
    engine.run(1)
    [end] = engine.reported["a"]
    assert end.finish is FinishReason.DEAD_END
    assert len(end.prompt_logprobs) == 3


def test_a_constraint_whose_masks_take_too_long_ends_alone() -> None:
    engine = StubEngine(counting)
    fill = engine.backend.fill

    def slow(matchers: list[Matcher], words: bitmask.Words, rows: list[int]) -> None:
        if any("SLOW" in options for one in matchers for options in one._left[0]):  # type: ignore[attr-defined]
            raise TooSlow("the constraint is too ambiguous: it took 2 s")
        fill(matchers, words, rows)

    engine.backend.fill = slow  # type: ignore[method-assign, assignment]
    engine.add("slow", [1], constraint=Choice(("SLOW", "SLOPE")), max_tokens=9)
    engine.add("quick", [1], constraint=Choice(("QUICK", "QUEEN")), max_tokens=9)
    engine.run(2)
    error = engine.ends["slow"].error
    assert error is not None
    assert (error.kind, error.field) == ("ConstraintTooLarge", "input.constraint")
    assert "too ambiguous" in error.message
    assert engine.ends["quick"].finish is FinishReason.CONSTRAINT_COMPLETE
    engine.assert_clean()


def test_a_step_leaves_time_for_other_work_once_the_device_is_busy() -> None:
    engine = StubEngine(lambda tokens: 1)
    engine.add("r", [1, 2], max_tokens=1)
    order: list[str] = []
    engine.executor.on_forward = lambda plan: order.append("forward")
    (output,) = engine.core.step(meanwhile=lambda: order.append("meanwhile"))
    assert order == ["forward", "meanwhile"]
    assert output.finish is not None


def test_a_step_leaves_time_for_other_work_before_it_waits() -> None:
    engine = StubEngine(lambda tokens: 1)
    engine.core.step(meanwhile=lambda: engine.add("r", [1, 2], max_tokens=1))
    (output,) = engine.core.step()
    assert output.id == "r"
