"""What filling masks during the forward gains over filling them before it.

    python benchmarks/overlap.py                    two vocabularies, three models each
    python benchmarks/overlap.py --model smollm2-135m

Every row of every step is constrained and decodes.  The same steps run overlapped, serial,
overlapped, serial, with the same tokens (see _rig.py), so that both do the same mask work.  For
each kind of mask and batch, models are chosen with which masks cost about 1, 30 and 100 % of the
forward; what no model comes near is left out.  A line per case, medians in milliseconds:

    forward, mask, sample     undisturbed, from the serial steps; mask_share = mask / forward
    overlap_forward, _mask    beside each other
    wait                      how long the finished forward waited for the masks
    step, serial_step         a whole step, overlapped and serial
    serial_over_overlap       total time of the serial steps over that of the overlapped ones, above
                              1 where overlap gains; `pairs` has it for each pair of runs

Then the same with other switch intervals of the interpreter (`sys.setswitchinterval`), overlapped:
for how long may the device thread's Python keep the lock from the thread that fills masks?
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from _common import DATA, Value, in_ms, print_line, print_machine
from _masks import MaskKind, kinds
from _rig import MAX_ROWS, Rig, Times

from structgen import logs

BATCHES = (1, 8, 32, 64, 256)
TARGETS = (0.01, 0.3, 1.0)  # of the forward
NEAR = 3.0  # a share within this factor of its target stands for it
ROUNDS = 2
PROBE_STEPS = 6
MIN_STEPS, MAX_STEPS = 6, 300

TINY = "hidden_size=32&intermediate_size=64&num_hidden_layers=1"
SMALL = "hidden_size=128&intermediate_size=512&num_hidden_layers=6"
LARGE = (
    "hidden_size=512&intermediate_size=2048&num_hidden_layers=12&num_attention_heads=8"
    "&tie_word_embeddings=true"
)
SIZES = {"tiny": TINY, "small": SMALL, "large": LARGE}
VOCABULARIES = {
    "49k": {name: f"random:llama?vocab_size=49152&{size}" for name, size in SIZES.items()},
    "150k": {name: f"random:qwen2?vocab_size=151936&{size}" for name, size in SIZES.items()},
}
QUICK = {"2k": {"tiny": f"random:llama?vocab_size=2048&{TINY}"}}

INTERVALS_MS = (5.0, 0.5, 0.1)
INTERVAL_BATCHES = (1, 8, 64)
INTERVAL_KINDS = ("recursive", "ambiguous")


class Case(msgspec.Struct, frozen=True):
    """seconds: what a step will take, by the probes.  target: None where none was asked for."""

    kind: MaskKind
    rows: int
    model: str
    target: float | None
    seconds: float


class Benchmark:
    """All cases of one vocabulary."""

    def __init__(
        self, vocabulary: str, models: Mapping[str, str], given: argparse.Namespace
    ) -> None:
        self._vocabulary = vocabulary
        self._given = given
        self._rig = Rig(models, threads=given.threads, attention=given.attention)
        self._forwards: dict[tuple[str, int], float] = {}

    def run(self) -> None:
        for kind in kinds(self._given.schemas):
            batches = [rows for rows in self._given.batches if self._wanted(kind, rows)]
            if not batches:
                continue
            self._rig.use(kind, num_answers=max(batches))
            for rows in batches:
                for case in self._choose(kind, rows):
                    self._compare(case)
                if kind.name in INTERVAL_KINDS and rows in INTERVAL_BATCHES:
                    self._compare_intervals(kind, rows)
        self._rig.close()

    def _wanted(self, kind: MaskKind, rows: int) -> bool:
        name = f"{self._vocabulary}/{kind.name}/{rows}"
        return rows <= kind.max_rows and re.search(self._given.cases, name) is not None

    # -- which model ------------------------------------------------------------------------

    def _choose(self, kind: MaskKind, rows: int) -> Iterator[Case]:
        """Return the cases of a mask kind and batch, at most one a model."""
        mask = statistics.median(
            self._rig.measure(self._rig.masker, rows, PROBE_STEPS, overlap=False).mask
        )
        shares = {model: mask / self._forward(model, rows) for model in self._rig.engines}
        for model, share in shares.items():
            target = self._target(model, shares)
            if target is not None or self._given.all_models:
                yield Case(kind, rows, model, target, mask + mask / share)

    def _target(self, model: str, shares: dict[str, float]) -> float | None:
        """Return the target that this model comes nearest to, if it is near and no other nearer."""

        def distance(name: str, target: float) -> float:
            return abs(math.log(shares[name] / target))

        target = min(TARGETS, key=lambda target: distance(model, target))
        nearest = min(shares, key=lambda name: distance(name, target))
        return target if nearest == model and distance(model, target) < math.log(NEAR) else None

    def _forward(self, model: str, rows: int) -> float:
        """Return the median seconds of a forward; whatever the masks, so measured once."""
        if (model, rows) not in self._forwards:
            core = self._rig.engines[model]
            times = self._rig.measure(core, rows, PROBE_STEPS, overlap=False)
            self._forwards[model, rows] = statistics.median(times.forward)
        return self._forwards[model, rows]

    # -- measuring --------------------------------------------------------------------------

    def _compare(self, case: Case) -> None:
        steps = self._steps(case.seconds)
        overlapped, serial = Times(), Times()
        pairs: list[float] = []
        for _ in range(ROUNDS):
            a = self._measure(case.model, case.rows, steps, overlap=True)
            b = self._measure(case.model, case.rows, steps, overlap=False)
            pairs.append(sum(b.step) / sum(a.step))
            overlapped, serial = overlapped + a, serial + b
        self._print_comparison(case, overlapped, serial, pairs)

    def _compare_intervals(self, kind: MaskKind, rows: int) -> None:
        """Run the overlapped steps of the shortest forward at every switch interval in turn."""
        model = min(self._rig.engines, key=lambda name: self._forward(name, rows))
        steps = self._steps(2 * self._forward(model, rows))
        results = {interval: Times() for interval in INTERVALS_MS}
        default = sys.getswitchinterval()
        try:
            for _ in range(ROUNDS):
                for interval in INTERVALS_MS:
                    sys.setswitchinterval(interval / 1e3)
                    results[interval] += self._measure(model, rows, steps, overlap=True)
        finally:
            sys.setswitchinterval(default)
        for interval, times in results.items():
            print_line(
                "switch_interval",
                interval_ms=interval,
                **self._where(kind, rows, model, times),
                **in_ms("forward", times.forward),
                **in_ms("mask", times.mask),
                **in_ms("wait", times.wait),
                **in_ms("step", times.step),
            )

    def _measure(self, model: str, rows: int, steps: int, *, overlap: bool) -> Times:
        return self._rig.measure(self._rig.engines[model], rows, steps, overlap=overlap)

    def _steps(self, seconds: float) -> int:
        most: int = self._given.max_steps
        return min(max(int(self._given.seconds / seconds), MIN_STEPS), most)

    def _print_comparison(
        self, case: Case, overlapped: Times, serial: Times, pairs: list[float]
    ) -> None:
        forward, mask = statistics.median(serial.forward), statistics.median(serial.mask)
        print_line(
            "overlap",
            **self._where(case.kind, case.rows, case.model, overlapped),
            target_share=case.target,
            mask_share=mask / forward,
            **in_ms("forward", serial.forward),
            **in_ms("mask", serial.mask),
            **in_ms("sample", serial.sample),
            **in_ms("overlap_forward", overlapped.forward),
            **in_ms("overlap_mask", overlapped.mask),
            **in_ms("wait", overlapped.wait),
            **in_ms("step", overlapped.step),
            **in_ms("serial_step", serial.step),
            serial_over_overlap=sum(serial.step) / sum(overlapped.step),
            pairs=pairs,
        )

    def _where(self, kind: MaskKind, rows: int, model: str, times: Times) -> dict[str, Value]:
        return {
            "rows": rows,
            "vocab": self._rig.vocab_size,
            "masks": kind.name,
            "model": model,
            "n": len(times.step),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    logs.configure("WARNING")
    vocabularies = _vocabularies(given)
    print_machine(
        "overlap",
        threads=given.threads,
        attention=given.attention,
        rounds=ROUNDS,
        switch_interval_ms=sys.getswitchinterval() * 1e3,
        real_schemas=given.schemas.is_file(),
        models=vocabularies,
    )
    for vocabulary, models in vocabularies.items():
        Benchmark(vocabulary, models, given).run()
    return 0


def _vocabularies(given: argparse.Namespace) -> dict[str, dict[str, str]]:
    """Return the models by vocabulary; sets what --quick and --model imply."""
    given.all_models = bool(given.model) or given.quick
    if given.quick:
        given.seconds, given.max_steps, given.batches = 0.1, 4, [1, 4]
        return QUICK
    if given.model:
        return {given.model: {given.model: given.model}}
    return {name: VOCABULARIES[name] for name in given.vocabularies}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Bitmask overlap against serial.")
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    parser.add_argument(
        "--cases", default="", metavar="REGEX", help="only what matches in VOCABULARY/MASKS/ROWS"
    )
    parser.add_argument(
        "--vocabularies",
        nargs="+",
        choices=list(VOCABULARIES),
        default=list(VOCABULARIES),
        metavar="NAME",
        help=f"of {', '.join(VOCABULARIES)} (default: all)",
    )
    parser.add_argument("--model", help="this model alone, whatever its mask shares")
    parser.add_argument(
        "--batches", nargs="+", type=_batch, default=list(BATCHES), metavar="ROWS", help="rows"
    )
    parser.add_argument("--threads", type=int, default=2, help="of the forward (default: 2)")
    parser.add_argument("--attention", default="auto", help="attention backend (default: auto)")
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="of each of the four runs of a case (about)"
    )
    parser.add_argument("--max-steps", type=int, default=MAX_STEPS, help="of each run")
    parser.add_argument(
        "--schemas",
        type=Path,
        default=DATA / "maskbench-1000.jsonl.gz",
        metavar="FILE",
        help="real schemas (MaskBench, gzipped lines of id and schema); absent: a generated one",
    )
    return parser


def _batch(text: str) -> int:
    rows = int(text)
    if not 1 <= rows <= MAX_ROWS:
        raise argparse.ArgumentTypeError(f"must be in [1, {MAX_ROWS}], got {rows}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
