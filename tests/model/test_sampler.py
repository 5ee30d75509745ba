"""The sampler against transformers' processors, and its draws against exact distributions."""

import math

import numpy as np
import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from structgen.grammar import bitmask
from structgen.model.rows import RequestRows
from structgen.model.sampling import topk
from structgen.model.sampling.logits import apply_bitmask
from structgen.model.sampling.sampler import sample
from structgen.params import SamplingParams
from structgen.plan import NewRow, PlanRow, StepPlan, TokenBitmask

NO_MASK = TokenBitmask(np.zeros((0, 0), np.int32), np.zeros(0, np.int32))


def rows_of(
    params: list[SamplingParams], seeds: list[int] | None = None, history: list[int] | None = None
) -> tuple[RequestRows, np.ndarray]:
    rows = RequestRows(max_blocks=1, slots=2)
    seeds = seeds or list(range(len(params)))
    names = [f"r{i}" for i in range(len(params))]
    added = [NewRow(n, p, s, 0, 1) for n, p, s in zip(names, params, seeds, strict=True)]
    plan = [PlanRow(n, 0, history or [0], [0], 1) for n in names]
    return rows, rows.apply(StepPlan(1, added, plan, []))


def tokens_of(logits: torch.Tensor, params: list[SamplingParams], **kwargs: object) -> list[int]:
    rows, slots = rows_of(params, kwargs.get("seeds"))  # type: ignore[arg-type]
    positions = kwargs.get("positions", np.full(len(params), 5))
    outputs = sample(logits.clone(), NO_MASK, rows, slots, positions)  # type: ignore[arg-type]
    return [output.token_ids[0] for output in outputs]


def kept(threshold: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return (logits >= threshold) & (logits > -torch.inf)


@pytest.fixture
def logits() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return 3 * torch.randn(6, 3000, generator=generator)


@pytest.mark.parametrize("k", [1, 2, 50, 2999])
def test_top_k_keeps_what_transformers_keeps(logits: torch.Tensor, k: int) -> None:
    ours = kept(topk.top_k_threshold(logits, torch.full((6,), k)), logits)
    assert torch.equal(ours, TopKLogitsWarper(k)(None, logits.clone()) > -torch.inf)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.02, 1.0])  # flat: the nucleus outgrows the first guess
def test_top_p_keeps_what_transformers_keeps(logits: torch.Tensor, p: float, scale: float) -> None:
    logits = logits * scale
    ours = kept(topk.top_p_threshold(logits, torch.full((6,), p)), logits)
    assert torch.equal(ours, TopPLogitsWarper(p)(None, logits.clone()) > -torch.inf)


@pytest.mark.parametrize("p", [0.001, 0.1, 1.0])
def test_min_p_keeps_what_transformers_keeps(logits: torch.Tensor, p: float) -> None:
    ours = kept(topk.min_p_threshold(logits, torch.full((6,), p)), logits)
    assert torch.equal(ours, MinPLogitsWarper(p)(None, logits.clone()) > -torch.inf)


def test_equal_logits_stay_or_go_together() -> None:
    tied = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]])
    assert kept(topk.top_k_threshold(tied, torch.tensor([2])), tied).sum() == 4
    assert kept(topk.top_p_threshold(tied, torch.tensor([0.7])), tied).sum() == 4


