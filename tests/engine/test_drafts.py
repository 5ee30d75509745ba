"""Guesses are verified: they change what a forward computes, never what is answered."""

import random

import pytest
from stub_engine import EOS, StubEngine

from structgen.constraints import Choice
from structgen.engine.confidence import MAX_DRAFTS, PROBE_EVERY, Confidence
from structgen.engine.ngrams import BORDER, Ngrams
from structgen.messages import Abort, FinishReason
from structgen.params import JumpForward

PERIOD = 5


def periodic(tokens: list[int]) -> int:
    """A "model" that says the same again, but for a slip now and then."""
    slip = len(tokens) % 23 == 0
    return (tokens[-PERIOD] + slip) % 60 if len(tokens) >= PERIOD else 7


def wordy(tokens: list[int]) -> int:
    """A "model" whose next token depends on the last three."""
    return (3 * tokens[-1] + sum(tokens[-3:]) % 5) % 60


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


def test_guesses_that_fail_are_given_up_and_tried_again() -> None:
    confidence = Confidence()
    assert confidence.length(1) > 1
    for _ in range(12):
        confidence.judged(4, 0)
    assert confidence.length(32) == 0
    for _ in range(PROBE_EVERY):
        confidence.judged(0, 0)
    assert confidence.length(32) == 1
    for _ in range(12):
        confidence.judged(4, 4)
    assert 4 < confidence.length(32) <= MAX_DRAFTS
