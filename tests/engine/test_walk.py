"""A long random walk over all options at once: nothing breaks, and nobody's answer changes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from stub_engine import EOS, VOCAB
from text_engine import CONSTRAINTS, TEXTS, TextEngine, ids

from structgen.constraints import Constraint
from structgen.engine.drafts import usual
from structgen.engine.request import Request
from structgen.messages import EngineOutput, EngineRequest, FinishReason
from structgen.params import JumpForward

STEPS = 2_500  # of each walk
CROWD = 16  # callers at a time, at most
COMPARED = 20  # requests of each
# An end of the context takes longer answers; errors and aborts are no answers.
UNSEEN = {FinishReason.CONTEXT_LIMIT, FinishReason.ERROR, FinishReason.ABORTED}
PERIOD = 6

Options = dict[str, object]


def talkative(tokens: list[int]) -> int:
    """A "model" that repeats itself, with slips that depend on the last few tokens."""
    mixed = 31 * sum(tokens[-3:]) + 7 * len(tokens)
    if mixed % 7 == 0 or len(tokens) < PERIOD:
        return (mixed // 7) % VOCAB  # EOS is among them
    return tokens[-PERIOD]


class Wild:
    """Guesses anything: what the model will say, what it will not, what is illegal, the end."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
        future = list(request.tokens)
        guesses = []
        for _ in range(self._rng.randrange(limit + 1)):
            likely = talkative(future) if self._rng.random() < 0.8 else self._rng.randrange(VOCAB)
            guesses.append(likely)
            future.append(likely)
        return self._rng.randrange(6), guesses

    def learn(self, request: Request) -> None:
        pass


def some(rng: random.Random, choices: dict[str, object], share: float) -> Options:
    """Return some of these options."""
    return {name: value for name, value in choices.items() if rng.random() < share}


def random_options(rng: random.Random, constraints: Sequence[Constraint]) -> Options:
    max_tokens = rng.choice([2, 5, 12, 25, 40])
    options: Options = {"temperature": 0.0, "max_tokens": max_tokens}
    options |= some(
        rng,
        {
            "min_tokens": rng.randint(1, max_tokens),
            "n": rng.randint(2, 4),
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "logit_bias": ((3, 1.0),),
            "logprobs": rng.randrange(3),
            "prompt_logprobs": 1,
            "stop": tuple(rng.sample(["ab", "a1", '", "', "bc", "}"], 2)),
            "include_stop": rng.random() < 0.5,
            "stop_token_ids": tuple(rng.sample(range(VOCAB), 2)),
            "allowed_token_ids": tuple(rng.sample(range(VOCAB), 50)),
            "drafts": False,
        },
        0.12,
    )
    if rng.random() < 0.6:
        options["constraint"] = rng.choice(constraints)
        options["jump_forward"] = rng.choice(list(JumpForward))
        options |= some(rng, {"close_within_budget": False}, 0.6)
        options |= some(rng, {"constraint_after": "</t>"}, 0.15)
    elif rng.random() < 0.2:
        options["ignore_eos"] = True
    return options | some(rng, {"time_limit_s": 1e-9}, 0.03)


def random_prompt(rng: random.Random, beginnings: list[list[int]]) -> list[int]:
    """Return one that begins, or goes on, as others do."""
    beginning = rng.choice(beginnings)
    tail = rng.choice([[], ids('{"name": "ab", "tag": '), [rng.randrange(EOS)]])
    return beginning[: rng.randint(1, len(beginning))] + tail


