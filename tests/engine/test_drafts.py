"""Guesses are verified: they change what a forward computes, never what is answered."""

import random
from collections.abc import Callable
from itertools import pairwise, takewhile

import pytest
from stub_engine import EOS, StubEngine
from text_engine import OBJECT, TEXTS, TextEngine, text_of
from text_engine import ids as text_ids

from structgen.constraints import Backend, Choice, JsonSchema
from structgen.engine.confidence import (
    MAX_DRAFTS,
    MAX_FRUITLESS,
    MAX_REST,
    PROBE_EVERY,
    Confidence,
)
from structgen.engine.drafts import usual
from structgen.engine.ngrams import BORDER, LONGEST, MAX_LOOKS, SHORTEST, Ngrams
from structgen.engine.request import Request
from structgen.engine.step_cost import StepCost
from structgen.messages import Abort, EngineOutput, FinishReason
from structgen.params import JumpForward

PERIOD = 5


def periodic(tokens: list[int]) -> int:
    """A "model" that says the same again, but for a slip now and then."""
    slip = len(tokens) % 23 == 0
    return (tokens[-PERIOD] + slip) % 60 if len(tokens) >= PERIOD else 7


def wordy(tokens: list[int]) -> int:
    """A "model" whose next token depends on the last three."""
    return (3 * tokens[-1] + sum(tokens[-3:]) % 5) % 60


class Fixed:
    """Guesses that the answer is this text, which may go on behind its end."""

    def __init__(self, answer: list[int]) -> None:
        self._answer = answer

    def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
        return 9, self._answer[request.num_output :][:limit]

    def learn(self, request: Request) -> None:
        pass


def saying(answer: list[int]) -> Callable[[list[int]], int]:
    """A "model" that answers so, to prompts of one token."""
    return lambda tokens: answer[len(tokens) - 1] if len(tokens) <= len(answer) else EOS


def alone(script, prompt: list[int], **params: object) -> list[int]:  # type: ignore[no-untyped-def]
    engine = StubEngine(script, drafts=False)
    engine.add("alone", prompt, **params)
    engine.run(1)
    return engine.tokens["alone"]


def ids(text: str) -> list[int]:
    return [ord(c) - 32 for c in text]


def test_a_model_that_repeats_itself_takes_fewer_forwards() -> None:
    engine = StubEngine(periodic)
    prompt = [1, 2, 3, 4, 5, 1, 2, 3]
    engine.add("a", prompt, max_tokens=50)
    engine.run(1)
    assert engine.tokens["a"] == alone(periodic, prompt, max_tokens=50)
    stats = engine.ends["a"].stats
    assert stats is not None
    assert stats.forwards < 25
    assert 0 < stats.accepted_tokens <= stats.drafted_tokens
    assert stats.forwards + stats.accepted_tokens == 50
    engine.assert_clean()


@pytest.mark.parametrize("limit", range(1, 30))
def test_no_limit_is_overrun(limit: int) -> None:
    engine = StubEngine(periodic)
    engine.add("a", [1, 2, 3, 4, 5, 1, 2, 3], max_tokens=limit)
    engine.run(1)
    assert engine.tokens["a"] == alone(periodic, [1, 2, 3, 4, 5, 1, 2, 3], max_tokens=limit)
    assert engine.ends["a"].finish is FinishReason.MAX_TOKENS
    engine.assert_clean()


@pytest.mark.parametrize("end", [EOS, 9])
def test_an_end_among_the_drafts_ends_exactly_there(end: int) -> None:
    """B10.7: whatever the drafts are there."""

    def script(tokens: list[int]) -> int:
        return end if len(tokens) == 21 else periodic(tokens)

    engine = StubEngine(script)
    engine.add("a", [1, 2, 3, 4, 5, 1, 2, 3], stop_token_ids=(9,))
    engine.run(1)
    assert engine.tokens["a"] == alone(script, [1, 2, 3, 4, 5, 1, 2, 3], stop_token_ids=(9,))
    assert (engine.ends["a"].finish, engine.ends["a"].stop_id) == (FinishReason.STOP, end)
    engine.assert_clean()


