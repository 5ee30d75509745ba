"""Guessing changes neither a draw nor the distribution of draws; here it can be computed exactly.

The logits are scripted, and go through the real sampler.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from stub_engine import EOS, VOCAB, StubEngine, StubExecutor
from text_engine import VOCABULARY, ids, text_of

from structgen.constraints import Choice
from structgen.engine.drafts import usual
from structgen.engine.request import Request
from structgen.grammar.choosing import Backends
from structgen.model.rows import Int64, RequestRows
from structgen.model.sampling.sampler import sample
from structgen.params import JumpForward
from structgen.plan import RowOutput, StepOutput, StepPlan, TokenBitmask

Answer = tuple[int, ...]

DRAWS, SAMPLES = 1_500, 10  # answers, and answers of a request
TEMPERATURE = 0.8
PROMPT = ids("ab1ab2ab1ab")
OPTIONS = ("abcabcab", "abcabcba", "abcab1", "bcabcab")
FREE = ids("ab1c")  # what an answer without a constraint is made of
LENGTH = 4


def logits_behind(token: int) -> list[float]:
    """A "model" that looks at one token; where it is free, it says little but FREE."""
    scores = [math.sin(1.7 * token + 2.3 * other) for other in range(VOCAB)]
    return [score if other in FREE else score - 40 for other, score in enumerate(scores)]


def logits_under_choice(token: int) -> list[float]:
    return [2 * math.sin(1.7 * token + 2.3 * other) for other in range(VOCAB)]


class Guesser:
    """Guesses that an option, or anything of FREE, comes next: often wrong, and often right."""

    def __init__(self) -> None:
        self._rng = random.Random(0)

    def propose(self, request: Request, limit: int) -> tuple[int, list[int]]:
        if request.matcher is None:
            return 9, self._rng.choices(FREE, k=limit)
        text = text_of(request.tokens[request.num_prompt :])
        rests = [option.removeprefix(text) for option in OPTIONS if option.startswith(text)]
        return 9, ids(self._rng.choice(rests))[:limit]

    def learn(self, request: Request) -> None:
        pass


class SamplingExecutor(StubExecutor):
    """Samples scripted logits as the model's are sampled."""

    def __init__(self, logits: Callable[[int], list[float]], block_size: int) -> None:
        super().__init__(lambda tokens: 0, block_size)
        self._logits = torch.tensor([logits(token) for token in range(VOCAB)])
        self._rows = RequestRows(max_blocks=64)
        self._slots: Int64 = np.zeros(0, np.int64)

    def execute_model(self, plan: StepPlan, when_done: Callable[[], None] | None = None) -> None:
        super().execute_model(plan, when_done)
        self._slots = self._rows.apply(plan)

    def sample_tokens(self, mask: TokenBitmask) -> StepOutput:
        plan = self.plans[-1]
        places = [place for row in plan.rows for place in self._places(row.id, row.num_logits)]
        counts = [row.num_logits for row in plan.rows]
        behind = torch.tensor([token for token, _ in places], dtype=torch.long)
        positions = np.array([position for _, position in places], np.int64)
        slots = np.repeat(self._slots, counts)
        drawn = iter(sample(self._logits[behind], mask, self._rows, slots, positions))
        return StepOutput(
            [
                RowOutput([token for _ in range(count) for token in next(drawn).token_ids])
                for count in counts
            ]
        )

    def _places(self, request_id: str, count: int) -> Iterator[tuple[int, int]]:
        """Yield the tokens that are sampled behind, and where."""
        tokens = self.tokens[request_id]
        for length in range(len(tokens) - count + 1, len(tokens) + 1):
            yield tokens[length - 1], length


