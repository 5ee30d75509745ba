"""What does each sampling option cost per step, relative to all-greedy?

    python benchmarks/sampler.py [--rows 1 32 128] [--vocab 49152 151936] [--rounds 30]

Every round runs every case once, in turn; a line gives the medians and the ratio to greedy of the
same rounds.  Probabilities fall with the rank as in text (Zipf), tokens in random order.  Masks
are prepared before: that is the engine's part, beside the forward.
"""

from __future__ import annotations

import argparse
import random
import time

from structgen.config import let_threads_sleep

let_threads_sleep()  # as the engine does, before torch is imported

# ruff: noqa: E402
import numpy as np
import torch
from _common import in_ms, percentile, print_line, print_machine

from structgen.grammar import bitmask
from structgen.model.rows import RequestRows
from structgen.model.sampling.sampler import sample
from structgen.params import SamplingParams
from structgen.plan import NewRow, PlanRow, StepPlan, TokenBitmask

HISTORY = 256  # tokens of prompt and answer that the penalties look at

GREEDY = SamplingParams(temperature=0.0)
ALL = SamplingParams(
    temperature=0.8,
    top_k=50,
    top_p=0.9,
    min_p=0.02,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    logit_bias=tuple((token, 1.0) for token in range(16)),
    logprobs=5,
)
CASES: dict[str, tuple[SamplingParams, float | None]] = {  # params, share of tokens allowed
    "greedy": (GREEDY, None),
    "mask": (GREEDY, 0.5),
    "narrow_mask": (GREEDY, 0.001),
    "logit_bias": (SamplingParams(temperature=0.0, logit_bias=ALL.logit_bias), None),
    "penalties": (
        SamplingParams(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.1),
        None,
    ),
    "logprobs": (SamplingParams(temperature=0.0, logprobs=5), None),
    "temperature": (SamplingParams(temperature=0.8), None),
    "min_p": (SamplingParams(temperature=0.8, min_p=0.02), None),
    "top_k": (SamplingParams(temperature=0.8, top_k=50), None),
    "top_p": (SamplingParams(temperature=0.8, top_p=0.9), None),
    "all": (ALL, 0.5),
}


class Case:
    """A batch in which every row has the same options."""

    def __init__(
        self, params: SamplingParams, allowed: float | None, rows: int, vocab: int
    ) -> None:
        rng = random.Random(0)
        self._state = RequestRows(max_blocks=1, slots=rows)
        history = [rng.randrange(vocab) for _ in range(HISTORY)]
        added = [NewRow(str(i), params, i, 0, HISTORY // 2, history) for i in range(rows)]
        plan = [PlanRow(str(i), HISTORY, [1], [0], 1) for i in range(rows)]
        self._slots = self._state.apply(StepPlan(1, added, plan, []))
        self._positions = np.full(rows, HISTORY + 1)
        self._mask = _mask(allowed, rows, vocab)

    def run(self, logits: torch.Tensor) -> float:
        """Sample once from a copy of float32 [rows, vocab]; returns seconds."""
        logits = logits.clone()
        began = time.perf_counter()
        sample(logits, self._mask, self._state, self._slots, self._positions)
        return time.perf_counter() - began


def _mask(allowed: float | None, rows: int, vocab: int) -> TokenBitmask:
    if allowed is None:
        return TokenBitmask(bitmask.allocate(0, vocab), np.zeros(0, np.int32))
    count = max(1, int(vocab * allowed))
    words = [bitmask.pack(random.Random(i).sample(range(vocab), count), vocab) for i in range(rows)]
    return TokenBitmask(np.stack(words), np.arange(rows, dtype=np.int32))


def _logits(rows: int, vocab: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    ranked = -1.2 * torch.arange(1, vocab + 1).log()
    order = torch.rand(rows, vocab, generator=generator).argsort(dim=-1)
    return ranked[order] + 0.1 * torch.randn(rows, vocab, generator=generator)


@torch.inference_mode()
def measure(rows: int, vocab: int, rounds: int) -> None:
    logits = _logits(rows, vocab)
    cases = {name: Case(params, share, rows, vocab) for name, (params, share) in CASES.items()}
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 2):
        for name, case in cases.items():
            elapsed = case.run(logits)
            if number >= 2:  # the first rounds warm up
                seconds[name].append(elapsed)
    greedy = percentile(seconds["greedy"], 50)
    for name, values in seconds.items():
        print_line(
            name,
            rows=rows,
            vocab=vocab,
            n=rounds,
            **in_ms("step", values),
            over_greedy=percentile(values, 50) / greedy,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 151936])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print_machine("sampler", threads=options.threads)
    for vocab in options.vocab:
        for rows in options.rows:
            measure(rows, vocab, options.rounds)


if __name__ == "__main__":
    main()