def test_earlier_answers_under_a_constraint_are_guessed_from() -> None:
    engine = StubEngine(lambda tokens: EOS - 1)
    texts = ("A-LONG-SKELETON-1-WITH-MORE", "A-SHORT-SKELETON-1-WITH-MORE")
    for name in ("a", "b"):
        engine.add(name, [1], constraint=Choice(texts))
        engine.run(1 if name == "a" else 2)
    assert engine.tokens["a"] == engine.tokens["b"] == ids(texts[0])
    first, second = engine.ends["a"].stats, engine.ends["b"].stats
    assert first is not None
    assert second is not None
    assert second.forwards < first.forwards
    assert second.accepted_tokens > 5


@pytest.mark.parametrize(
    "options",
    [
        {"frequency_penalty": 0.5},
        {"allowed_token_ids": tuple(range(60))},
        {"min_tokens": 20, "max_tokens": 20},
    ],
)
def test_what_depends_on_the_tokens_before_is_not_guessed_ahead(options: dict[str, object]) -> None:
    engine = StubEngine(periodic)
    engine.add("a", [1, 2, 3, 4, 5, 1, 2, 3], **{"max_tokens": 20} | options)
    engine.run(1)
    stats = engine.ends["a"].stats
    assert stats is not None
    assert stats.drafted_tokens == 0


def test_drafts_take_no_block_from_anyone() -> None:
    engine = StubEngine(periodic, num_blocks=8, block_size=4, context_length=32)
    for name in ("a", "b"):
        engine.add(name, [1, 2, 3, 4, 5, 1, 2, 3], max_tokens=8)
    engine.run(2)
    for name in ("a", "b"):
        assert engine.tokens[name] == alone(periodic, [1, 2, 3, 4, 5, 1, 2, 3], max_tokens=8)
        stats = engine.ends[name].stats
        assert stats is not None
        assert stats.preemptions == 0


@pytest.mark.parametrize("seed", range(6))
def test_drafting_changes_no_answer_whatever_happens_beside(seed: int) -> None:
    rng = random.Random(seed)
    script = rng.choice([periodic, wordy])
    engine = StubEngine(
        script,
        jump=rng.random() < 0.5,
        num_blocks=rng.choice([18, 30]),
        max_num_seqs=6,
        max_num_batched_tokens=rng.choice([3, 9, 40]),
    )
    added: dict[str, tuple[list[int], dict[str, object]]] = {}
    for event in range(500):
        if rng.random() < 0.3:
            name = f"r{event}"
            prompt = [rng.randrange(4) for _ in range(rng.randint(1, 24))]
            params: dict[str, object] = {"max_tokens": rng.randint(3, 30)}
            if rng.random() < 0.4:
                options = ["AB", "ABCDEFG", "ABCDXYZ", "HIJKLM", "HIJ", "ABABABABABX", "ABABABABY"]
                params["constraint"] = Choice(tuple(rng.sample(options, 4)))
                params["jump_forward"] = rng.choice(list(JumpForward))
            if rng.random() < 0.2:
                params["n"] = 2
            engine.add(name, prompt, priority=rng.randrange(2), **params)
            added[name] = prompt, params
        if rng.random() < 0.1 and added:
            name = rng.choice(list(added))
            engine.inbox.put(Abort([name]))
            added.pop(name)
        if set(added) - set(engine.ends):  # with nothing open, a step would wait for ever
            engine.step()
    for _ in range(2000):
        if all(name in engine.ends for name in added) and not len(engine.core.scheduler):
            break
        engine.step()
    for name, (prompt, params) in added.items():
        if engine.ends[name].error is None:
            reference = alone(script, prompt, **params | {"n": 1, "jump_forward": JumpForward.OFF})
            assert engine.tokens[name] == reference, (name, params, engine.ends[name], prompt)
    engine.assert_clean()


def test_what_followed_is_found_by_the_longest_match() -> None:
    ngrams = Ngrams()
    ngrams.extend([1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3])
    assert ngrams.following([5, 2, 3], 4) == (2, [7, 1, 2, 3])
    assert ngrams.following([0, 1, 2, 3], 2) == (3, [9, 8])
    assert ngrams.following([3, 2], 2) == (0, [])
    assert ngrams.following([1], 2) == (0, [])
    ngrams.extend([BORDER, 5])
    assert ngrams.following([2, 3], 2) == (2, [])


