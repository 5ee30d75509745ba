"""Long jobs share what the streams beside them can spare."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from structgen.grammar.turns import SLICES, Turns

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
def turns_of(processes: Sequence[Process], *, spare: int) -> Iterator[Turns]:
    turns = Turns(lambda: spare)
    with ExitStack() as all_take_turns:
        for process in processes:
            all_take_turns.enter_context(turns.taken_by(process))
        yield turns
    turns.close()


def test_where_no_processor_is_idle_one_runs_at_a_time_and_each_has_its_turn() -> None:
    running: set[Process] = set()
    processes = [Process(running) for _ in range(3)]
    with turns_of(processes, spare=0):
        for process in processes:
            assert process.has_started(times=SLICES)
        assert processes[0].has_started(times=1)
        most = {process.most for process in processes}
    assert most == {1}


def test_who_comes_late_has_a_turn_as_well() -> None:
    running: set[Process] = set()
    early, late = Process(running), Process(running)
    with turns_of([early], spare=0) as turns:
        assert early.has_started(times=SLICES + 1)
        with turns.taken_by(late):
            assert late.has_started(times=1)


def test_as_many_run_as_processors_are_idle() -> None:
    running: set[Process] = set()
    processes = [Process(running) for _ in range(3)]
    with turns_of(processes, spare=2):
        for process in processes:
            assert process.has_started(times=3)
        most = max(process.most for process in processes)
    assert most == 2


def test_who_has_taken_turns_runs_afterwards() -> None:
    running: set[Process] = set()
    processes = [Process(running) for _ in range(4)]
    with turns_of(processes[1:], spare=0) as turns:
        with turns.taken_by(processes[0]):
            pass
        assert processes[0] in running
    assert running == set(processes)