def draws(logits: Callable[[int], list[float]], *, drafts: bool, **params: object) -> list[Answer]:
    """Return DRAWS answers; asserts that some were guessed right, and some wrong, if any were."""
    engine = StubEngine(
        lambda tokens: 0,
        jump=True,
        drafts=drafts,
        drafters=[*usual(), Guesser()],
        backends=Backends(VOCABULARY),
        executor=SamplingExecutor(logits, 4),
        max_num_seqs=SAMPLES,
        max_num_batched_tokens=1024,
        num_blocks=1024,
        check=False,
    )
    guessed = wrong = 0
    for number in range(DRAWS // SAMPLES):
        options: dict[str, object] = {"seed": number, "n": SAMPLES, "close_within_budget": False}
        engine.add(f"{number}", PROMPT, temperature=TEMPERATURE, **options, **params)
        engine.run((number + 1) * SAMPLES)
    for end in engine.ends.values():
        assert end.error is None
        if end.stats is not None:
            guessed += end.stats.accepted_tokens
            wrong += end.stats.drafted_tokens - end.stats.accepted_tokens
    guesses = drafts or params.get("jump_forward") is JumpForward.DRAFT
    assert (guessed > DRAWS / 20) is guesses, guessed
    assert (wrong > DRAWS / 20) is guesses, wrong
    samples = itertools.product(range(DRAWS // SAMPLES), range(SAMPLES))
    names = (f"{number}/{index}" if index else f"{number}" for number, index in samples)
    return [tuple(engine.tokens[name]) for name in names]


def probabilities(
    logits: Callable[[int], list[float]],
    may_follow: Callable[[Answer], Sequence[int]],
    answer: Answer = (),
) -> Iterator[tuple[Answer, float]]:
    """Yield every answer that begins so, and how probable it is."""
    allowed = may_follow(answer)
    if not allowed:
        yield answer, 1.0
        return
    row = logits(answer[-1] if answer else PROMPT[-1])
    weights = {token: math.exp(row[token] / TEMPERATURE) for token in allowed}
    total = sum(weights.values())
    for token, weight in weights.items():
        for longer, share in probabilities(logits, may_follow, (*answer, token)):
            yield longer, share * weight / total


def any_spelling(answer: Answer) -> list[int]:
    """Return the tokens that go on with an option, however its text is divided."""
    text = b"".join([VOCABULARY.token_bytes[token] for token in answer])
    rests = [o.encode()[len(text) :] for o in OPTIONS if o.encode().startswith(text)]
    return [
        token
        for token, piece in enumerate(VOCABULARY.token_bytes)
        if piece and any(rest.startswith(piece) for rest in rests)
    ]


def assert_drawn_from(answers: Iterable[Answer], expected: dict[Answer, float]) -> None:
    """By chi-square: the rare answers are taken together."""
    counts = Counter(answers)
    assert set(counts) <= set(expected)
    common = [answer for answer, share in expected.items() if share * DRAWS >= 5]
    cells = [(counts[answer], expected[answer] * DRAWS) for answer in common]
    cells.append((DRAWS - sum(n for n, _ in cells), DRAWS - sum(e for _, e in cells) + 1e-9))
    statistic = sum((n - e) ** 2 / e for n, e in cells if e > 1)
    freedom = len(common) - 1
    assert freedom >= 5
    assert statistic < freedom + 4 * math.sqrt(2 * freedom), f"{statistic} for {freedom}"


@cache
def reference_draws() -> list[Answer]:
    off = JumpForward.OFF
    return draws(logits_under_choice, drafts=False, jump_forward=off, constraint=Choice(OPTIONS))


def free(answer: Answer) -> list[int]:
    return FREE if len(answer) < LENGTH else []


def test_without_a_constraint_guessing_changes_no_draw_and_all_are_as_probable_as_they_are() -> (
    None
):
    options: dict[str, object] = {"max_tokens": LENGTH, "ignore_eos": True}
    plain = draws(logits_behind, drafts=False, **options)
    assert draws(logits_behind, drafts=True, **options) == plain
    assert_drawn_from(plain, dict(probabilities(logits_behind, free)))


@pytest.mark.parametrize("jump", [JumpForward.OFF, JumpForward.DRAFT])
@pytest.mark.parametrize("drafts", [False, True])
def test_guessing_under_a_constraint_changes_no_draw_and_all_are_as_probable_as_they_are(
    jump: JumpForward, drafts: bool
) -> None:
    """Unlike appended text, guessed text may be spelt as the model likes."""
    drawn = draws(logits_under_choice, drafts=drafts, jump_forward=jump, constraint=Choice(OPTIONS))
    assert_drawn_from(drawn, dict(probabilities(logits_under_choice, any_spelling)))
    assert drawn == reference_draws()
    assert EOS not in {token for answer in drawn for token in answer}
