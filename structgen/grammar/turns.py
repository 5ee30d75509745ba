"""Long jobs take turns, so that the streams beside them lose a bounded part of the processors.

    this process is idle    as many jobs run as there are processors
    it is not               one at a time, for a slice of each round; all others are stopped

This is for jobs that what others leave over is not enough for.  Niceness alone does not do it: of
three threads on two processors, two of the forward may share one for a tenth of a second while the
nicest has the other.  Slices are short and come often, so that each step loses a little.  A turn is
many of them, enough for most jobs: by single slices, jobs that came together would all end late,
and where that is too late for one it would be for all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

ROUND_S = 0.015
SLICE_S = 0.003
SLICES = 40  # of a turn
# Of one processor, what an idle process may use.  More may be a forward that a job has squeezed on
# to one processor, which must not be taken for a processor to spare.
IDLE_USE = 0.5


class Pausable(Protocol):
    """A process with one job."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...


class Turns:
    """The processes whose jobs take long.  Thread-safe.

    count_spare: how many processors jobs may have all the time, by what has happened since it was
    last called.
    """

    def __init__(self, count_spare: Callable[[], int] | None = None) -> None:
        self._count_spare = count_spare or Load().count_spare
        self._changed = threading.Condition()  # of what follows
        self._workers: list[Pausable] = []  # whose turn it is first
        self._running: list[Pausable] = []
        self._slices = 0  # that those have had of their turn
        self._spare = 0
        self._closed = False
        threading.Thread(target=self._run, name="turns", daemon=True).start()

    @contextmanager
    def taken_by(self, worker: Pausable) -> Iterator[None]:
        """Have a worker that is busy take turns; afterwards it runs."""
        with self._changed:
            self._workers.append(worker)
            if not self._spare:
                worker.pause()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._workers.remove(worker)
                worker.go_on()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while self._wait_for_work():
            with self._changed:
                self._spare = self._count_spare()
                running = self._next(max(1, self._spare))
            if self._spare:
                time.sleep(ROUND_S)
            else:
                time.sleep(SLICE_S)
                self._pause(running)
                time.sleep(ROUND_S - SLICE_S)

    def _wait_for_work(self) -> bool:
        """Return whether there is any; False: there never will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._workers or self._closed)
            return not self._closed

    def _next(self, count: int) -> list[Pausable]:
        """Let those run whose turn it is."""
        running, waiting = self._workers[:count], self._workers[count:]
        if running != self._running:
            self._running, self._slices = running, 0
        self._slices += 1
        if self._slices == SLICES:
            self._workers, self._slices = waiting + running, 0
        for worker in waiting:
            worker.pause()
        for worker in running:
            worker.go_on()
        return running

    def _pause(self, workers: list[Pausable]) -> None:
        with self._changed:
            for worker in workers:
                if worker in self._workers:
                    worker.pause()


class Load:
    """What this process, without its children, uses of the processors."""

    def __init__(self) -> None:
        self._processors = len(os.sched_getaffinity(0))
        self._seen = time.perf_counter(), time.process_time()

    def count_spare(self) -> int:
        """Return all of them if it has been idle since the last call, else 0."""
        before, self._seen = self._seen, (time.perf_counter(), time.process_time())
        wall, used = (now - then for now, then in zip(self._seen, before, strict=True))
        return self._processors if used < IDLE_USE * wall else 0
