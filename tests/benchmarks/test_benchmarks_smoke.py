"""A very small run of each benchmark, as users start them: the lines are there and make sense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

Line = dict[str, Any]


def run(script: str, *arguments: str) -> list[Line]:
    """Run a benchmark and return its lines; the first describes the machine."""
    lines = lines_of(script, "--quick", *arguments)
    assert lines[0]["case"] == "machine"
    assert {"cpu", "cores", "versions"} <= lines[0].keys()
    return lines


def lines_of(script: str, *arguments: str) -> list[Line]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def of_case(lines: list[Line], case: str) -> list[Line]:
    found = [line for line in lines if line["case"] == case]
    assert found, f"no line of {case}"
    return found


@pytest.fixture(scope="module")
def overlap() -> list[Line]:
    return run(
        "overlap.py",
        *("--threads", "1", "--attention", "torch_cpu"),
        *("--cases", "/easy/|/ambiguous/1"),
    )


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trace") / "trace.json"


@pytest.fixture(scope="module")
def serve(trace: Path) -> list[Line]:
    return run("serve.py", "--trace", str(trace))


def test_overlap_prints_a_line_a_mask_kind_and_batch(overlap: list[Line]) -> None:
    cases = [(line["masks"], line["rows"]) for line in of_case(overlap, "overlap")]
    assert cases == [("easy", 1), ("easy", 4), ("ambiguous", 1)]


def test_overlap_figures_fit_together(overlap: list[Line]) -> None:
    for line in of_case(overlap, "overlap"):
        assert line["n"] > 0
        assert 0 < line["vocab"] < 2048
        assert line["mask_ms"] > 0
        assert line["wait_ms"] >= 0
        # What is part of every step is part of the median step.
        assert line["step_ms"] >= line["overlap_forward_ms"]
        assert line["serial_step_ms"] >= max(line["forward_ms"], line["mask_ms"])
        assert line["step_p99_ms"] >= line["step_ms"]
        assert line["mask_share"] == pytest.approx(line["mask_ms"] / line["forward_ms"], rel=1e-2)
        low, high = min(line["pairs"]), max(line["pairs"])
        assert 0.99 * low <= line["serial_over_overlap"] <= 1.01 * high


def test_overlap_measures_every_switch_interval(overlap: list[Line]) -> None:
    lines = of_case(overlap, "switch_interval")
    assert [line["interval_ms"] for line in lines] == [5.0, 0.5, 0.1]
    assert all(line["step_ms"] >= line["forward_ms"] > 0 for line in lines)


def test_serve_prints_both_modes_and_their_ratio_for_each_concurrency(serve: list[Line]) -> None:
    kinds = [(line["case"], line["concurrency"]) for line in serve[1:]]
    assert kinds == [(case, c) for c in (1, 2) for case in ("serve", "serve", "ratio")]


def test_serve_figures_fit_together(serve: list[Line]) -> None:
    modes = of_case(serve, "serve")
    for line in modes:
        assert line["n"] == 4
        assert line["tokens_s"] >= line["requests_s"] > 0
        assert 0 < line["ttft_ms_p50"] <= line["ttft_ms_p95"]
        assert 0 < line["tpot_ms_p50"] <= line["tpot_ms_p95"]
        if line["mode"] == "unconstrained":
            assert line["tokens_p50"] == 8
        else:
            assert 0 <= line["complete"] <= line.get("valid", 1) <= 1
    for ratio, with_it, without in zip(
        of_case(serve, "ratio"), modes[::2], modes[1::2], strict=True
    ):
        assert ratio["tokens_s"] == pytest.approx(with_it["tokens_s"] / without["tokens_s"], 1e-2)


@pytest.mark.usefixtures("serve")
def test_a_trace_tells_of_the_steps_and_draws_them(trace: Path, tmp_path: Path) -> None:
    picture = tmp_path / "steps.svg"
    lines = lines_of("timeline.py", str(trace), "--svg", str(picture))
    spans = {(line["track"].split(":")[0], line["name"]) for line in of_case(lines, "span")}
    assert {("engine", name) for name in ("schedule", "forward", "masks", "sample")} <= spans
    assert {("engine", "send"), ("front end", "decode"), ("front end", "outputs")} <= spans
    for line in of_case(lines, "steps"):
        assert 0 < line["gap_share"] < 1
        assert 0 <= line["hidden_share"] <= 1
        assert min(line["gap_ms"], line["forward_ms"], line["sample_ms"]) > 0
    boxes = ElementTree.parse(picture).getroot().iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(boxes)) > 10


def test_what_the_host_does_is_measured_by_stage() -> None:
    lines = of_case(run("host.py"), "host")
    assert [line["mode"] for line in lines] == ["free", "constrained"]
    for line in lines:
        assert line["row_steps"] > 0
        assert line["total_us"] >= max(line["loop_us"], line["front_us"]) > 0
        assert 0 < line["messages"] < 2
        stages = [line[f"{name}_us"] for name in ("encode", "decode", "outputs", "protobuf")]
        assert min(stages) > 0


def test_complete_answers_of_the_built_in_workload_are_valid(tmp_path: Path) -> None:
    lines = run("serve.py", "--validate", "60", "--workload", str(tmp_path / "no"))
    assert lines[0]["workload"] == "built-in"
    for line in of_case(lines, "validate"):
        assert line["requests"] == 32
        assert line["complete_and_valid"] == line["complete"] == 32 - len(line["others"])
    closed, marked = of_case(lines, "validate")
    assert (closed["truncation"], closed["complete"]) == ("close", 32)
    assert (marked["truncation"], marked["closed_by_budget"]) == ("mark", 0)


def test_start_prints_seconds_and_memory() -> None:
    lines = run("start.py")
    (start,), (memory,) = of_case(lines, "start"), of_case(lines, "memory")
    assert 0 < start["ready_s"] == start["ready_s_runs"][0]
    assert 0 < memory["ready_mb"] <= memory["peak_mb"]
    sizes = [size for _, size in memory["processes"]]
    assert sum(sizes) == pytest.approx(memory["peak_mb"], abs=len(sizes))
    assert memory["answers"] == 4
    assert 0 <= memory["complete"] <= 1


def test_scale_prints_a_line_a_case_and_how_each_length_grows() -> None:
    lines = run("scale.py")
    cases = [(line["clients"], line["shared"]) for line in of_case(lines, "scale")]
    assert cases == [(1, False), (1, True), (4, True)]  # four whole prompts are beyond the budget
    assert [line["clients"] for line in of_case(lines, "left_out")] == [[4]]
    for line in of_case(lines, "scale"):
        assert line["tokens_s"] == pytest.approx(4 * line["requests_s"], rel=1e-2)
        assert 0 < line["ttft_ms_p50"] <= line["ttft_ms_p99"]
        assert line["gap_ms_p50"] <= line["gap_ms_p99"]
        assert line["memory_mb"] > 0
    (growth,) = of_case(lines, "growth")
    assert (growth["clients"], growth["shared"]) == ([1, 4], True)
    assert growth["seconds"] == growth["worst"]


def write_suite(folder: Path) -> Path:
    """Write a folder as of the official suite, of draft 7, with one that no library takes."""
    groups = [
        {
            "description": "the draft is known by the folder: array items, hidden siblings",
            "schema": {
                "definitions": {"s": {"type": "string"}},
                "items": [{"type": "null"}, {"$ref": "#/definitions/s", "maxLength": 1}],
            },
            "tests": [
                {"description": "", "data": [None, "ab"], "valid": True},
                {"description": "", "data": [1], "valid": False},
            ],
        },
        {
            "description": "a number may be written without its fraction",
            "schema": {"const": {"b": 2, "a": 1}},
            "tests": [
                {"description": "", "data": {"b": 2.0, "a": 1}, "valid": True},
                {"description": "", "data": {"a": 1, "b": 2}, "valid": True},
            ],
        },
        {"description": "refused", "schema": {"uniqueItems": True}, "tests": []},
    ]
    inner = folder / "tests" / "draft7"
    inner.mkdir(parents=True)
    (inner / "groups.json").write_text(json.dumps(groups))
    (inner / "format.json").write_text(json.dumps([{"schema": {"type": "nosuch"}, "tests": []}]))
    return inner


def test_conformance_counts_what_becomes_of_a_folder_of_the_official_suite(tmp_path: Path) -> None:
    folder = write_suite(tmp_path)
    lines = run("conformance.py", "--cases", str(folder), "--configurations", "auto", "--show")
    (line,) = of_case(lines, "conformance")
    counts = ["schemas", "served", "valid", "valid_accepted", "order_only"]
    assert [line[name] for name in counts] == [3, 2, 3, 2, 1]
    assert (line["invalid"], line["invalid_accepted"]) == (1, 0)
    assert line["refused_by"] == {"uniqueItems": 1}
    assert line["endings"] == {}
    notable = sorted(line["what"] for line in of_case(lines, "notable"))
    assert notable[1] == "valid order only: groups 1"
    assert notable[0].startswith("refused: groups 2")


def test_a_mixture_is_measured_with_every_row_under_a_mask(tmp_path: Path) -> None:
    (line,) = of_case(run("mixture.py", "--schemas", str(tmp_path / "no")), "mixture")
    assert (line["rows"], line["steps"]) == (2, 20)
    assert 0 <= line["wait_share_mean"] <= line["wait_share_p999"] < 1
    assert 0 < line["forward_ms"] < line["step_ms"]


def test_cold_schemas_are_measured_in_pairs(tmp_path: Path) -> None:
    (line,) = of_case(run("cold.py", "--schemas", str(tmp_path / "no")), "cold")
    assert (line["n"], line["refused"]) == (4, 0)
    assert line["compile_ms"] > 0
    assert line["ratio"] > 0


def test_jumping_takes_fewer_forwards() -> None:
    lines = run("jump.py")
    by_mode = {line["mode"]: line for line in of_case(lines, "jump")}
    off, draft, commit = (by_mode[mode] for mode in ("off", "draft", "commit"))
    assert off["forced"] == off["drafted"] == by_mode["free"]["drafted"] == 0
    assert commit["forced"] > 0.1
    assert 0 < draft["accepted"] <= draft["drafted"]
    assert max(commit["forwards_per_token"], draft["forwards_per_token"]) < 1
    assert {"commit+drafts", "free+drafts"} <= by_mode.keys()
    assert of_case(lines, "jump_ratio")


def test_streams_are_measured_beside_hostile_inputs_and_beside_new_schemas(tmp_path: Path) -> None:
    lines = run("hostile.py", "--schemas", str(tmp_path / "no"))
    streams = of_case(lines, "streams")
    beside = [line["beside"] for line in streams]
    assert beside == ["nothing", "hostile", "nothing", "plain", "nothing", "schemas"]
    for alone, loaded in zip(streams[::2], streams[1::2], strict=True):
        assert 0 < alone["gap_ms"] <= alone["gap_p99_ms"] <= alone["gap_max_ms"]
        ratio = loaded["gap_p99_ms"] / alone["gap_p99_ms"]
        assert loaded["ratio"] == pytest.approx(ratio, rel=1e-2)
    (hostile,) = of_case(lines, "hostile")
    assert sum(hostile["answers"].values()) == hostile["n"] > 3
    assert hostile["engine_growth_mb"] < 512
    (schemas,) = of_case(lines, "schemas")
    assert schemas["answers"] == {"OK": 4}


def test_quality_compares_each_type_with_float32() -> None:
    lines = of_case(run("quality.py"), "quality")
    assert [(line["type"], line["text"]) for line in lines] == [
        (name, text) for name in ("float32", "bfloat16", "int8") for text in ("prose", "prompts")
    ]
    for line in lines:
        assert line["n"] > 100
        assert line["perplexity_ratio"] == pytest.approx(1, abs=0.1)
        assert 0.7 < line["agreement"] <= 1
    assert [line["agreement"] for line in lines[:2]] == [1, 1]