class Searched:
    """What `Ngrams` says, by looking through the whole text."""

    def __init__(self) -> None:
        self.text: list[int] = []

    def following(self, past: list[int], limit: int) -> tuple[int, list[int]]:
        for size in range(min(LONGEST, len(past)), SHORTEST - 1, -1):
            for place in range(len(self.text) - 1, size - 1, -1):
                if self.text[place - size : place] == past[-size:]:
                    follows = self.text[place : place + limit]
                    return size, [*takewhile(lambda token: token != BORDER, follows)]
        return 0, []


@pytest.mark.parametrize("seed", range(20))
def test_ngrams_find_what_a_search_of_the_text_finds(seed: int) -> None:
    rng = random.Random(seed)
    ngrams, searched = Ngrams(), Searched()
    num_words = rng.choice([3, 5, 20])
    while len(searched.text) < 3 * MAX_LOOKS:  # of more places, only the last are looked at
        text = [rng.randrange(num_words) for _ in range(rng.randrange(12))]
        text += [BORDER] * rng.randrange(2)
        ngrams.extend(text)
        searched.text += text
        past = [rng.randrange(num_words) for _ in range(rng.randrange(7))]
        limit = rng.randint(1, 5)
        assert ngrams.following(past, limit) == searched.following(past, limit)


def drafted(confidence: Confidence, cost: float) -> int:
    """How many tokens are drafted where a guess is found."""
    if confidence.rests() or not confidence.wants_look(cost):
        return 0
    confidence.looked(found=True)
    return confidence.length(cost)


def test_guesses_that_fail_are_given_up_and_tried_again() -> None:
    confidence = Confidence()
    assert drafted(confidence, 0.1) > 1
    for _ in range(12):
        confidence.judged(4, 0)
    for _ in range(PROBE_EVERY):
        assert drafted(confidence, 0.6) == 0
    assert drafted(confidence, 0.6) == 1
    for _ in range(12):
        confidence.judged(4, 4)
    assert 4 < drafted(confidence, 0.6) <= MAX_DRAFTS


def test_where_no_guess_is_found_for_long_only_some_tokens_are_looked_at() -> None:
    confidence = Confidence()
    looks = 0
    for _ in range(400):
        if not confidence.rests() and confidence.wants_look(0.1):
            confidence.looked(found=False)
            looks += 1
    assert 400 / MAX_REST < looks - MAX_FRUITLESS < 60
    found_at = next(token for token in range(100) if drafted(confidence, 0.1))
    assert found_at <= MAX_REST
    assert all(drafted(confidence, 0.1) for _ in range(10))


def test_what_a_draft_costs_is_learnt_from_the_steps() -> None:
    """Where reading the weights is all of a step, as on a GPU, a token more costs next to nothing;
    where each row takes as long as the last, it costs nearly as much as it saves."""
    for start_s, token_s in ((10e-3, 0.01e-3), (5e-3, 0.5e-3), (0.1e-3, 1e-3)):
        cost = StepCost()
        for step in range(200):
            drafts = (0, 5, 14)[step % 3]
            cost.took([1 + drafts, *[1] * 15], start_s + token_s * (16 + drafts))
            cost.took([300, *[1] * 15], start_s + token_s * 100)  # a prompt's tokens are cheap
        expected = token_s / (start_s / 16 + token_s)
        assert cost.of_draft(16) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_what_little_is_known_of_is_not_taken_to_be_cheap(seed: int) -> None:
    """Few steps have guesses, and all take now more, now less."""
    cost, noise = StepCost(), random.Random(seed)
    for step in range(200):
        drafts = 14 if step % 20 == 0 else 0
        cost.took([1 + drafts, *[1] * 15], 20e-3 * noise.uniform(0.5, 1.5))
    assert cost.of_draft(16) > 0.1


def test_guesses_that_go_on_failing_are_tried_less_and_less() -> None:
    confidence = Confidence()
    tried_at = []
    for token in range(1000):
        num_drafts = drafted(confidence, 0.6)
        if num_drafts and token > 20:
            tried_at.append(token)
        confidence.judged(num_drafts, 0)
    gaps = [second - first for first, second in pairwise(tried_at)]
    assert gaps == sorted(gaps)
    assert PROBE_EVERY < gaps[0] < gaps[-1] < 1000 / 4