@dataclass
class Walk:
    """A crowd of callers that come with anything, and leave at any moment."""

    engine: TextEngine
    rng: random.Random
    left: set[str] = field(default_factory=set)
    steps: int = 0

    def __post_init__(self) -> None:
        self._constraints = self.rng.sample(CONSTRAINTS, 8)  # as many as are kept compiled
        length = self.rng.randint(12, 20)
        self._beginnings = [
            [self.rng.randrange(len(TEXTS)) for _ in range(length)] for _ in range(4)
        ]

    def run(self) -> None:
        while self.steps < STEPS:
            if len(self.engine.processor) < self.rng.randrange(CROWD):
                self.arrive()
            if self.rng.random() < 0.04 and self.engine.requests:
                self.leave(self.rng.choice(list(self.engine.requests)))
            if len(self.engine.processor):  # with nobody there, a step would wait for ever
                self.look(self.engine.step())
                self.steps += 1
        self.engine.answer_all()
        self.engine.settle()

    def arrive(self) -> None:
        bad = [[self.rng.randrange(VOCAB)], ids("ab")] if self.rng.random() < 0.1 else []
        self.engine.add(
            f"r{len(self.engine.requests)}",
            random_prompt(self.rng, self._beginnings),
            priority=self.rng.randrange(2),
            bad=bad,
            **random_options(self.rng, self._constraints),
        )

    def leave(self, name: str) -> None:
        self.engine.abort(name)
        self.left.add(name)

    def look(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            if self.engine.requests[output.id].params.logprobs is not None:
                assert [one.token for one in output.logprobs] == output.new_ids


def names_of(request: EngineRequest) -> list[str]:
    others = [f"{request.id}/{index}" for index in range(1, request.params.n)]
    return [request.id, *others]


def outcome(engine: TextEngine, request_id: str, name: str) -> object:
    """Return what became of an answer, for comparison."""
    if request_id in engine.failures:
        return type(engine.failures[request_id])
    answer = engine.answers[name]
    assert answer.finish is not None
    return answer.token_ids, answer.text, answer.finish


def sampled_alone(reference: TextEngine, request: EngineRequest) -> object:
    """Return what becomes of a request with nobody beside it, if nothing is guessed."""
    changes: Options = {"n": 1, "drafts": False}
    if request.params.jump_forward is JumpForward.DRAFT or request.params.logprobs is not None:
        changes["jump_forward"] = JumpForward.OFF
    params = msgspec.structs.replace(request.params, **changes)  # type: ignore[arg-type]
    reference.send(msgspec.structs.replace(request, params=params))
    reference.answer_all()
    return outcome(reference, request.id, request.id)


WALKS: list[Options] = [
    {"num_blocks": 20, "max_num_batched_tokens": 7},
    {"num_blocks": 26, "max_num_batched_tokens": 40},
    {"num_blocks": 24, "max_num_batched_tokens": 16, "prefix_caching": False},
    {"num_blocks": 80, "max_num_batched_tokens": 64, "block_size": 1, "max_num_seqs": 16},
]


@pytest.mark.parametrize("seed", range(len(WALKS)))
def test_no_invariant_breaks_and_everyone_is_answered_once_and_alike(seed: int) -> None:
    """10 000 steps in all, each with `check`."""
    rng = random.Random(seed)
    engine = TextEngine(talkative, drafters=[*usual(), Wild(rng)], **WALKS[seed])
    walk = Walk(engine, rng)
    walk.run()
    engine.assert_clean()

    answers = engine.answers
    stayed = [one for name, one in engine.requests.items() if name not in walk.left]
    for request in stayed:
        if request.id not in engine.failures:
            assert set(names_of(request)) <= answers.keys()

    reference = TextEngine(talkative, drafts=False)
    timeless = [request for request in stayed if request.params.time_limit_s is None]
    for request in rng.sample(timeless, COMPARED):
        expected = sampled_alone(reference, request)
        for name in names_of(request):
            assert outcome(engine, request.id, name) == expected, request

    seen = {answer.finish.reason for answer in answers.values() if answer.finish is not None}
    assert seen >= {*FinishReason} - UNSEEN
    stats = [end.stats for end in engine.ends.values() if end.stats is not None]
    assert sum(one.accepted_tokens for one in stats) > 100
    assert sum(one.drafted_tokens - one.accepted_tokens for one in stats) > 100
    assert sum(one.forced_tokens for one in stats) > 20
    assert sum(one.preemptions for one in stats) > 50
    assert sum(one.cached_tokens for one in stats) > 200
