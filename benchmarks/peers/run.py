"""structgen and its peers on the same machine, model, prompts and threads, side by side.

    python benchmarks/peers/install.py              once: an environment for each peer, its model
    python benchmarks/peers/run.py --minutes 25     measures, into benchmarks/results/peers.json
    python benchmarks/peers/report.py               table, plot and the section of the README

The same command again goes on where the last one stopped; `--forget NAME` measures an engine anew.

Every engine answers the extraction workload greedily: 96 tokens each with the end of the text
ignored ("free"), and under the JSON schema of the request within 160 tokens ("json").  All get the
prompts as the same token ids, and the schema with its blanks fixed, as far as they can be:

    compact   no prefix is cached, no optional blanks: what the report compares
    loose     no prefix is cached, blanks are the model's choice
    cached    compact, with prefix caching on, and every prompt seen before

The last two are measured once, with 8 clients under constraints.  Of compact, each round runs at
each concurrency one engine after the other, so that whatever the machine is doing meets all of
them; engines that are loaded but not measured are stopped (SIGSTOP), for some spin while they wait.
An engine that guesses from answers it gave before is started anew before each pass, untimed.  An
answer counts as valid if it is JSON that jsonschema-rs accepts under the schema.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _models
import _tasks
from _engines import ENGINES, MAIN, VARIANTS, Engine, home
from _process import Worker, WorkerError, start
from _results import Results, median_of

from structgen.model import sources
from structgen.tokenizer import Tokenizer

sys.path.append(str(Path(__file__).resolve().parent.parent))
from _common import DATA, REPOSITORY, cpu_name

RESULTS = REPOSITORY / "benchmarks" / "results" / "peers.json"
SIDE_CONCURRENCY = 8
MODES = ("free", "json")
WARM_TOKENS = 8


@dataclass(frozen=True)
class Case:
    engine: str
    variant: str
    mode: str
    concurrency: int
    round: int


def plan(
    engines: Sequence[str], variants: Sequence[str], concurrencies: Sequence[int], rounds: int
) -> Iterator[Case]:
    """Yield the cases in the order they are measured in; what differs least often is outermost."""
    for number in range(rounds):
        for concurrency in concurrencies if MAIN in variants else ():
            for name in engines:
                for mode in MODES:
                    yield Case(name, MAIN, mode, concurrency, number)
        if number == 0:
            yield from _side_cases(engines, variants)


def _side_cases(engines: Sequence[str], variants: Sequence[str]) -> Iterator[Case]:
    for name in engines:
        for variant in ENGINES[name].variants:
            if variant in variants and variant != MAIN:
                yield Case(name, variant, "json", SIDE_CONCURRENCY, 0)


class Fleet:
    """The workers that are loaded; at most one of them is running."""

    def __init__(self, model: str, threads: int, results: Results, logs: Path) -> None:
        self._model = model
        self._threads = threads
        self._results = results
        self._logs = logs
        self._workers: dict[tuple[str, str], Worker] = {}

    def take(self, engine: Engine, variant: str, items: Sequence[_tasks.Item]) -> Worker:
        """Return the worker, running, and ready for a pass; all others are held.

        Raises WorkerError: it cannot be started.
        """
        key = (engine.name, variant)
        for other in [other for other in self._workers if other != key]:
            if other[1] == MAIN:
                self._workers[other].hold()
            else:  # a variant is measured once
                self._workers.pop(other).close()
        if key in self._workers:
            self._workers[key].resume()
            if engine.learns:
                self._workers[key].ask("restart")
                warm_up(self._workers[key], variant, items)
        else:
            self._workers[key] = self._start(engine, variant)
            warm_up(self._workers[key], variant, items)
        return self._workers[key]

    def drop(self, engine: str, variant: str) -> None:
        """Close a worker that failed, if it is there."""
        if worker := self._workers.pop((engine, variant), None):
            worker.close()

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _start(self, engine: Engine, variant: str) -> Worker:
        if not engine.python.exists():
            raise WorkerError("not installed, see install.py")
        model = _models.find(engine.model, self._model)
        if model is None:
            raise WorkerError(f"there is no {engine.model} form of {self._model}, see install.py")
        worker, facts = start(
            engine.command,
            self._logs / f"{engine.name}-{variant}.log",
            engine.process_variables,
            model=str(model),
            threads=self._threads,
            settings=engine.settings | VARIANTS[variant],
        )
        self._results.started(
            engine.name, variant, facts | {"label": engine.label, "threads": self._threads}
        )
        return worker


def warm_up(worker: Worker, variant: str, items: Sequence[_tasks.Item]) -> None:
    """Have all schemas compiled, some tokens of each mode computed and, if cached, all prompts."""
    of_each = list({json.dumps(item["schema"]): item for item in reversed(items)}.values())
    for mode in MODES:
        worker.ask("run", mode=mode, concurrency=4, max_tokens=WARM_TOKENS, items=of_each)
    if VARIANTS[variant]["prefix_caching"]:
        worker.ask("run", mode="free", concurrency=8, max_tokens=1, items=list(items))


def measure(
    worker: Worker, case: Case, items: Sequence[_tasks.Item], max_tokens: int
) -> dict[str, Any]:
    """Run one pass and return its entry in the results."""
    done = worker.ask(
        "run",
        mode=case.mode,
        concurrency=case.concurrency,
        max_tokens=max_tokens,
        items=list(items),
    )
    answers = done["answers"]
    assert len(answers) == len(items), f"{len(items)} questions, {len(answers)} answers"
    json_mode = case.mode == "json"
    return {
        **asdict(case),
        "requests": len(answers),
        "seconds": round(done["seconds"], 3),
        "tokens": sum(answer["tokens"] for answer in answers),
        "num_valid": sum(_tasks.is_valid(a, items) for a in answers) if json_mode else None,
        "ttft_ms": median_of(_ms(answer["first_s"]) for answer in answers),
        "tpot_ms": median_of(map(_per_token_ms, answers)),
        "load_average": round(os.getloadavg()[0], 2),
        **{name: round(value) for name, value in worker.memory().items()},
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def _per_token_ms(answer: _tasks.Answer) -> float | None:
    """Return the time per token after the first, from it to the end of the answer."""
    if answer["first_s"] is None or answer["last_s"] is None or answer["tokens"] < 2:
        return None
    return float((answer["last_s"] - answer["first_s"]) / (answer["tokens"] - 1) * 1e3)


class Bench:
    """Measures cases one by one, until they are done or time is up."""

    def __init__(self, given: argparse.Namespace, items: list[_tasks.Item]) -> None:
        self._given = given
        self._items = items
        self._deadline = time.monotonic() + given.minutes * 60
        self.results = Results(given.results)
        self.results.forget(given.forget)
        self.results.retry(given.engines)
        self.results.machine = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0))}
        self.results.workload = {
            "name": given.workload.stem,
            "requests": len(items),
            "alone": given.alone,
            "free_tokens": given.free_tokens,
            "max_tokens": given.max_tokens,
            "model": Path(given.model).name,
        }

    def run(self, cases: Sequence[Case]) -> bool:
        """Measure the cases that the results lack.  Returns whether time sufficed."""
        logs = home() / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        fleet = Fleet(self._given.model, self._given.threads, self.results, logs)
        try:
            for case in cases:
                if self.results.has(**asdict(case)) or self._is_skipped(case):
                    continue
                if time.monotonic() > self._deadline:
                    return False
                self._measure(fleet, case)
        finally:
            fleet.close()
        return True

    def _measure(self, fleet: Fleet, case: Case) -> None:
        alone = case.concurrency == 1
        items = self._items[: self._given.alone] if alone else self._items
        limit = self._given.free_tokens if case.mode == "free" else self._given.max_tokens
        try:
            worker = fleet.take(ENGINES[case.engine], case.variant, self._items)
            self.results.runs.append(measure(worker, case, items, limit))
            print(json.dumps(self.results.runs[-1]), flush=True)
        except WorkerError as error:
            fleet.drop(case.engine, case.variant)
            self._skip(case, str(error))
        self.results.save()

    def _is_skipped(self, case: Case) -> bool:
        return _place(case) in self.results.skipped

    def _skip(self, case: Case, reason: str) -> None:
        print(f"{_place(case)}: skipped: {reason}", file=sys.stderr, flush=True)
        self.results.skipped[_place(case)] = reason.splitlines()[-1]


def _place(case: Case) -> str:
    return case.engine if case.variant == MAIN else f"{case.engine} {case.variant}"


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if not given.workload.is_file():
        print(f"skipped: there is no workload {given.workload}")
        return 0
    given.model = str(sources.resolve(given.model, progress=True))
    items = _tasks.load(given.workload, Tokenizer.load(Path(given.model)))[: given.requests]
    cases = list(plan(given.engines, given.variants, given.concurrency, given.rounds))
    if not Bench(given, items).run(cases):
        print(f"{given.minutes:g} minutes are over; the same command goes on", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="structgen and its peers, side by side.")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--concurrency", nargs="+", type=int, default=[1, 8, 32], metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="of all engines in turn")
    parser.add_argument("--minutes", type=float, default=25.0, help="begin no pass after these")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument(
        "--forget", nargs="+", choices=ENGINES, default=[], help="drop what is known of these"
    )
    parser.add_argument("--requests", type=int, metavar="N", help="the first N (default: all)")
    parser.add_argument(
        "--alone", type=int, default=4, metavar="N", help="requests of a single client"
    )
    parser.add_argument("--free-tokens", type=int, default=96, metavar="N")
    parser.add_argument("--max-tokens", type=int, default=160, metavar="N")
    parser.add_argument("--model", default="smollm2-135m", help="as `structgen serve` takes it")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument(
        "--workload", type=Path, default=DATA / "extraction-workload.json", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # workers that are held must be closed
    raise SystemExit(main())