def test_a_filter_that_is_off_in_a_row_keeps_all_of_it(logits: torch.Tensor) -> None:
    off = torch.tensor([0, 5, 0, 10**9, 0, 1])
    assert kept(topk.top_k_threshold(logits, off), logits).sum(-1).tolist() == [
        3000,
        5,
        3000,
        3000,
        3000,
        1,
    ]
    p = torch.tensor([1.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    counts = kept(topk.top_p_threshold(logits, p), logits).sum(-1).tolist()
    assert counts[0] == 3000
    assert counts[1] < 3000


def test_greedy_rows_are_the_argmax_beside_random_rows(logits: torch.Tensor) -> None:
    params = [
        SamplingParams(temperature=0.0),
        SamplingParams(top_k=64),
        SamplingParams(temperature=1e-6),
        SamplingParams(top_p=0.5),
        SamplingParams(temperature=0.0, top_k=3, top_p=0.1),
        SamplingParams(min_p=0.1),
    ]
    tokens = tokens_of(logits, params)
    for row in (0, 2, 4):
        assert tokens[row] == int(logits[row].argmax())


def test_a_seeded_row_draws_the_same_alone_in_a_batch_and_at_another_index(
    logits: torch.Tensor,
) -> None:
    params = SamplingParams(temperature=0.9, top_k=200, top_p=0.95, min_p=0.001)
    alone = tokens_of(logits[:1], [params], seeds=[42])
    mate = SamplingParams(top_k=5)
    first = tokens_of(logits[:2], [params, mate], seeds=[42, 7])
    last = tokens_of(
        logits[[1, 2, 0]], [mate, SamplingParams(temperature=0), params], seeds=[7, 8, 42]
    )
    assert alone[0] == first[0] == last[2]


def test_noise_differs_by_seed_and_position(logits: torch.Tensor) -> None:
    flat = torch.zeros(1, 3000)
    params = [SamplingParams()]
    draws = {
        tokens_of(flat, params, seeds=[seed], positions=np.array([position]))[0]
        for seed in range(6)
        for position in range(6)
    }
    assert len(draws) > 30


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.5, top_k=7),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=0.9, repetition_penalty=1.8, frequency_penalty=0.3),
        SamplingParams(presence_penalty=0.9, logit_bias=((1, 1.5), (7, -2.0))),
        SamplingParams(
            temperature=1.3,
            top_k=12,
            top_p=0.9,
            min_p=0.02,
            repetition_penalty=1.4,
            frequency_penalty=0.2,
            presence_penalty=0.3,
            logit_bias=((4, 1.0),),
        ),
    ],
    ids=["plain", "cold", "top_k", "top_p", "min_p", "penalties", "bias", "all"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_draws_follow_the_exact_distribution(params: SamplingParams, masked: bool) -> None:
    """G-test of 40 000 draws against the processed distribution in float64."""
    draws, vocab = 40_000, 24
    logits = 2 * torch.randn(1, vocab, generator=torch.Generator().manual_seed(3))
    allowed = [t for t in range(vocab) if t % 3] if masked else list(range(vocab))
    words = bitmask.pack(allowed, vocab)
    reference = torch.full((1, vocab), -torch.inf, dtype=torch.float64)
    reference[0, allowed] = logits[0, allowed].double()
    _bias_and_penalise(reference[0], params)
    for warper in _warpers(params):
        reference = warper(None, reference)
    expected = reference.softmax(-1)[0]

    rows, slots = rows_of([params], [11], HISTORY)
    batch = logits.expand(draws, -1).clone()
    mask = TokenBitmask(np.tile(words, (draws, 1)), np.arange(draws, dtype=np.int32))
    outputs = sample(
        batch, mask if masked else NO_MASK, rows, slots.repeat(draws), np.arange(draws)
    )
    counts = torch.bincount(torch.tensor([o.token_ids[0] for o in outputs]), minlength=vocab)

    assert counts[expected == 0].sum() == 0
    seen = expected > 0
    ratio = counts[seen] / (draws * expected[seen])
    g = 2 * float(torch.special.xlogy(counts[seen], ratio).sum())
    degrees = int(seen.sum()) - 1
    # Wilson-Hilferty: the 1 - 1e-6 quantile of chi squared.
    quantile = degrees * (1 - 2 / (9 * degrees) + 4.75 * math.sqrt(2 / (9 * degrees))) ** 3
    assert g < quantile


HISTORY = [2, 4, 4, 9, 4]  # the first is the prompt


def _bias_and_penalise(reference: torch.Tensor, params: SamplingParams) -> None:
    for token, bias in params.logit_bias:
        reference[token] += bias
    for token in set(HISTORY):
        factor = params.repetition_penalty
        reference[token] *= 1 / factor if reference[token] > 0 else factor
        answered = HISTORY[1:].count(token)
        reference[token] -= params.frequency_penalty * answered
        reference[token] -= params.presence_penalty * (answered > 0)


def _warpers(params: SamplingParams) -> list[object]:
    warpers: list[object] = [TemperatureLogitsWarper(params.temperature)]
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    return warpers


@pytest.mark.parametrize("vocab", [31, 32, 33, 100])
def test_the_bitmask_bans_exactly_what_it_does_not_allow(vocab: int) -> None:
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    words = np.stack([bitmask.pack([0, vocab - 1], vocab), bitmask.pack(range(5), vocab)])
    apply_bitmask(logits, TokenBitmask(words, np.array([3, 1], np.int32)))
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert torch.isfinite(logits[3]).nonzero().flatten().tolist() == [0, vocab - 1]
    assert torch.isfinite(logits[1]).nonzero().flatten().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_not_finite_is_an_error_and_its_neighbours_are_not(
    logits: torch.Tensor, bad: float, temperature: float
) -> None:
    params = [SamplingParams(temperature=temperature, top_p=0.9)] * 6
    expected = tokens_of(logits, params)
    broken = logits.clone()
    broken[2, 17] = bad
    rows, slots = rows_of(params)
    outputs = sample(broken, NO_MASK, rows, slots, np.full(6, 5))
    assert outputs[2].error
    assert [o.token_ids for i, o in enumerate(outputs) if i != 2] == [
        [token] for i, token in enumerate(expected) if i != 2
    ]


def by_definition(logits: torch.Tensor, mask: TokenBitmask) -> list[list[int]]:
    """Return the first of the largest allowed logits, by row; none where one is NaN or inf."""
    masked = logits.clone()
    apply_bitmask(masked, mask)
    best, tokens = masked.max(dim=-1).values, masked.numpy().argmax(axis=-1).tolist()
    finite = best.isfinite().tolist()
    return [[token] if good else [] for token, good in zip(tokens, finite, strict=True)]


@pytest.mark.parametrize("vocab", [32, 61, 3000])
@pytest.mark.parametrize("density", [0.002, 0.5, 0.99])
def test_greedy_rows_take_the_first_of_the_best_that_are_allowed(
    vocab: int, density: float
) -> None:
    rng = np.random.default_rng(vocab)
    bad = [float("nan"), float("inf"), -float("inf")]
    for _ in range(20):
        ties = rng.integers(0, 6, (9, vocab)).astype(np.float32)
        for row, value in enumerate(bad):
            ties[row, rng.integers(vocab)] = value
        ties[3] = -np.inf
        index = np.flatnonzero(rng.random(9) < 0.8).astype(np.int32)
        allowed = rng.random((len(index), vocab)) < density
        words = [bitmask.pack(np.flatnonzero(row), vocab) for row in allowed]
        mask = TokenBitmask(np.array(words, np.int32).reshape(len(index), -1), index)
        logits = torch.from_numpy(ties)
        rows, slots = rows_of([SamplingParams(temperature=0)] * 9)
        outputs = sample(logits.clone(), mask, rows, slots, np.full(9, 5))
        assert [output.token_ids for output in outputs] == by_definition(logits, mask)
        assert all(bool(output.error) != bool(output.token_ids) for output in outputs)


def test_what_is_best_does_not_depend_on_what_is_asked_of_other_rows(logits: torch.Tensor) -> None:
    words = np.stack([bitmask.pack(range(row, 3000, 7 + row), 3000) for row in range(5)])
    mask = TokenBitmask(words, np.arange(5, dtype=np.int32))
    greedy = SamplingParams(temperature=0)
    neighbours = [
        greedy,
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0, logit_bias=((3, 1.0),)),
        SamplingParams(temperature=0, presence_penalty=1.0),
        SamplingParams(temperature=0, constraint_mass=True, logprobs=0),
    ]
    for neighbour in neighbours:
        rows, slots = rows_of([greedy] * 5 + [neighbour])
        outputs = sample(logits.clone(), mask, rows, slots, np.full(6, 5))
        assert [output.token_ids for output in outputs[:5]] == by_definition(logits, mask)[:5]


