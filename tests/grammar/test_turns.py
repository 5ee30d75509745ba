"""Long jobs share what the streams beside them can spare."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from structgen.grammar.turns import Turns

PATIENCE_S = 20.0


class Process:
    """Notes when it is paused and goes on, and how many of its kind run."""

    def __init__(self, running: set[Process]) -> None:
        self.most = 0
        self.starts = threading.Semaphore(0)
        self._running = running

    def pause(self) -> None:
        self._running.discard(self)

    def go_on(self) -> None:
        self._running.add(self)
        self.most = max(self.most, len(self._running))
        self.starts.release()

    def has_started(self, times: int) -> bool:
        return all(self.starts.acquire(timeout=PATIENCE_S) for _ in range(times))


@contextmanager
def turns(spare: int) -> Iterator[Turns]:
    turns = Turns(lambda: spare)
    yield turns
    turns.close()


def test_where_no_processor_is_idle_one_runs_at_a_time_and_each_has_its_turn() -> None:
    running: set[Process] = set()
    processes = [Process(running) for _ in range(3)]
    with turns(spare=0) as some:
        for process in processes:
            some.join(process)
        for process in processes:
            assert process.has_started(times=3)
    assert {process.most for process in processes} == {1}


def test_as_many_run_as_processors_are_idle() -> None:
    running: set[Process] = set()
    processes = [Process(running) for _ in range(3)]
    with turns(spare=2) as some:
        for process in processes:
            some.join(process)
        for process in processes:
            assert process.has_started(times=3)
    assert max(process.most for process in processes) == 2


def test_who_leaves_goes_on() -> None:
    running: set[Process] = set()
    processes = [Process(running) for _ in range(4)]
    with turns(spare=0) as some:
        for process in processes:
            some.join(process)
        some.leave(processes[0])
        assert processes[0] in running
