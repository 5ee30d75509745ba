"""The extraction workload over gRPC: constrained and unconstrained, at several concurrencies.

    python benchmarks/serve.py                      starts a server with the default model
    python benchmarks/serve.py --target HOST:PORT   uses a running one
    python benchmarks/serve.py --validate 160 64    are all answers complete and valid?

For each concurrency, every request is sent constrained and then unconstrained (`free_tokens`
tokens, ignore_eos), and all that again.  As many clients as the concurrency send one request after
another, greedy, and stream the answers; this process is nothing but the clients.  Constraints are
compiled before, and the server that is started caches no prefixes: a repeated prompt would cost
nothing.  A line per concurrency and mode, over both rounds:

    requests_s, tokens_s      answers and output tokens per second of wall time
    ttft_ms                   from sending to the first token
    tpot_ms                   from the first token to the end, per further token
    complete, valid           share of the answers that end COMPLETE, and that jsonschema-rs accepts

and one with constrained over unconstrained: `tokens_s` (answers of unequal length leave clients
idle at the end of a run, which this includes) and `tpot` (which it does not).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import msgspec
from _common import DATA, Value, percentile, print_line, print_machine
from _workload import Item, Workload, load

from structgen.client import AsyncClient
from structgen.params import JumpForward, SamplingParams

CONCURRENCIES = (1, 8, 16, 32)
ROUNDS = 2
REQUESTS_OF_ONE_CLIENT = 6  # one client alone would take minutes for all of them
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 30.0
READY = "structgen ready on "


class Answer(msgspec.Struct, frozen=True):
    """One answer and its seconds, from sending."""

    item: Item
    text: str
    tokens: int
    complete: bool
    closed: bool
    reason: str
    forwards: int
    forced: int
    drafted: int
    accepted: int
    first_s: float
    last_s: float

    @property
    def per_token_s(self) -> float | None:
        return (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None


class Run(msgspec.Struct, frozen=True):
    """Answers of one pass over the requests, and its wall time."""

    answers: list[Answer]
    seconds: float

    @property
    def tokens_s(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.seconds


# ---- running


async def ask(client: AsyncClient, item: Item, params: SamplingParams) -> Answer:
    texts: list[str] = []
    sent = time.perf_counter()
    first = None
    async with aclosing(client.stream(item.messages, params)) as pieces:
        async for piece in pieces:
            first = first or time.perf_counter()
            texts.append(piece.text)
    ended = time.perf_counter()
    assert first is not None
    assert piece.finish is not None
    assert piece.usage is not None
    return Answer(
        item,
        "".join(texts),
        piece.usage.completion_tokens,
        piece.finish.constraint_status == "complete",
        piece.finish.closed_by_budget,
        piece.finish.reason,
        piece.usage.forwards,
        piece.usage.forced_tokens,
        piece.usage.drafted_tokens,
        piece.usage.accepted_tokens,
        first - sent,
        ended - sent,
    )


async def run(
    client: AsyncClient,
    items: Sequence[Item],
    concurrency: int,
    max_tokens: int,
    *,
    free: bool,
    close: bool = True,
    jump: JumpForward = JumpForward.COMMIT,
) -> Run:
    """Send all items, at most `concurrency` at a time.  close: complete them within max_tokens."""
    queue = iter(items)
    answers: list[Answer] = []

    async def one_client() -> None:
        for item in queue:
            params = _params(item, max_tokens, free=free, close=close, jump=jump)
            answers.append(await ask(client, item, params))

    began = time.perf_counter()
    async with asyncio.TaskGroup() as clients:
        for _ in range(concurrency):
            clients.create_task(one_client())
    return Run(answers, time.perf_counter() - began)


def _params(
    item: Item, max_tokens: int, *, free: bool, close: bool, jump: JumpForward
) -> SamplingParams:
    if free:
        return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        constraint=item.constraint,
        close_within_budget=close,
        jump_forward=jump,
    )


async def warm_up(client: AsyncClient, workload: Workload) -> None:
    """Have every constraint compiled."""
    first_of_each = {item.constraint: item for item in reversed(workload.items)}
    await run(client, list(first_of_each.values()), 1, 1, free=False, close=False)


async def compare(
    client: AsyncClient, workload: Workload, concurrency: int, num_requests: int
) -> None:
    items = workload.items[:num_requests]
    constrained: list[Run] = []
    unconstrained: list[Run] = []
    for _ in range(ROUNDS):
        constrained.append(await run(client, items, concurrency, workload.max_tokens, free=False))
        unconstrained.append(await run(client, items, concurrency, workload.free_tokens, free=True))
    with_it = _print_runs("constrained", concurrency, constrained)
    without = _print_runs("unconstrained", concurrency, unconstrained)
    print_line(
        "ratio",
        concurrency=concurrency,
        tokens_s=with_it.tokens_s / without.tokens_s,
        tpot=percentile(_per_token(with_it), 50) / percentile(_per_token(without), 50),
    )


async def validate(client: AsyncClient, workload: Workload, max_tokens: int) -> bool:
    """Send all requests constrained, completed in time and, to compare, cut.

    Whether every COMPLETE answer is valid.
    """
    invalid: list[Answer] = []
    for close in (True, False):
        whole = await run(client, workload.items, 16, max_tokens, free=False, close=close)
        complete = [answer for answer in whole.answers if answer.complete]
        wrong = [answer for answer in complete if not _is_valid(answer)]
        invalid += wrong
        print_line(
            "validate",
            concurrency=16,
            max_tokens=max_tokens,
            truncation="close" if close else "mark",
            requests=len(whole.answers),
            complete=len(complete),
            complete_and_valid=len(complete) - len(wrong),
            closed_by_budget=sum(answer.closed for answer in whole.answers),
            valid_s=(len(complete) - len(wrong)) / whole.seconds,
            others=[answer.reason for answer in whole.answers if not answer.complete],
        )
    for answer in invalid:
        print_line("invalid", schema=answer.item.schema, text=answer.text)
    return not invalid


# ---- figures


def _print_runs(mode: str, concurrency: int, runs: Sequence[Run]) -> Run:
    """Print a case and return its runs as one."""
    whole = Run([a for run in runs for a in run.answers], sum(run.seconds for run in runs))
    answers = whole.answers
    print_line(
        "serve",
        mode=mode,
        concurrency=concurrency,
        n=len(answers),
        requests_s=len(answers) / whole.seconds,
        tokens_s=whole.tokens_s,
        tokens_s_runs=[run.tokens_s for run in runs],
        **_spread("tokens", [float(answer.tokens) for answer in answers]),
        **_spread("ttft_ms", [1e3 * answer.first_s for answer in answers]),
        **_spread("tpot_ms", [1e3 * seconds for seconds in _per_token(whole)]),
        **(judged(answers) if mode == "constrained" else {}),
    )
    return whole


def _per_token(run: Run) -> list[float]:
    return [seconds for answer in run.answers if (seconds := answer.per_token_s) is not None]


def _spread(name: str, values: Sequence[float]) -> dict[str, Value]:
    return {f"{name}_p{percent}": percentile(values, percent) for percent in (50, 95)}


def judged(answers: Sequence[Answer]) -> dict[str, Value]:
    shares: dict[str, Value] = {"complete": sum(a.complete for a in answers) / len(answers)}
    with contextlib.suppress(ImportError):
        shares["valid"] = sum(map(_is_valid, answers)) / len(answers)
    return shares


def _is_valid(answer: Answer) -> bool:
    """Whether the text is JSON that obeys the schema.  Raises ImportError: nothing to judge by."""
    import jsonschema_rs

    try:
        data = json.loads(answer.text)
    except ValueError:
        return False
    return bool(jsonschema_rs.is_valid(answer.item.schema, data))


# ---- the server


@contextlib.asynccontextmanager
async def server(
    given: argparse.Namespace, *options: str, prefix_caching: bool = False
) -> AsyncIterator[str]:
    """Give the address of the server: that of --target, or of one that is started and stopped.

    options: more of `structgen serve`, for the latter.
    """
    if given.target:
        yield given.target
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "structgen", "serve", "--port", "0"),
        *(() if prefix_caching else ("--no-prefix-caching",)),
        *("--model", given.model, "--log-level", "WARNING"),
        *(("--threads", str(given.threads)) if given.threads else ()),
        *(("--attention", given.attention) if given.attention else ()),
        *options,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield await asyncio.wait_for(_address(process), START_TIMEOUT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async for line in process.stdout:
        if line.decode().startswith(READY):
            return line.decode().removeprefix(READY).strip()
    raise SystemExit(f"the server ended before it was ready, with {await process.wait()}")


# ---- the command


async def benchmark(given: argparse.Namespace) -> bool:
    workload = load(given.workload)
    if given.max_tokens is not None:
        workload = msgspec.structs.replace(workload, max_tokens=given.max_tokens)
    if given.free_tokens is not None:
        workload = msgspec.structs.replace(workload, free_tokens=given.free_tokens)
    options = ("--trace", str(given.trace)) if given.trace else ()
    async with server(given, *options) as address, AsyncClient(address) as client:
        await client.wait_ready(START_TIMEOUT_S)
        model = await client.model_info()
        print_machine(
            "serve",
            model=model.name,
            dtype=model.dtype,
            attention=model.attention,
            threads=given.threads,
            server="given" if given.target else "started, prefix caching off",
            workload=workload.name,
            max_tokens=workload.max_tokens,
            free_tokens=workload.free_tokens,
            rounds=ROUNDS,
        )
        await warm_up(client, workload)
        if given.validate is not None:
            limits = given.validate or [512]
            return all([await validate(client, workload, limit) for limit in limits])
        for concurrency, num_requests in _plan(given, len(workload.items)):
            await compare(client, workload, concurrency, num_requests)
        return True


def _plan(given: argparse.Namespace, available: int) -> Iterator[tuple[int, int]]:
    """Return each concurrency and how many requests it sends in a run."""
    for concurrency in given.concurrency:
        usual = REQUESTS_OF_ONE_CLIENT if concurrency == 1 else available
        yield concurrency, given.requests or usual


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.concurrency, given.requests = [1, 2], 2
        given.max_tokens, given.free_tokens = given.max_tokens or 12, given.free_tokens or 8
    return 0 if asyncio.run(benchmark(given)) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The extraction workload over gRPC.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument(
        "--validate",
        nargs="*",
        type=int,
        metavar="N",
        help="16 clients, max_tokens N (default: 512); fails if a COMPLETE answer is invalid",
    )
    parser.add_argument("--target", metavar="HOST:PORT", help="use this server, start none")
    parser.add_argument("--model", default="smollm2-135m", help="of the server that is started")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="have it write a trace, for timeline.py"
    )
    parser.add_argument(
        "--concurrency", nargs="+", type=int, default=list(CONCURRENCIES), metavar="N"
    )
    parser.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help=f"first N requests only (default: all; {REQUESTS_OF_ONE_CLIENT} for one client)",
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of constrained answers")
    parser.add_argument("--free-tokens", type=int, metavar="N", help="of unconstrained answers")
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
