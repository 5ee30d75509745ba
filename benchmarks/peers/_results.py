"""The results file, and the medians of what is in it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Run = dict[str, Any]
CASE = ("engine", "variant", "mode", "concurrency", "round")
FIGURES = ("tokens_s", "requests_s", "valid_s", "valid", "ttft_ms", "tpot_ms")


class Results:
    """machine, workload: where and what.  engines: facts by name.  runs: one entry a pass.

    skipped: why an engine has no runs.  Saved after every change, so that a run can be resumed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self.machine: dict[str, Any] = data.get("machine", {})
        self.workload: dict[str, Any] = data.get("workload", {})
        self.engines: dict[str, dict[str, Any]] = data.get("engines", {})
        self.skipped: dict[str, str] = data.get("skipped", {})
        self.runs: list[Run] = data.get("runs", [])

    def forget(self, engines: Sequence[str]) -> None:
        """Drop everything about these engines."""
        self.runs = [run for run in self.runs if run["engine"] not in engines]
        for name in engines:
            self.engines.pop(name, None)

    def retry(self, engines: Sequence[str]) -> None:
        """Do not skip these engines, or variants of them, for what was once in the way."""
        places = self.skipped.items()
        self.skipped = {place: why for place, why in places if place.split()[0] not in engines}

    def has(self, **case: Any) -> bool:
        return any(all(run[name] == case[name] for name in CASE) for run in self.runs)

    def started(self, engine: str, variant: str, facts: dict[str, Any]) -> None:
        """Note the facts of an engine, and how long it took to start."""
        startup_s = round(facts.pop("startup_s"), 2)
        known = self.engines.setdefault(engine, {})
        known.update(facts)
        known.setdefault("startup_s", {}).setdefault(variant, []).append(startup_s)

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fields = ("machine", "workload", "engines", "skipped", "runs")
        data = {name: getattr(self, name) for name in fields}
        draft = self._path.with_suffix(".part")
        draft.write_text(_dumped(data), encoding="utf-8")
        draft.rename(self._path)

    def medians(self, engine: str, variant: str, mode: str, concurrency: int) -> dict[str, float]:
        """Return the median of each figure over the rounds, and their number `n`; {} of none."""
        key = {"engine": engine, "variant": variant, "mode": mode, "concurrency": concurrency}
        found = [run for run in self.runs if all(run[name] == key[name] for name in key)]
        figures = [of_run(run) for run in found]
        medians = {
            name: statistics.median(values)
            for name in FIGURES
            if (values := [one[name] for one in figures if one.get(name) is not None])
        }
        return medians | {"n": len(found)} if found else {}

    def memory_mb(self, engine: str, variant: str) -> dict[str, float]:
        """Return the largest `pss_mb` and `peak_rss_mb` that were seen; {} of no runs."""
        found = [r for r in self.runs if (r["engine"], r["variant"]) == (engine, variant)]
        return {
            name: max(run[name] for run in found) for name in ("pss_mb", "peak_rss_mb") if found
        }


def of_run(run: Run) -> dict[str, float]:
    """Return the rates of one pass, with what else is averaged over passes."""
    rates = {
        "tokens_s": run["tokens"] / run["seconds"],
        "requests_s": run["requests"] / run["seconds"],
    }
    if run["mode"] == "json":
        rates |= {
            "valid_s": run["num_valid"] / run["seconds"],
            "valid": run["num_valid"] / run["requests"],
        }
    return rates | {name: run[name] for name in ("ttft_ms", "tpot_ms") if run[name] is not None}


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of those that are known, with four digits; None of none."""
    known = [value for value in values if value is not None]
    return float(f"{statistics.median(known):.4g}") if known else None


def _dumped(data: dict[str, Any]) -> str:
    """Write one run a line: a diff of two results files is then one of runs."""
    runs = ",\n".join("  " + json.dumps(run) for run in data["runs"])
    head = json.dumps({**data, "runs": []}, indent=1).removesuffix("[]\n}")
    return f"{head}[\n{runs}\n ]\n}}\n"
