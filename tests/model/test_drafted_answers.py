"""Guesses change no answer of a real model, however the scheduler cuts the work up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

import pytest
import torch
from test_equivalence import Engine

from structgen.messages import Abort, RequestStats

MODEL = "random:llama"
NUM_PROMPTS = 200
NEW_TOKENS = 24
LIKELY = tuple((token, 10.0) for token in range(40, 46))  # so that a model soon repeats itself

Options = dict[str, object]
Answers = list[list[int]]

# Each is greedy; what changes the logits must change them for guesses too.
SAMPLING: dict[str, Options] = {
    "nothing": {},
    "min_p": {"min_p": 0.1},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.5},
    "logit_bias": {"logit_bias": ((40, 9.0), (41, 9.5), (42, 8.0))},
    "min_tokens": {"min_tokens": 9, "ignore_eos": False, "stop_token_ids": (40,)},
    "repetition_penalty": {"repetition_penalty": 1.05},
    "presence_penalty": {"presence_penalty": 0.1},
    "frequency_penalty": {"frequency_penalty": 0.02},
    "allowed_token_ids": {"allowed_token_ids": (40, 42, 50)},
    "bad_token_ids": {"bad_token_ids": (40, 43)},
    "logprobs": {"logprobs": 2},
}
UNGUESSED = {"repetition_penalty", "presence_penalty", "frequency_penalty", "allowed_token_ids"}
TROUBLES: dict[str, Options] = {
    "chunked": {"max_num_batched_tokens": 19},
    "preempted": {"num_blocks": 16},
    "one by one": {"max_num_seqs": 1},
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@cache
def engine(**options: object) -> Engine:
    """Of few rows at a time: with many, guesses are hardly worth their cost."""
    return Engine(MODEL, **{"max_num_seqs": 8} | options)


@cache
def prompts(vocab_size: int) -> list[list[int]]:
    """Return prompts that repeat themselves, many with a beginning that others have."""
    rng = random.Random(0)
    beginnings = [[rng.randrange(vocab_size) for _ in range(20)] for _ in range(8)]
    result = []
    for _ in range(NUM_PROMPTS):
        phrase = [rng.randrange(vocab_size) for _ in range(rng.randint(2, 6))]
        beginning = rng.choice(beginnings)[: rng.choice([0, 7, 20])]
        result.append(beginning + phrase * rng.randint(2, 3))
    return result


def answers(ours: Engine, asked: list[list[int]], **params: object) -> Answers:
    """Answer in a crowd of which some leave."""

    def arrive() -> Iterator[None]:
        for index, prompt in enumerate(asked):
            ours.send(
                f"r{index}", prompt, **{"max_tokens": NEW_TOKENS, "logit_bias": LIKELY} | params
            )
            if index % 8 == 7:
                ours.send(f"gone{index}", prompt, max_tokens=100)
                yield
                ours.client.send(Abort([f"gone{index}"]))

    tokens = ours.run(len(asked), arrive())
    return [tokens[f"r{index}"] for index in range(len(asked))]


def stats(ours: Engine) -> list[RequestStats]:
    return [end.stats for end in ours.ends.values() if end.stats is not None]


@cache
def without_drafts() -> Answers:
    ours = engine(drafts=False)
    found = answers(ours, prompts(ours.client.model.vocab_size))
    assert not any(one.drafted_tokens for one in stats(ours))
    return found


@pytest.mark.parametrize("trouble", TROUBLES)
def test_200_prompts_are_answered_alike_with_guesses_and_without(trouble: str) -> None:
    ours = engine(**TROUBLES[trouble])
    assert answers(ours, prompts(ours.client.model.vocab_size)) == without_drafts()
    assert sum(one.accepted_tokens for one in stats(ours)) > 20
    assert sum(one.cached_tokens for one in stats(ours)) > 100
    if trouble == "preempted":
        assert sum(one.preemptions for one in stats(ours)) > 0


@pytest.mark.parametrize("name", SAMPLING)
def test_no_sampling_option_is_lost_on_a_guess(name: str) -> None:
    """B10.6."""
    ours = engine()
    asked = prompts(ours.client.model.vocab_size)[:24]
    options: Options = {"max_tokens": 40} | SAMPLING[name]
    guessed = answers(ours, asked, **options)
    accepted = sum(one.accepted_tokens for one in stats(ours))
    assert (accepted > 0) is (name not in UNGUESSED)
    assert guessed == answers(ours, asked, drafts=False, **options)