def test_slots_are_reused_without_the_last_users_options() -> None:
    rows = RequestRows(max_blocks=4, slots=1)
    hot = NewRow("a", SamplingParams(top_k=3, top_p=0.5, min_p=0.1), seed=1)
    first = rows.apply(StepPlan(1, [hot], [PlanRow("a", 0, [1], [3, 2], 1)], []))
    cold = NewRow("b", SamplingParams(temperature=0), seed=2)
    second = rows.apply(StepPlan(2, [cold], [PlanRow("b", 0, [1], [1], 1)], ["a"]))
    assert first == second
    slot = second[0]
    assert rows.temperature[slot] == 0
    assert (rows.top_k[slot], rows.top_p[slot], rows.min_p[slot]) == (0, 1, 0)
    assert rows.block_table[slot, 0] == 1


def test_rows_grow_past_their_first_slots() -> None:
    rows = RequestRows(max_blocks=2, slots=2)
    names = [f"r{i}" for i in range(9)]
    added = [NewRow(n, SamplingParams(top_k=i + 1), seed=i) for i, n in enumerate(names)]
    plan = [PlanRow(n, 0, [1], [i], 1) for i, n in enumerate(names)]
    slots = rows.apply(StepPlan(1, added, plan, []))
    assert len(set(slots.tolist())) == 9
    assert rows.top_k[slots].tolist() == list(range(1, 10))
    assert rows.block_table[slots, 0].tolist() == list(range(9))


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_equals_transformers_on_prompt_and_answer(
    logits: torch.Tensor, penalty: float
) -> None:
    tokens = [[5, 17, 5, 2999], [1, 2, 3, 1], [0], [7] * 9, [11, 12], [2998]]
    expected = torch.stack(
        [
            RepetitionPenaltyLogitsProcessor(penalty)(
                torch.tensor([ids]), row.unsqueeze(0).clone()
            )[0]
            for ids, row in zip(tokens, logits, strict=True)
        ]
    )
    ours = penalised(logits, tokens, num_prompt=2, repetition_penalty=penalty)
    assert torch.equal(ours, expected)


