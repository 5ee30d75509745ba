"""What forced text and guesses gain, over gRPC.

    python benchmarks/jump.py
    python benchmarks/jump.py --concurrency 8 32

The extraction workload in these modes, in turn, and all that again:

    off             constrained, sampled token by token
    draft           forced text is guessed, and verified
    commit          forced text is appended
    commit+drafts   the same, and tokens are guessed from the prompt and from earlier answers
    free, free+drafts   without a constraint

Greedy; no prefixes are cached.  The modes with drafts run on a server of their own, started anew
each time, so that no prompt has been answered before.  A line per concurrency and mode, over all
rounds:

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

import msgspec
from _common import DATA, print_line, print_machine
from _workload import Workload, load
from serve import REQUESTS_OF_ONE_CLIENT, START_TIMEOUT_S, Run, judged, run, server, warm_up

from structgen.client import AsyncClient
from structgen.params import JumpForward

PLAIN = {"off": JumpForward.OFF, "draft": JumpForward.DRAFT, "commit": JumpForward.COMMIT}
GUESSING = "+drafts"

Runs = dict[str, list[Run]]


class Comparison:
    """All modes at one concurrency."""

    def __init__(self, workload: Workload, concurrency: int) -> None:
        alone = concurrency == 1
        items = workload.items[:REQUESTS_OF_ONE_CLIENT] if alone else workload.items
        self._workload = msgspec.structs.replace(workload, items=items)
        self._concurrency = concurrency
        self._runs: Runs = {}

    async def plain(self, client: AsyncClient) -> None:
        """Run the modes that guess nothing, but perhaps forced text."""
        for mode, jump in PLAIN.items():
            self._note(mode, await self._constrained(client, jump))
        self._note("free", await self._free(client))

    async def guessing(self, client: AsyncClient) -> None:
        """Run those that do; the server has answered nothing yet."""
        self._note(f"commit{GUESSING}", await self._constrained(client, JumpForward.COMMIT))
        self._note(f"free{GUESSING}", await self._free(client))

    def report(self) -> None:
        wholes = {mode: _joined(runs) for mode, runs in self._runs.items()}
        for mode, whole in wholes.items():
            _report(mode, self._concurrency, whole)
        ratios = {}
        for mode, whole in wholes.items():
            base = wholes["free" if mode.startswith("free") else "off"]
            ratios[mode] = _requests_s(whole) / _requests_s(base)
        print_line("jump_ratio", concurrency=self._concurrency, requests_s=ratios)

    async def _constrained(self, client: AsyncClient, jump: JumpForward) -> Run:
        limit = self._workload.max_tokens
        items = self._workload.items
        return await run(client, items, self._concurrency, limit, free=False, jump=jump)

    async def _free(self, client: AsyncClient) -> Run:
        limit = self._workload.free_tokens
        return await run(client, self._workload.items, self._concurrency, limit, free=True)

    def _note(self, mode: str, one: Run) -> None:
        self._runs.setdefault(mode, []).append(one)


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
        **({} if mode.startswith("free") else judged(whole.answers)),
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
    async with server(given, "--no-drafts") as address, AsyncClient(address) as client:
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
        await warm_up(client, workload)
        for concurrency in given.concurrency:
            comparison = Comparison(workload, concurrency)
            for _ in range(given.rounds):
                await comparison.plain(client)
                async with server(given) as fresh, AsyncClient(fresh) as guesser:
                    await guesser.wait_ready(START_TIMEOUT_S)
                    await warm_up(guesser, workload)
                    await comparison.guessing(guesser)
            comparison.report()


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
