"""How soon a server takes requests, and what memory it has, with default options.

    python benchmarks/start.py                  the default model, which must have been fetched

The server is started a few times, one after the other: `ready_s` is from the start of its process
to the line that it prints.  One start more comes before, as the first of all compiles kernels,
which are kept on disk.  Then the server answers the extraction workload (serve.py) for many
clients, as often as asked, constrained and free.  Memory is proportional set size (pages that
processes share are divided among them), of server, engine and the processes that compile:

    ready_mb, peak_mb       when it is ready, and the most while it serves
    processes               command and megabytes of each at the peak
    answers, complete       how many, and which share of the constrained ones ended COMPLETE
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import _memory
from _common import DATA, print_line, print_machine
from _workload import Workload, load
from serve import START_TIMEOUT_S, Run, run, server

from structgen.client import AsyncClient


async def benchmark(given: argparse.Namespace) -> None:
    print_machine("start", model=given.model, clients=given.clients, starts=given.starts)
    async with server(given, prefix_caching=True):
        pass
    seconds = [await _start(given) for _ in range(given.starts)]
    print_line("start", ready_s=statistics.median(seconds), ready_s_runs=seconds)
    await _serve(given, load(given.workload))


async def _start(given: argparse.Namespace) -> float:
    began = time.perf_counter()
    async with server(given, prefix_caching=True):
        return time.perf_counter() - began


async def _serve(given: argparse.Namespace, workload: Workload) -> None:
    async with server(given, prefix_caching=True) as address, AsyncClient(address) as client:
        await client.wait_ready(START_TIMEOUT_S)
        ready_mb = _memory.in_mb(sum(share.size_bytes for share in _memory.shares()))
        constrained: list[Run] = []
        async with _memory.watched() as peak:
            for _ in range(given.rounds):
                constrained.append(await _answers(client, given, workload, free=False))
                await _answers(client, given, workload, free=True)
        answers = [answer for one in constrained for answer in one.answers]
        print_line(
            "memory",
            clients=given.clients,
            ready_mb=ready_mb,
            peak_mb=_memory.in_mb(peak.size_bytes),
            processes=peak.by_process(),
            answers=2 * len(answers),
            complete=sum(answer.complete for answer in answers) / len(answers),
        )


async def _answers(
    client: AsyncClient, given: argparse.Namespace, workload: Workload, *, free: bool
) -> Run:
    most = workload.free_tokens if free else workload.max_tokens
    items = workload.items[: given.requests]
    return await run(client, items, given.clients, min(most, given.max_tokens), free=free)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.target = None
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.starts, given.clients, given.rounds, given.requests, given.max_tokens = 1, 2, 1, 2, 8
    asyncio.run(benchmark(given))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Start to ready, and peak memory.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--model", default="smollm2-135m", help="of the server")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument("--starts", type=int, default=5, metavar="N", help="to take the median of")
    parser.add_argument("--clients", type=int, default=32, metavar="N", help="at the same time")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="through the workload")
    parser.add_argument("--requests", type=int, metavar="N", help="first N requests only")
    parser.add_argument(
        "--max-tokens", type=int, default=2**20, metavar="N", help="at most that many an answer"
    )
    parser.add_argument(
        "--workload",
        type=Path,
        default=DATA / "extraction-workload.json",
        metavar="FILE",
        help="schemas and requests; absent: a small built-in workload",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
