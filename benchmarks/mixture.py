"""How long does a step wait for its masks, with another real schema in every row?

    python benchmarks/mixture.py
    python benchmarks/mixture.py --rows 8 --steps 500

At least as many requests as rows decode at once, each under a schema that no other has, drawn as a
client would have it (temperature 1, max_tokens 200); who ends is replaced, and some more compile
meanwhile.  The first line after the header is over all steps with as many constrained rows:

    wait_share        of a step's time that the finished forward waited for masks: mean, p99, p99.9
    mask, forward     medians in milliseconds
    rest_share        of a step's time that is neither forward nor sampling nor that wait: what is
                      done with the sampled tokens, scheduling, preparing the next step

then one for each row count.  Schemas that are refused are passed over.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from _common import DATA, percentile, print_line, print_machine
from _schemas import shuffled

from structgen.config import EngineConfig
from structgen.constraints import JsonSchema
from structgen.engine.client import InprocClient
from structgen.engine.core import StepTimes
from structgen.messages import EngineRequest
from structgen.params import SamplingParams

PROMPT_TOKENS = 16
MAX_TOKENS = 200
WARM_STEPS = 20


class Mixture:
    """Keeps requests under ever new schemas in the engine, half as many again as `rows`."""

    def __init__(self, client: InprocClient, schemas: Sequence[JsonSchema], rows: int) -> None:
        self._client = client
        self._schemas = itertools.cycle(schemas)
        self._numbers = itertools.count()
        self._rows = rows
        self._open: set[str] = set()

    def step(self) -> StepTimes | None:
        """Run one step; its times, if `rows` were sampled under a mask."""
        while len(self._open) < self._rows * 3 // 2:
            self._add()
        self._client.core.last_step = None
        for output in self._client.step():
            if output.finish is not None:
                self._open.discard(output.id)
        times = self._client.core.last_step
        return times if times is not None and times.rows >= self._rows else None

    def _add(self) -> None:
        number = next(self._numbers)
        params = SamplingParams(max_tokens=MAX_TOKENS, seed=number, constraint=next(self._schemas))
        prompt = [(number * 31 + place * 7) % 1000 + 100 for place in range(PROMPT_TOKENS)]
        request = EngineRequest(f"r{number}", prompt, params, arrival=float(number))
        self._client.send(request)
        self._open.add(request.id)


def measure(mixture: Mixture, steps: int) -> Iterator[StepTimes]:
    measured = -WARM_STEPS
    while measured < steps:
        times = mixture.step()
        if times is not None:
            measured += 1
            if measured > 0:
                yield times


def report(rows: int, times: Sequence[StepTimes]) -> None:
    waits = [one.wait_s / one.step_s for one in times]
    rests = [(one.step_s - one.forward_s - one.sample_s - one.wait_s) / one.step_s for one in times]
    print_line(
        "mixture",
        rows=rows,
        steps=len(times),
        wait_share_mean=statistics.fmean(waits),
        wait_share_p99=percentile(waits, 99),
        wait_share_p999=percentile(waits, 99.9),
        rest_share_mean=statistics.fmean(rests),
        mask_ms=1e3 * percentile([one.mask_s for one in times], 50),
        mask_p999_ms=1e3 * percentile([one.mask_s for one in times], 99.9),
        forward_ms=1e3 * percentile([one.forward_s for one in times], 50),
        step_ms=1e3 * percentile([one.step_s for one in times], 50),
        step_p999_ms=1e3 * percentile([one.step_s for one in times], 99.9),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.quick:
        given.model, given.rows, given.steps = "random:llama", [2], 20
    client = InprocClient(
        EngineConfig(model=given.model, threads=given.threads, log_level="WARNING")
    )
    print_machine(
        "mixture",
        model=client.model.name,
        dtype=client.model.dtype,
        threads=client.model.threads,
        vocabulary=client.model.vocab_size,
    )
    for rows in given.rows:
        mixture = Mixture(client, shuffled(given.schemas, given.seed), rows)
        report(rows, list(measure(mixture, given.steps)))
    client.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The wait for masks under ever new schemas.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, help="of the forward (default: one a core)")
    parser.add_argument("--rows", nargs="+", type=int, default=[32], metavar="N")
    parser.add_argument("--steps", type=int, default=2000, metavar="N", help="to be measured")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the schemas")
    parser.add_argument(
        "--schemas", type=Path, default=DATA / "maskbench-1000.jsonl.gz", metavar="FILE"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
