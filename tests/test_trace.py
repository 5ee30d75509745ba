"""Spans come out as an array of the Trace Event Format, whoever recorded them."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from structgen import trace
from structgen.errors import ConfigError


def spans(file: Path) -> list[dict[str, Any]]:
    return [event for event in json.loads(file.read_text()) if event["ph"] == "X"]


def names(file: Path, kind: str) -> list[str]:
    events = json.loads(file.read_text())
    return [event["args"]["name"] for event in events if event["name"] == kind]


def test_spans_lie_within_each_other_with_their_facts(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    traced = trace.begin(str(file), "engine")
    with traced.span("outer", rows=3), traced.span("inner"):
        pass
    traced.close()
    inner, outer = spans(file)
    assert (outer["name"], outer["args"]) == ("outer", {"rows": 3})
    assert outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 0.001
    assert (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])


def test_a_span_is_recorded_though_its_block_raises(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    traced = trace.begin(str(file), "engine")
    with pytest.raises(ValueError), traced.span("raises"):
        raise ValueError
    traced.close()
    assert [span["name"] for span in spans(file)] == ["raises"]


def test_what_is_noted_later_has_its_own_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    traced = trace.begin(str(file), "engine")
    traced.note("wait", 1.5, 1.75)
    traced.close()
    (wait,) = spans(file)
    assert (wait["ts"], wait["dur"]) == (1.5e6, 0.25e6)


def test_each_thread_has_a_track_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    traced = trace.begin(str(file), "engine")

    def work() -> None:
        with traced.span("work"):
            pass

    workers = [threading.Thread(target=work, name=name) for name in ("loop", "device")]
    for worker in workers:
        worker.start()
        worker.join()
        traced.note("between", 0.0, 1.0)
    traced.close()
    assert set(names(file, "thread_name")) <= {"loop", "device", threading.current_thread().name}
    assert len(spans(file)) == 4


def test_a_process_joins_the_trace_of_another(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    front = trace.begin(str(file), "front end")
    engine = trace.join(str(file), "engine")
    for traced in (engine, front):
        with traced.span("step"):
            pass
        traced.close()
    assert names(file, "process_name") == ["front end", "engine"]
    assert len(spans(file)) == 2


def test_a_new_trace_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    for name in ("old", "new"):
        traced = trace.begin(str(file), name)
        traced.close()
        traced.close()
    assert names(file, "process_name") == ["new"]


def test_a_trace_has_a_bounded_number_of_spans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_SPANS", 10)
    file = tmp_path / "trace.json"
    traced = trace.begin(str(file), "engine")
    for index in range(20):
        traced.note(str(index), 0.0, 1.0)
    traced.close()
    assert [span["name"] for span in spans(file)] == [str(index) for index in range(10)]


def test_without_a_file_nothing_is_recorded() -> None:
    for traced in (trace.begin(None, "engine"), trace.join(None, "engine")):
        assert traced is trace.OFF
        with traced.span("step", rows=1):
            traced.note("wait", 0.0, 1.0)
        traced.close()


def test_a_trace_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the trace"):
        trace.begin(str(tmp_path / "no" / "trace.json"), "engine")
