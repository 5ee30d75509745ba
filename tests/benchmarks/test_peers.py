"""The harness that measures structgen beside other engines, without any of those."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "peers"))

import _tasks
import report
import run
from _process import Worker, WorkerError, start
from _results import Results

REPOSITORY = Path(__file__).resolve().parents[2]
PEERS = REPOSITORY / "benchmarks" / "peers"
FAKE = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
ITEMS = [{"ids": [1], "messages": [], "schema": SCHEMA, "ebnf": ""}] * 2


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    one, facts = load(tmp_path, settings={"age": 3})
    assert facts["dtype"] == "2 bits"
    assert facts["startup_s"] > 0
    yield one
    one.close()


def load(folder: Path, model: str = "m", **fields: Any) -> tuple[Worker, dict[str, Any]]:
    return start(FAKE, folder / "log", {}, model=model, threads=2, **fields)


def case(mode: str = "json", **changes: Any) -> run.Case:
    fields = {"engine": "vllm", "variant": "compact", "concurrency": 8, "round": 0}
    return run.Case(**{**fields, "mode": mode, **changes})


def entry(round_: int, seconds: float, **changes: Any) -> dict[str, Any]:
    """A pass of two requests, one of them valid."""
    entry = {"engine": "vllm", "variant": "compact", "mode": "json", "concurrency": 8}
    entry |= {"round": round_, "requests": 2, "seconds": seconds, "tokens": 100, "num_valid": 1}
    entry |= {"ttft_ms": 5.0, "tpot_ms": None, "pss_mb": 10, "peak_rss_mb": 20}
    return {**entry, **changes}


# ---- workers


def test_a_pass_is_judged_and_timed(worker: Worker) -> None:
    found = run.measure(worker, case(), ITEMS, 11)
    assert (found["requests"], found["tokens"], found["num_valid"]) == (2, 22, 2)
    assert found["ttft_ms"] == 100.0
    assert found["tpot_ms"] == 20.0
    assert found["peak_rss_mb"] > 1


def test_free_answers_are_not_judged(worker: Worker) -> None:
    assert run.measure(worker, case("free"), ITEMS, 5)["num_valid"] is None


def test_a_restarted_engine_has_forgotten_its_answers(worker: Worker) -> None:
    worker.ask("restart")
    assert run.measure(worker, case(), ITEMS, 11)["num_valid"] == 0


def test_a_worker_that_is_held_does_not_run_until_it_is_resumed(worker: Worker) -> None:
    (pid,) = children(os.getpid())
    worker.hold()
    while state(pid) != "T":  # a signal takes a moment; the test's time limit ends a vain wait
        time.sleep(0.01)
    worker.resume()
    assert run.measure(worker, case(), ITEMS, 1)["requests"] == 2


def test_what_an_engine_prints_is_not_an_answer(worker: Worker) -> None:
    assert "noise on stdout" in worker.log.read_text()


def test_an_engine_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="no such weights"):
        load(tmp_path, model="broken", settings={})
    assert not children(os.getpid())


def test_an_engine_that_dies_is_an_error_with_its_code(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="ended with 3 during 'run'"):
        worker.ask("run", mode="die", concurrency=1, max_tokens=1, items=[])


def children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# ---- judging, order, medians


@pytest.mark.parametrize(
    ("text", "valid"),
    [('{"age": 3}', True), ('{"age": "3"}', False), ('{"age": 3', False), ("", False)],
)
def test_an_answer_is_valid_if_it_is_json_that_obeys_the_schema(text: str, valid: bool) -> None:
    assert _tasks.is_valid({"index": 1, "text": text}, ITEMS) is valid


def test_engines_take_turns_at_each_concurrency_and_side_settings_run_once() -> None:
    cases = list(run.plan(["structgen", "transformers"], ["compact", "cached"], [1, 8], 2))
    order = [(c.round, c.concurrency, c.engine, c.mode) for c in cases if c.variant == "compact"]
    assert order[:4] == [
        (0, 1, "structgen", "free"),
        (0, 1, "structgen", "json"),
        (0, 1, "transformers", "free"),
        (0, 1, "transformers", "json"),
    ]
    assert order == sorted(order)
    assert len(order) == 16
    side = [c for c in cases if c.variant != "compact"]
    assert [(c.engine, c.variant, c.mode) for c in side] == [("structgen", "cached", "json")]


def test_figures_are_medians_over_the_rounds(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.runs = [entry(0, 10.0), entry(1, 1.0), entry(2, 2.0, num_valid=2)]
    medians = results.medians("vllm", "compact", "json", 8)
    assert medians["tokens_s"] == 50.0
    assert medians["valid_s"] == 1.0
    assert medians["valid"] == 0.5
    assert medians["n"] == 3
    assert "tpot_ms" not in medians
    assert results.medians("vllm", "compact", "json", 32) == {}


def test_results_that_were_saved_are_not_measured_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.runs.append(entry(0, 10.0))
    results.save()
    again = Results(tmp_path / "results.json")
    known = {"engine": "vllm", "variant": "compact", "mode": "json", "concurrency": 8}
    assert again.has(**known, round=0)
    assert not again.has(**known, round=1)
    again.forget(["vllm"])
    assert not again.has(**known, round=0)


# ---- the commands


def test_without_a_workload_the_command_says_so_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.main(["--workload", str(tmp_path / "none.json")]) == 0
    assert "there is no workload" in capsys.readouterr().out


def test_a_tiny_model_is_measured_and_a_peer_that_is_not_installed_is_skipped(
    tmp_path: Path,
) -> None:
    results = Results(measured(tmp_path))
    modes = [(one["engine"], one["mode"], one["requests"]) for one in results.runs]
    assert modes == [("structgen", "free", 1), ("structgen", "json", 1)]
    assert results.runs[0]["tokens"] == 4
    assert results.runs[1]["num_valid"] == 1
    assert results.engines["structgen"]["threads"] == 1
    assert "install.py" in results.skipped["llamacpp"]
    assert "structgen (Python)" in report.document(results)


def measured(folder: Path) -> Path:
    """Run the command on two requests, with no peer installed."""
    messages = [{"role": "user", "content": "How old is Anna?"}]
    requests = [{"id": "a", "kind": "age", "messages": messages}]
    schema = SCHEMA | {"additionalProperties": False}
    workload = folder / "workload.json"
    workload.write_text(json.dumps({"schemas": {"age": schema}, "requests": requests}))
    results = folder / "results.json"
    options = ["--engines", "structgen", "llamacpp", "--variants", "compact", "--rounds", "1"]
    options += ["--concurrency", "1", "--threads", "1", "--free-tokens", "4", "--max-tokens", "24"]
    options += ["--model", "random:llama", "--workload", str(workload), "--results", str(results)]
    subprocess.run(
        [sys.executable, PEERS / "run.py", *options],
        check=True,
        timeout=200,
        env=os.environ | {"OMP_NUM_THREADS": "1", "STRUCTGEN_HOME": str(folder / "home")},
    )
    return results


def test_the_readme_says_what_the_results_say() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    results = Results(report.FOLDER / "peers.json")
    assert report.engines(results)
    assert report.with_section(text, report.section(results)) == text


def test_the_report_says_what_the_results_say() -> None:
    text = (report.FOLDER / "peers.md").read_text(encoding="utf-8")
    assert report.document(Results(report.FOLDER / "peers.json")) == text
