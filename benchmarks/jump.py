"""What appending forced text gains, over gRPC.

    python benchmarks/jump.py
    python benchmarks/jump.py --concurrency 8 32

The extraction workload, constrained, once sampled token by token (`off`) and once with forced text
appended (`commit`), and that again, in turn: off, commit, off, commit.  Greedy; the server caches
no prefixes.  A line per concurrency and mode, over both rounds:

    requests_s, tokens_s      answers and output tokens per second of wall time
    forwards_per_token        steps that an answer took part in, per token of its text
    forced                    share of the tokens that were appended
    complete, valid           share of the answers

and a line per concurrency with the ratios of `commit` to `off`, and with the unconstrained rate of
the same server (`free_tokens_s`, measured between the rounds).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec
from _common import DATA, print_line, print_machine
from _workload import Workload, load
from serve import REQUESTS_OF_ONE_CLIENT, START_TIMEOUT_S, Run, judged, run, server, warm_up

from structgen.client import AsyncClient
from structgen.params import JumpForward

ROUNDS = 2


async def compare(client: AsyncClient, workload: Workload, concurrency: int) -> None:
    items = workload.items[:REQUESTS_OF_ONE_CLIENT] if concurrency == 1 else workload.items
    runs: dict[JumpForward, list[Run]] = {mode: [] for mode in JumpForward}
    free: list[Run] = []
    for _ in range(ROUNDS):
        for mode in JumpForward:
            limit = workload.max_tokens
            runs[mode].append(await run(client, items, concurrency, limit, free=False, jump=mode))
        free.append(await run(client, items, concurrency, workload.free_tokens, free=True))
    wholes = {mode: _joined(parts) for mode, parts in runs.items()}
    for mode, whole in wholes.items():
        report(mode, concurrency, whole)
    off, commit = wholes[JumpForward.OFF], wholes[JumpForward.COMMIT]
    print_line(
        "jump_ratio",
        concurrency=concurrency,
        requests_s=_requests_s(commit) / _requests_s(off),
        tokens_s=commit.tokens_s / off.tokens_s,
        free_tokens_s=_joined(free).tokens_s,
        tokens_s_to_free=commit.tokens_s / _joined(free).tokens_s,
    )


def report(mode: JumpForward, concurrency: int, whole: Run) -> None:
    tokens = sum(answer.tokens for answer in whole.answers)
    print_line(
        "jump",
        mode=mode,
        concurrency=concurrency,
        n=len(whole.answers),
        requests_s=_requests_s(whole),
        tokens_s=whole.tokens_s,
        forwards_per_token=sum(answer.forwards for answer in whole.answers) / tokens,
        forced=sum(answer.forced for answer in whole.answers) / tokens,
        **judged(whole.answers),
    )


def _joined(runs: Sequence[Run]) -> Run:
    return Run([a for run in runs for a in run.answers], sum(run.seconds for run in runs))


def _requests_s(whole: Run) -> float:
    return len(whole.answers) / whole.seconds


async def benchmark(given: argparse.Namespace) -> None:
    workload = load(given.workload)
    if given.quick:
        workload = msgspec.structs.replace(
            workload, items=workload.items[:2], max_tokens=40, free_tokens=8
        )
    async with server(given) as address, AsyncClient(address) as client:
        await client.wait_ready(START_TIMEOUT_S)
        model = await client.model_info()
        print_machine(
            "jump",
            model=model.name,
            dtype=model.dtype,
            threads=given.threads,
            workload=workload.name,
            max_tokens=workload.max_tokens,
            rounds=ROUNDS,
        )
        await warm_up(client, workload)
        for concurrency in given.concurrency:
            await compare(client, workload, concurrency)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.concurrency = [1, 2]
    asyncio.run(benchmark(given))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Forced text, appended or sampled.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--target", metavar="HOST:PORT", help="use this server, start none")
    parser.add_argument("--model", default="smollm2-135m", help="of the server that is started")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    parser.add_argument(
        "--workload", type=Path, default=DATA / "extraction-workload.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
