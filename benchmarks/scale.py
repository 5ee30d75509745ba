"""How throughput, latency and memory grow with clients and with the length of prompts.

    python benchmarks/scale.py                          the default model
    python benchmarks/scale.py --model random:llama     next to no forward: what the rest costs

A server is started with default options.  In each case as many clients as it says send a request at
the same moment, which is answered with `--max-tokens` tokens, unconstrained.  Prompts are of random
tokens: all of them (sharing none), or all but the last few behind what every prompt begins with
(sharing prefix), which has been computed before.  A line per case:

    requests_s, tokens_s      answers and output tokens per second of wall time
    ttft_ms                   from sending to the first token
    gap_ms                    between two pieces of a stream
    memory_mb                 of all processes of the server at the end, shared pages divided

and one `growth` line for each length and sharing: how the seconds of a case grow with the clients
(`seconds`: the exponent between the fewest and the most, 1 is linear; `worst`: the steepest step
between neighbours), and how memory does (`mb_per_client`).  A case whose prompts have more tokens
than --budget is left out, and named: it would take minutes and tell nothing new.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise

import _memory
import msgspec
from _common import Value, percentile, print_line, print_machine
from serve import START_TIMEOUT_S, server

from structgen.client import AsyncClient
from structgen.params import SamplingParams

CLIENTS = (1, 8, 32, 64, 128, 256)
LENGTHS = (64, 256, 1024, 4096)
OWN_TOKENS = 16  # of a prompt that shares all the rest
SEED = 7


class Case(msgspec.Struct, frozen=True):
    clients: int
    length: int
    shared: bool

    @property
    def computed_tokens(self) -> int:
        """How many tokens of prompts have to be computed."""
        return self.clients * (OWN_TOKENS if self.shared else self.length)


class Answer(msgspec.Struct, frozen=True):
    """Seconds from sending to the first piece, and between pieces."""

    tokens: int
    first_s: float
    gaps_s: list[float]


class Result(msgspec.Struct, frozen=True):
    case: Case
    answers: list[Answer]
    seconds: float
    memory_bytes: int


class Prompts:
    """Random token ids, never the same twice but for the prefix of a length."""

    def __init__(self, vocab_size: int, special: frozenset[int]) -> None:
        self._random = random.Random(SEED)
        self._ids = [token for token in range(vocab_size) if token not in special]
        self._prefixes = {length: self._draw(length) for length in LENGTHS}

    def of(self, case: Case) -> list[list[int]]:
        if not case.shared:
            return [self._draw(case.length) for _ in range(case.clients)]
        prefix = self._prefixes[case.length][: case.length - OWN_TOKENS]
        return [prefix + self._draw(OWN_TOKENS) for _ in range(case.clients)]

    def _draw(self, count: int) -> list[int]:
        return self._random.choices(self._ids, k=count)


async def ask(client: AsyncClient, prompt: list[int], max_tokens: int) -> Answer:
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    times = [time.perf_counter()]
    async with aclosing(client.stream(prompt, params)) as pieces:
        async for piece in pieces:
            times.append(time.perf_counter())
            last = piece
    assert last.usage is not None
    first, *gaps = [after - before for before, after in pairwise(times)]
    return Answer(last.usage.completion_tokens, first, gaps)


async def measure(
    client: AsyncClient, case: Case, prompts: Sequence[list[int]], max_tokens: int
) -> Result:
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(ask(client, prompt, max_tokens)) for prompt in prompts]
    seconds = time.perf_counter() - began
    memory = sum(share.size_bytes for share in await asyncio.to_thread(_memory.shares))
    return Result(case, [task.result() for task in asked], seconds, memory)


def print_result(result: Result) -> None:
    answers = result.answers
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    print_line(
        "scale",
        **msgspec.structs.asdict(result.case),
        seconds=result.seconds,
        requests_s=len(answers) / result.seconds,
        tokens_s=sum(answer.tokens for answer in answers) / result.seconds,
        **_spread("ttft_ms", [answer.first_s for answer in answers]),
        **_spread("gap_ms", gaps),
        memory_mb=_memory.in_mb(result.memory_bytes),
    )


def print_growth(results: Sequence[Result]) -> None:
    """Print how one length and sharing grows.  results: by the number of clients, ascending."""
    first, last = results[0], results[-1]
    print_line(
        "growth",
        length=first.case.length,
        shared=first.case.shared,
        clients=[result.case.clients for result in results],
        seconds=_exponent(first, last),
        worst=max(_exponent(one, other) for one, other in pairwise(results)),
        mb_per_client=_memory.in_mb(last.memory_bytes - first.memory_bytes)
        / (last.case.clients - first.case.clients),
    )


def _exponent(one: Result, other: Result) -> float:
    return math.log(other.seconds / one.seconds) / math.log(other.case.clients / one.case.clients)


def _spread(name: str, seconds: Sequence[float]) -> dict[str, Value]:
    return {f"{name}_p{percent}": 1e3 * percentile(seconds, percent) for percent in (50, 99)}


def _series(given: argparse.Namespace, context_length: int) -> Iterator[list[Case]]:
    """Return the cases by length and sharing, in the order of the clients; names the others."""
    for length in given.lengths:
        for shared in (False, True):
            cases = [Case(clients, length, shared) for clients in given.clients]
            fitting = length + given.max_tokens <= context_length
            kept = [case for case in cases if fitting and case.computed_tokens <= given.budget]
            if left := [case.clients for case in cases if case not in kept]:
                print_line("left_out", length=length, shared=shared, clients=left)
            yield kept


async def benchmark(given: argparse.Namespace) -> None:
    async with server(given, prefix_caching=True) as address, AsyncClient(address) as client:
        await client.wait_ready(START_TIMEOUT_S)
        model = await client.model_info()
        print_machine(
            "scale",
            model=model.name,
            dtype=model.dtype,
            attention=model.attention,
            kv_tokens=model.num_blocks * model.block_size,
            max_tokens=given.max_tokens,
        )
        prompts = Prompts(model.vocab_size, frozenset(model.eos_token_ids))
        for cases in _series(given, model.context_length):
            results = [await _run(client, case, prompts, given.max_tokens) for case in cases]
            if len(results) > 1:
                print_growth(results)


async def _run(client: AsyncClient, case: Case, prompts: Prompts, max_tokens: int) -> Result:
    if case.shared:  # so that the prefix is there
        warm_up = Case(1, case.length, shared=True)
        await measure(client, warm_up, prompts.of(warm_up), 1)
    result = await measure(client, case, prompts.of(case), max_tokens)
    print_result(result)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.target = None
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.clients, given.lengths, given.max_tokens, given.budget = [1, 4], [64], 4, 128
    asyncio.run(benchmark(given))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Growth with clients and lengths of prompts.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--model", default="smollm2-135m", help="of the server")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument("--clients", nargs="+", type=int, default=list(CLIENTS), metavar="N")
    parser.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        choices=LENGTHS,
        default=list(LENGTHS),
        metavar="N",
        help=f"tokens of a prompt, of {', '.join(map(str, LENGTHS))}",
    )
    parser.add_argument("--max-tokens", type=int, default=32, metavar="N", help="of an answer")
    parser.add_argument(
        "--budget",
        type=int,
        default=1 << 14,
        metavar="N",
        help="leave out cases that compute more tokens of prompts (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