def test_frequency_and_presence_count_answered_tokens_only(logits: torch.Tensor) -> None:
    """A ten-line reference in float64."""
    tokens = [[5, 17, 5, 2999, 5, 5], [1, 2, 3, 1, 3, 3], [0, 0], [7] * 9, [11, 12], [4, 4, 4]]
    reference = logits.double()
    for row, ids in enumerate(tokens):
        for token in set(ids[2:]):
            reference[row, token] -= 0.4 * ids[2:].count(token) + 1.5
    ours = penalised(logits, tokens, num_prompt=2, frequency_penalty=0.4, presence_penalty=1.5)
    assert torch.allclose(ours.double(), reference, atol=1e-6)


def penalised(
    logits: torch.Tensor, tokens: list[list[int]], num_prompt: int, **params: float
) -> torch.Tensor:
    """What the pipeline makes of logits after these tokens, fed one or two at a time."""
    rows = RequestRows(max_blocks=1, slots=1)
    settings = SamplingParams(temperature=0, **params)  # type: ignore[arg-type]
    added = [
        NewRow(f"r{i}", settings, 0, 0, num_prompt, ids[: i % 2]) for i, ids in enumerate(tokens)
    ]
    for step in range(9):
        plan = []
        for i, ids in enumerate(tokens):
            start = i % 2 + step
            plan.append(PlanRow(f"r{i}", start, ids[start : start + 1], [], 1))
        slots = rows.apply(StepPlan(step, added, plan, []))
        added = []
    out = logits.clone()
    sample(out, NO_MASK, rows, slots, np.full(len(tokens), 9))
    return out


def test_a_bias_moves_its_token_alone_and_never_opens_a_mask(logits: torch.Tensor) -> None:
    params = SamplingParams(temperature=0, logit_bias=((7, 3.5), (9, -2.0), (11, 1e4)))
    rows, slots = rows_of([params, SamplingParams(temperature=0)])
    out = logits[:2].clone()
    words = bitmask.pack([t for t in range(3000) if t != 11], 3000)
    sample(out, TokenBitmask(words[None], np.zeros(1, np.int32)), rows, slots, np.full(2, 5))
    expected = logits[:2].clone()
    expected[0, 7] += 3.5
    expected[0, 9] -= 2.0
    expected[0, 11] = -torch.inf
    assert torch.equal(out, expected)


