"""The driver's side of a worker: start it, ask it, hold it still while others are measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

STOP_TIMEOUT_S = 5.0


class WorkerError(Exception):
    """A worker failed at a command, or ended."""


class Worker:
    """One engine in a process tree of its own.  Not measured means stopped: see `hold`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """log: what the engine prints."""
        self.log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **environment},
            )

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send a command and wait for its answer.  Raises WorkerError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended(do) from None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended(do)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"].strip())
        return answer

    def hold(self) -> None:
        """Stop the whole tree where it is: threads that spin while they wait cost others a core."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def memory(self) -> dict[str, float]:
        """Return MB of the whole tree: resident now, shared pages counted once (`pss_mb`), and the
        sum of each process's peak (`peak_rss_mb`)."""
        pids = list(_tree(self._process.pid))
        return {
            "pss_mb": sum(_kib(pid, "smaps_rollup", "Pss") for pid in pids) / 1024,
            "peak_rss_mb": sum(_kib(pid, "status", "VmHWM") for pid in pids) / 1024,
        }

    def close(self) -> None:
        """End the worker; whatever is left of its tree after a while is killed."""
        self.resume()
        pids = list(_tree(self._process.pid))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        for pid in pids[1:]:
            _send(pid, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for pid in _tree(self._process.pid):
            _send(pid, number)

    def _ended(self, do: str) -> WorkerError:
        code = self._process.wait()
        tail = self.log.read_text(errors="replace").strip().splitlines()[-5:]
        return WorkerError("\n".join([f"ended with {code} during {do!r}; it said:", *tail]))


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str], **load: Any
) -> tuple[Worker, dict[str, Any]]:
    """Start a worker and have it load.  Returns its facts, and `startup_s` from nothing to ready.

    Raises WorkerError.
    """
    began = time.perf_counter()
    worker = Worker(command, log, environment)
    try:
        facts = worker.ask("load", **load)
    except BaseException:
        worker.close()
        raise
    return worker, facts | {"startup_s": time.perf_counter() - began}


def _tree(root: int) -> Iterator[int]:
    """Yield a process and all that descend from it, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    pending = [root]
    while pending:
        pid = pending.pop(0)
        yield pid
        pending += children.get(pid, [])


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has just ended
        return None


def _kib(pid: int, file: str, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{file}").read_text().splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) if found else 0


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