def test_before_anything_is_learnt_drafts_cost_more_beside_many_rows() -> None:
    cost = StepCost()
    for _ in range(50):
        cost.took([1] * 4, 10e-3)  # all alike: they tell nothing of one token more
    costs = [cost.of_draft(num_rows) for num_rows in (1, 8, 32, 256)]
    assert costs == sorted(costs)
    assert 0.05 < costs[0] < 0.1
    assert 0.5 < costs[2] < costs[3] < 0.7


def test_steps_that_take_no_time_do_no_harm() -> None:
    cost = StepCost()
    for step in range(100):
        cost.took([1, 1 + step % 7], 0.0)
    assert 0 <= cost.of_draft(2) < 1


@pytest.mark.parametrize("end", [EOS, 9])
def test_a_draft_that_is_an_end_is_taken_for_one(end: int) -> None:
    """B10.7: the second of four drafts ends the answer, and was guessed."""
    answer = [20, 21, 22, end, 23, 24]
    engine = StubEngine(saying(answer), drafters=[Fixed(answer)])
    engine.add("a", [1], max_tokens=20, stop_token_ids=(9,))
    engine.run(1)
    assert (engine.tokens["a"], engine.ends["a"].stop_id) == (answer[:3], end)
    assert engine.ends["a"].stats.accepted_tokens == 2  # type: ignore[union-attr]
    engine.assert_clean()


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_string_inside_accepted_drafts_ends_exactly_there(include_stop: bool) -> None:
    """B10.7: it begins in one draft and ends in the next, and more are right behind it."""
    answer = text_ids("abc12bc") + text_ids("na") + text_ids("list abc")
    engine = TextEngine(saying(answer), drafters=[Fixed(answer)])
    engine.add("a", [1], max_tokens=20, stop=("cna",), include_stop=include_stop)
    steps: list[list[EngineOutput]] = []
    while len(engine.processor):
        steps.append(engine.step())
    engine.settle()
    texts = [text_of(output.new_ids) for outputs in steps for output in outputs]
    assert any("bcnal" in text for text in texts), "it was not in the middle of a step"
    got = engine.answers["a"]
    assert got.text == ("abc12bcna" if include_stop else "abc12b")
    assert text_of(got.token_ids) == "abc12bcna"
    assert got.finish is not None
    assert got.finish.reason is FinishReason.STOP_STRING
    engine.assert_clean()


def test_guesses_that_a_schema_forbids_are_cut_and_no_request_fails_for_them() -> None:
    """B10.2: 32 at once, whose prompts go on otherwise than their schema does."""
    rng = random.Random(0)

    def copying(tokens: list[int]) -> int:
        seen = Ngrams()
        seen.extend(tokens)
        return next(iter(seen.following(tokens, 1)[1]), rng.randrange(EOS))

    proposed = 0

    class Counting(Fixed):
        def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
            nonlocal proposed
            match, guesses = drafters[0].propose(request, limit)
            proposed += len(guesses)
            return match, guesses

    drafters = usual()
    schema = JsonSchema.of(OBJECT)
    engine = TextEngine(
        copying, drafters=[Counting([])], num_blocks=600, context_length=128, max_num_seqs=32
    )
    engine.compile(schema)
    for number in range(32):
        garbage = [rng.randrange(len(TEXTS)) for _ in range(4)]
        prompt = [*text_ids('{"name": "ab'), *garbage, *text_ids('", "tag": '), *garbage]
        engine.add(
            f"r{number}", prompt, max_tokens=40, constraint=schema, jump_forward=JumpForward.OFF
        )
    engine.answer_all()
    drafted = sum(end.stats.drafted_tokens for end in engine.ends.values() if end.stats)
    assert 10 < drafted < proposed / 2
    assert not engine.failures
    assert {end.accepting for end in engine.ends.values()} == {True}
    engine.assert_clean()


