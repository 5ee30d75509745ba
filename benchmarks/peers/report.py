"""The table, the plot and the README's section of the results, generated.

python benchmarks/peers/report.py            all three; the plot needs the group `plots`
python benchmarks/peers/report.py --no-plot
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from _results import Results

REPOSITORY = Path(__file__).resolve().parent.parent.parent
FOLDER = REPOSITORY / "benchmarks" / "results"
README = REPOSITORY / "README.md"
BEGIN = "<!-- what follows is written by benchmarks/peers/report.py -->"
END = "<!-- that was it -->"
MAIN = "compact"
SETTINGS = {
    "compact": "no optional blanks, prefix caching off",
    "loose": "blanks at will, prefix caching off",
    "cached": "no optional blanks, prompts cached",
}
NONE = "–"
WIDTH = 100  # of the text

Cell = Callable[[Results, str, int], str]


# ---- cells


def free_tokens_s(results: Results, engine: str, concurrency: int) -> str:
    return _cell(results.medians(engine, MAIN, "free", concurrency).get("tokens_s"), ".0f")


def valid_s(results: Results, engine: str, concurrency: int) -> str:
    return _cell(results.medians(engine, MAIN, "json", concurrency).get("valid_s"), ".2f")


def valid_share(results: Results, engine: str, concurrency: int) -> str:
    share = results.medians(engine, MAIN, "json", concurrency).get("valid")
    return _cell(None if share is None else share * 100, ".0f")


def ttft_ms(results: Results, engine: str, concurrency: int) -> str:
    return _cell(results.medians(engine, MAIN, "json", concurrency).get("ttft_ms"), ".0f")


def tpot_ms(results: Results, engine: str, concurrency: int) -> str:
    return _cell(results.medians(engine, MAIN, "json", concurrency).get("tpot_ms"), ".0f")


def constrained_ratio(results: Results, engine: str, concurrency: int) -> str:
    """Return constrained over unconstrained tokens/s."""
    free = results.medians(engine, MAIN, "free", concurrency).get("tokens_s")
    bound = results.medians(engine, MAIN, "json", concurrency).get("tokens_s")
    return _cell(bound / free if free and bound else None, ".2f")


def startup_s(results: Results, engine: str) -> str:
    return _cell(_median(results.engines[engine]["startup_s"].get(MAIN, [])), ".1f")


def memory_gb(results: Results, engine: str) -> str:
    memory = results.memory_mb(engine, MAIN)
    if not memory:
        return NONE
    return f"{memory['pss_mb'] / 1e3:.1f} ({memory['peak_rss_mb'] / 1e3:.1f})"


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _cell(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _each(cell: Cell, results: Results, engine: str) -> str:
    """Return a figure at each concurrency."""
    return " / ".join(cell(results, engine, n) for n in concurrencies(results))


# ---- texts


def concurrencies(results: Results) -> list[int]:
    return sorted({run["concurrency"] for run in results.runs if run["variant"] == MAIN})


def engines(results: Results) -> list[str]:
    """Return who has figures, in the order they were measured in."""
    return [name for name in results.engines if results.memory_mb(name, MAIN)]


def section(results: Results) -> str:
    """Return the README's section."""
    at = " / ".join(map(str, concurrencies(results)))
    rows = [
        (
            results.engines[name]["label"],
            results.engines[name]["dtype"],
            _each(free_tokens_s, results, name),
            _each(valid_s, results, name),
            _each(valid_share, results, name),
            startup_s(results, name),
            memory_gb(results, name),
        )
        for name in engines(results)
    ]
    head = (
        "",
        "weights",
        f"free tokens/s at {at}",
        f"valid answers/s at {at}",
        "valid, %",
        "start, s",
        "memory, GB",
    )
    return "\n".join([_about(results), "", *_table(head, rows)])


