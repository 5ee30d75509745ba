"""What the benchmarks share: the header line, JSON lines, percentiles."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = REPOSITORY.parent / "shared" / "data"  # beside the checkout, if anywhere
PACKAGES = ("structgen", "torch", "transformers", "xgrammar", "numba", "numpy", "grpcio")

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]


def print_line(case: str, **fields: Value) -> None:
    """Print one JSON object on a line of its own; floats keep four significant digits."""
    print(json.dumps({"case": case, **{k: _rounded(v) for k, v in fields.items()}}), flush=True)


def print_machine(benchmark: str, **fields: Value) -> None:
    """Print the header: where and with what the figures of this run were taken."""
    print_line(
        "machine",
        benchmark=benchmark,
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        load_average=os.getloadavg()[0],
        python=platform.python_version(),
        versions={name: metadata.version(name) for name in PACKAGES},
        **fields,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between neighbours.  `values` must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def in_ms(name: str, seconds: Sequence[float]) -> dict[str, Value]:
    """Return the median as `name_ms` and the 99th percentile as `name_p99_ms`."""
    return {
        f"{name}_ms": percentile(seconds, 50) * 1e3,
        f"{name}_p99_ms": percentile(seconds, 99) * 1e3,
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _rounded(value: Value) -> Value:
    match value:
        case float():
            return float(f"{value:.4g}")
        case dict():
            return {name: _rounded(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_rounded(inner) for inner in value]
    return value