@pytest.mark.parametrize("jump", JumpForward)
def test_a_constraint_that_begins_inside_accepted_drafts_sees_all_of_its_text(
    jump: JumpForward,
) -> None:
    """B10.3: the marker and what the constraint begins with are right guesses of one step."""
    answer = text_ids("ab </t>") + text_ids('{"name": "abc", "tag": 12}')
    schema = JsonSchema.of(OBJECT)
    engine = TextEngine(saying(answer), drafters=[Fixed(answer)])
    engine.compile(schema)
    engine.add("a", [1], constraint=schema, constraint_after="</t>", jump_forward=jump)
    steps = []
    while len(engine.processor):
        steps += [text_of(output.new_ids) for output in engine.step()]
    assert text_of(engine.tokens["a"]) == 'ab </t>{"name": "abc", "tag": 12}'
    assert engine.ends["a"].finish is FinishReason.CONSTRAINT_COMPLETE
    assert any(text.find(">{") > 0 for text in steps), "the gate was not passed within a step"
    assert engine.ends["a"].stats.accepted_tokens > 5  # type: ignore[union-attr]
    engine.assert_clean()


@pytest.mark.parametrize("backend", [Backend.LLGUIDANCE, Backend.XGRAMMAR, Backend.OUTLINES_CORE])
def test_guesses_that_go_on_behind_the_end_of_a_grammar_hurt_nothing(backend: Backend) -> None:
    """B10.8: one token to the end, the end of the answer, and another token."""
    choice = Choice(("abc1", "ba2"), backend=backend)
    answer = [*text_ids("abc"), *text_ids("1"), EOS, *text_ids("abc")]
    engine = TextEngine(saying(answer), drafters=[Fixed(answer)])
    engine.compile(choice)
    for name in ("a", "b"):
        engine.add(name, [1], constraint=choice, jump_forward=JumpForward.OFF)
    engine.answer_all()
    for name in ("a", "b"):
        assert text_of(engine.tokens[name]) == "abc1"
        assert engine.ends[name].finish is FinishReason.CONSTRAINT_COMPLETE
        assert engine.ends[name].stats.accepted_tokens == 1  # type: ignore[union-attr]
    engine.assert_clean()


def test_a_request_may_turn_guesses_off() -> None:
    engine = StubEngine(periodic)
    prompt = [1, 2, 3, 4, 5, 1, 2, 3]
    engine.add("a", prompt, max_tokens=50, drafts=False)
    engine.add("b", prompt, max_tokens=50)
    engine.run(2)
    assert engine.tokens["a"] == engine.tokens["b"]
    assert engine.ends["a"].stats.drafted_tokens == 0  # type: ignore[union-attr]
    assert engine.ends["b"].stats.accepted_tokens > 0  # type: ignore[union-attr]


def test_counters_are_up_to_date_wherever_a_stop_string_may_end_an_answer() -> None:
    """The engine does not know of that end, and says nothing at it."""
    answer = text_ids("abc12bcna") + text_ids("list abc")
    engine = TextEngine(saying(answer), drafters=[Fixed(answer)])
    engine.add("a", [1], max_tokens=20, stop=("cna",))
    outputs: list[EngineOutput] = []
    while len(engine.processor):
        outputs += engine.step()
    accepted = [output.stats.accepted_tokens for output in outputs if output.stats]
    assert len(accepted) == len(outputs)
    usage = engine.answers["a"].usage
    assert usage is not None
    assert usage.accepted_tokens == accepted[-1] > accepted[0]


@pytest.mark.parametrize("drafts", [False, True])
def test_where_a_stop_may_end_a_text_is_told_for_each_token_however_many_a_step_brings(
    drafts: bool,
) -> None:
    answer = ids("ABCDEFG")
    engine = StubEngine(saying(answer), drafts=drafts, drafters=[Fixed(answer)])
    options = ("AB", "ABCD", "ABCDEFG", "ABX", "ABCDX")
    engine.add("a", [1], constraint=Choice(options), stop=("#",), jump_forward=JumpForward.OFF)
    complete, told, longest = set(), 0, 0
    while "a" not in engine.ends:
        for output in engine.step():
            complete |= {told + count for count in output.complete_at}
            longest = max(longest, len(output.new_ids))
            told += len(output.new_ids)
            complete |= {told} if output.accepting else set()
    assert engine.tokens["a"] == answer
    assert complete == {2, 4, 7}
    assert (longest > 2) is drafts
