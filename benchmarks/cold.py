"""What does a schema that the server has never seen cost the first token?

    python benchmarks/cold.py
    python benchmarks/cold.py --requests 100
    python benchmarks/cold.py --sampled      # the first token that is sampled, not forced

One client sends each prompt twice, with a schema that is new to the server and without, in turn
(with, without, without, with, ...), one token each.  The server caches no prefixes.  A line:

    ttft_ms, free_ttft_ms     medians, from sending to the first token
    ratio                     of the medians; `ratio_p90` of single pairs
    compile_ms                what compiling took, by the server: median, p99

Schemas that are refused are passed over; `refused` counts them.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from _common import DATA, in_ms, percentile, print_line, print_machine
from _schemas import shuffled
from _workload import load
from serve import server

from structgen.client import AsyncClient
from structgen.constraints import JsonSchema
from structgen.errors import StructgenError
from structgen.params import JumpForward, SamplingParams
from structgen.tokenizer import ChatMessage

START_TIMEOUT_S = 600.0
WARM_UP = 4


class Pair(msgspec.Struct, frozen=True):
    """Seconds to the first token of one prompt with a new schema and without, and of compiling."""

    cold_s: float
    free_s: float
    compile_s: float


async def first_token(
    client: AsyncClient,
    messages: list[ChatMessage],
    constraint: JsonSchema | None,
    jump_forward: JumpForward,
) -> tuple[float, float]:
    """Return the seconds to the first piece of an answer, and those that compiling took."""
    # Cut, so that no time goes into completing what no one wants.
    params = SamplingParams(
        temperature=0.0,
        max_tokens=1,
        constraint=constraint,
        close_within_budget=False,
        jump_forward=jump_forward,
    )
    sent = time.perf_counter()
    async with aclosing(client.stream(messages, params)) as pieces:
        async for piece in pieces:
            compile_s = piece.constraint.compile_s if piece.constraint is not None else 0.0
            return time.perf_counter() - sent, compile_s
    raise AssertionError("the answer had no piece")


async def pair(
    client: AsyncClient,
    messages: list[ChatMessage],
    schema: JsonSchema,
    jump_forward: JumpForward,
    *,
    cold_first: bool,
) -> Pair:
    if cold_first:
        cold_s, compile_s = await first_token(client, messages, schema, jump_forward)
        free_s, _ = await first_token(client, messages, None, jump_forward)
    else:
        free_s, _ = await first_token(client, messages, None, jump_forward)
        cold_s, compile_s = await first_token(client, messages, schema, jump_forward)
    return Pair(cold_s, free_s, compile_s)


async def benchmark(given: argparse.Namespace) -> None:
    items = load(given.workload).items
    jump_forward = JumpForward.OFF if given.sampled else JumpForward.COMMIT
    async with server(given) as address, AsyncClient(address) as client:
        await client.wait_ready(START_TIMEOUT_S)
        model = await client.model_info()
        print_machine("cold", model=model.name, dtype=model.dtype, threads=given.threads)
        pairs: list[Pair] = []
        refused = 0
        for schema in shuffled(given.schemas):
            if len(pairs) >= given.requests + WARM_UP:
                break
            turn = len(pairs)
            messages = items[turn % len(items)].messages
            try:
                first = turn % 2 == 0
                pairs.append(await pair(client, messages, schema, jump_forward, cold_first=first))
            except StructgenError:
                refused += 1
    report(pairs[WARM_UP:], refused)


def report(pairs: Sequence[Pair], refused: int) -> None:
    cold, free = [one.cold_s for one in pairs], [one.free_s for one in pairs]
    print_line(
        "cold",
        n=len(pairs),
        refused=refused,
        **in_ms("ttft", cold),
        **in_ms("free_ttft", free),
        ratio=percentile(cold, 50) / percentile(free, 50),
        ratio_p90=percentile([one.cold_s / one.free_s for one in pairs], 90),
        **in_ms("compile", [one.compile_s for one in pairs]),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.requests = 4
    asyncio.run(benchmark(given))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The first token under a schema never seen.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--sampled", action="store_true", help="have no text appended unasked")
    parser.add_argument("--target", metavar="HOST:PORT", help="use this server, start none")
    parser.add_argument("--model", default="smollm2-135m", help="of the server that is started")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument("--requests", type=int, default=60, metavar="N", help="pairs to measure")
    parser.add_argument(
        "--schemas", type=Path, default=DATA / "maskbench-1000.jsonl.gz", metavar="FILE"
    )
    parser.add_argument(
        "--workload", type=Path, default=DATA / "extraction-workload.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