def test_the_stages_run_in_their_order() -> None:
    """Each pair of neighbouring stages gives another token when swapped."""
    base = torch.tensor([[2.0, 1.9, -1.0, 0.5, -3.0]])

    def greedy(
        mask: list[int] | None = None, history: list[int] | None = None, **params: object
    ) -> int:
        rows = RequestRows(max_blocks=1, slots=1)
        settings = SamplingParams(temperature=0, **params)  # type: ignore[arg-type]
        new = NewRow("a", settings, 0, 0, 0, [])
        slots = rows.apply(StepPlan(1, [new], [PlanRow("a", 0, history or [4], [0], 1)], []))
        words = bitmask.pack(mask or range(5), 5)
        bits = TokenBitmask(words[None], np.zeros(1, np.int32))
        return sample(base.clone(), bits, rows, slots, np.array([3]))[0].token_ids[0]

    assert greedy(mask=[1, 2], logit_bias=((0, 100.0),)) == 1  # bias cannot open a mask
    # Bias, then repetition: (-1 + 4.5) / 2 loses to 2; the other way round: -1 * 2 + 4.5 wins.
    assert greedy(history=[2], logit_bias=((2, 4.5),), repetition_penalty=2.0) == 0
    assert greedy(history=[0], presence_penalty=0.5) == 1  # penalties before argmax
    # Temperature before min_p: hot logits are nearer, so more of them stay.
    hot = torch.tensor([[4.0, 2.0, 0.0]]) / 2
    assert kept(topk.min_p_threshold(hot, torch.tensor([0.3])), hot).sum() == 2


def test_logprobs_are_of_the_raw_model_whatever_the_options(logits: torch.Tensor) -> None:
    params = [
        SamplingParams(temperature=0, logprobs=3),
        SamplingParams(temperature=0),
        SamplingParams(
            temperature=0.5, top_k=4, logit_bias=((1, 50.0),), logprobs=0, constraint_mass=True
        ),
    ]
    rows, slots = rows_of(params)
    allowed = [*range(0, 3000, 2), 1]
    mask = TokenBitmask(bitmask.pack(allowed, 3000)[None], np.array([2], np.int32))
    outputs = sample(logits[:3].clone(), mask, rows, slots, np.full(3, 5))
    expected = logits[:3].double().log_softmax(-1)
    first, none, masked = (output.logprobs for output in outputs)
    assert none == []
    assert first[0].token == outputs[0].token_ids[0]
    assert first[0].logprob == pytest.approx(float(expected[0].max()), abs=1e-5)
    best = expected[0].topk(3)
    assert [token for token, _ in first[0].top] == best.indices.tolist()
    assert [value for _, value in first[0].top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert outputs[2].token_ids == [1]
    assert masked[0].logprob == pytest.approx(float(expected[2, 1]), abs=1e-4)
    assert masked[0].top == []
    assert masked[0].mass == pytest.approx(float(expected[2, allowed].exp().sum()), rel=1e-5)
    assert first[0].mass is None


@pytest.mark.parametrize("scale", [0.05, 1.0, 4.0])  # flat: wider than the head; peaked: inside it
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7, top_k=40),
        SamplingParams(top_k=500),
        SamplingParams(temperature=1.3, top_p=0.8),
        SamplingParams(min_p=0.05),
        SamplingParams(temperature=0.9, top_k=300, top_p=0.9, min_p=0.001),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.7, min_p=0.3),
    ],
)
def test_draws_stay_within_what_transformers_keeps_and_reach_its_edge(
    logits: torch.Tensor, params: SamplingParams, scale: float
) -> None:
    draws = 4000
    row = logits[:1] * scale
    processed = row.double()
    for warper in _warpers(params):
        processed = warper(None, processed)
    rows, slots = rows_of([params], [11])
    outputs = sample(
        row.expand(draws, -1).clone(), NO_MASK, rows, slots.repeat(draws), np.arange(draws)
    )
    drawn = torch.tensor([output.token_ids[0] for output in outputs])
    expected = processed.softmax(-1)[0]
    assert bool((expected[drawn] > 0).all())
    # Every token that should come up 12 times in the mean does come up.
    often = (expected * draws > 12).nonzero().flatten().tolist()
    assert set(often) <= set(drawn.tolist())