def _about(results: Results) -> str:
    machine, workload = results.machine, results.workload
    rounds = max((run["round"] + 1 for run in results.runs), default=0)
    text = (
        f"Beside its peers, with {' / '.join(map(str, concurrencies(results)))} clients: "
        f"SmolLM2-135M on {machine['cores']} cores of an {machine['cpu']}, "
        f"{workload['requests']} extraction requests ({workload['alone']} for one client), greedy, "
        f"{workload['free_tokens']} tokens each without a constraint, at most "
        f"{workload['max_tokens']} under a JSON schema; no prefix is cached, and no optional "
        "blanks are allowed, which suits the peers best. An answer is valid if jsonschema-rs "
        "accepts it. "
        f"Medians over {rounds} interleaved round{'s' if rounds != 1 else ''}; memory of all "
        f"processes, shared pages counted once (in brackets: the sum of their peaks). Versions and "
        f"more figures are in [benchmarks/results](benchmarks/results/peers.md), from "
        f"`benchmarks/peers/run.py`."
    )
    return textwrap.fill(text, WIDTH, break_on_hyphens=False, break_long_words=False)


def document(results: Results) -> str:
    """Return the whole report, in Markdown."""
    parts = [
        "# structgen and its peers",
        _about(results).replace("(benchmarks/results/peers.md)", "(peers.json)"),
        "![valid answers per second and tokens per second](peers.png)",
        *_facts(results),
        "## In numbers",
        "\n".join(_numbers(results)),
        "## Other settings",
        "With 8 clients under constraints, valid answers per second and their share, one round.",
        "\n".join(_settings(results)),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(results: Results) -> Iterator[str]:
    rows = []
    for name in engines(results):
        facts = results.engines[name]
        versions = ", ".join(f"{package} {v}" for package, v in facts["versions"].items())
        rows.append((facts["label"], versions, facts["dtype"], str(facts["threads"])))
    yield "\n".join(_table(("", "versions", "weights", "threads"), rows))
    for place, why in results.skipped.items():
        yield f"Not measured: {place}: {why}"


def _numbers(results: Results) -> Iterator[str]:
    cells: dict[str, Cell] = {
        "free tokens/s": free_tokens_s,
        "valid/s": valid_s,
        "valid, %": valid_share,
        "TTFT, ms": ttft_ms,
        "ms per token": tpot_ms,
        "constrained ÷ free tokens/s": constrained_ratio,
    }
    rows = [
        (
            results.engines[name]["label"],
            str(n),
            *(cell(results, name, n) for cell in cells.values()),
        )
        for n in concurrencies(results)
        for name in engines(results)
    ]
    yield from _table(("", "clients", *cells), rows)


def _settings(results: Results) -> Iterator[str]:
    rows = []
    for name in engines(results):
        row = [results.engines[name]["label"]]
        for variant in SETTINGS:
            medians = results.medians(name, variant, "json", 8)
            share = f" ({medians['valid']:.0%})" if medians else ""
            row.append(_cell(medians.get("valid_s"), ".2f") + share)
        rows.append(row)
    yield from _table(("", *SETTINGS.values()), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(cells)} |"


def with_section(readme: str, text: str) -> str:
    """Return the README with its section replaced.  Raises ValueError: it has no place for it."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no {BEGIN} ... {END}")
    return f"{before}{begin}\n{text}\n{end}{after}"


# ---- plot


def plot(results: Results, target: Path) -> None:
    """Draw both figures against the number of clients.  Raises ImportError: no matplotlib."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, places = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for axes, mode, name, title in (
        (places[0], "json", "valid_s", "valid answers per second, JSON schema"),
        (places[1], "free", "tokens_s", "tokens per second, no constraint"),
    ):
        for engine in engines(results):
            ours = engine.startswith("structgen")
            counts = concurrencies(results)
            values = [results.medians(engine, MAIN, mode, n).get(name) for n in counts]
            axes.plot(
                range(len(counts)),
                [float("nan") if value is None else value for value in values],
                marker="o",
                linewidth=2.5 if ours else 1.5,
                linestyle="-" if ours else "--",
                label=results.engines[engine]["label"],
            )
        axes.set_xticks(range(len(counts)), [str(n) for n in counts])
        axes.set(title=title, xlabel="clients", ylim=(0, None))
        axes.grid(alpha=0.3)
    places[0].legend(fontsize="small")
    figure.savefig(target, dpi=110)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write what benchmarks/results/peers.json says.")
    parser.add_argument("--no-plot", action="store_true", help="do without matplotlib")
    given = parser.parse_args(arguments)
    results = Results(FOLDER / "peers.json")
    (FOLDER / "peers.md").write_text(document(results), encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(with_section(readme, section(results)), encoding="utf-8")
    if not given.no_plot:
        plot(results, FOLDER / "peers.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
