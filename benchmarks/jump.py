"""What forced text and guesses gain, over gRPC.

    python benchmarks/jump.py
    python benchmarks/jump.py --concurrency 8 32

The extraction workload in these modes, in turn, and all that again:

    off             constrained, sampled token by token
    draft           forced text is guessed, and verified
    commit          forced text is appended
    commit+drafts   the same, and tokens are guessed from the prompt and from earlier answers
    free, free+drafts   without a constraint

Greedy; no prefixes are cached.  Each mode of each round has a server of its own: no prompt has been
answered before, and none has the advantage of a server that is warm.  A line per concurrency and
mode, over all rounds:

    requests_s, tokens_s      answers and output tokens per second of wall time
    forwards_per_token        steps that an answer took part in, per token of its text
    forced                    share of the tokens that were appended
    drafted, accepted         tokens that were guessed, per token of the text, and the right ones
    complete, valid           share of the answers

and a line per concurrency with the ratios to `off` (and, without a constraint, to `free`).
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from _common import DATA, print_line, print_machine
from _workload import Workload, load
from serve import REQUESTS_OF_ONE_CLIENT, START_TIMEOUT_S, Run, judged, run, server, warm_up

from structgen.client import AsyncClient
from structgen.params import JumpForward


class Mode(NamedTuple):
    """drafts: guess from prompt and earlier answers.  jump: None without a constraint."""

    drafts: bool
    jump: JumpForward | None


MODES = {
    "off": Mode(False, JumpForward.OFF),
    "draft": Mode(False, JumpForward.DRAFT),
    "commit": Mode(False, JumpForward.COMMIT),
    "commit+drafts": Mode(True, JumpForward.COMMIT),
    "free": Mode(False, None),
    "free+drafts": Mode(True, None),
}


async def measure(given: argparse.Namespace, workload: Workload, concurrency: int) -> None:
    """Run all modes in turn, at one concurrency, and report."""
    runs: dict[str, list[Run]] = {name: [] for name in MODES}
    for _ in range(given.rounds):
        for name, mode in MODES.items():
            runs[name].append(await _run(given, workload, concurrency, mode))
    wholes = {name: _joined(all_runs) for name, all_runs in runs.items()}
    for name, whole in wholes.items():
        _report(name, concurrency, whole)
    bases = {name: "off" if mode.jump is not None else "free" for name, mode in MODES.items()}
    ratios = {
        name: _requests_s(whole) / _requests_s(wholes[bases[name]])
        for name, whole in wholes.items()
    }
    print_line("jump_ratio", concurrency=concurrency, requests_s=ratios)


async def _run(given: argparse.Namespace, workload: Workload, concurrency: int, mode: Mode) -> Run:
    items = workload.items[:REQUESTS_OF_ONE_CLIENT] if concurrency == 1 else workload.items
    options = () if mode.drafts else ("--no-drafts",)
    async with server(given, *options) as address, AsyncClient(address) as client:
        await client.wait_ready(START_TIMEOUT_S)
        await warm_up(client, workload)
        if mode.jump is None:
            return await run(client, items, concurrency, workload.free_tokens, free=True)
        return await run(
            client, items, concurrency, workload.max_tokens, free=False, jump=mode.jump
        )


def _report(mode: str, concurrency: int, whole: Run) -> None:
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
        drafted=sum(answer.drafted for answer in whole.answers) / tokens,
        accepted=sum(answer.accepted for answer in whole.answers) / tokens,
        **({} if MODES[mode].jump is None else judged(whole.answers)),
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
        rounds=given.rounds,
    )
    for concurrency in given.concurrency:
        await measure(given, workload, concurrency)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    given.target = None
    if given.quick:
        given.model, given.attention, given.threads = "random:llama", "torch_cpu", 1
        given.concurrency, given.rounds = [1], 1
    asyncio.run(benchmark(given))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Forced text and guesses.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--model", default="smollm2-135m", help="of the server that is started")
    parser.add_argument("--threads", type=int, help="of its forward (default: one a core)")
    parser.add_argument("--attention", help="its attention backend (default: auto)")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="of all modes in turn")
    parser.add_argument(
        "--workload", type=Path, default=DATA / "extraction-workload.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
