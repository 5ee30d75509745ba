"""Workers that wait for a job, and the places where jobs are done.

A new worker takes some milliseconds to make, and as many more over its first job, in which it
copies what it shares with the template as it writes to it.  Where workers are missing, they are
made when nothing has been done for a while: jobs under way, and the streams beside them, have no
use for more work then.  A job that comes too early for that has its worker made for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from structgen.grammar.workers import WorkerProcess

QUIET_S = 0.1


class Crew:
    """make: returns a new worker that is ready, or None: there is no way to have one.

    dismiss: has a worker end.  Thread-safe.
    """

    def __init__(
        self,
        size: int,
        make: Callable[[], WorkerProcess | None],
        dismiss: Callable[[WorkerProcess], None],
    ) -> None:
        self._size = size
        self._make = make
        self._dismiss = dismiss
        self._places = threading.Semaphore(size)
        self._changed = threading.Condition()  # of what follows
        self._ready: list[WorkerProcess] = []
        self._num_jobs = 0
        self._is_wanted = False  # jobs have been done since it last failed to make a worker
        self._closed = False
        threading.Thread(target=self._run, name="crew", daemon=True).start()

    def fill(self) -> None:
        """Wait until all workers are there, and at their places."""
        places = [Place(self) for _ in range(self._size)]
        workers = [place.take() for place in places]
        for place, worker in zip(places, workers, strict=True):
            place.leave(worker or self._make())

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self) -> WorkerProcess | None:
        """Wait for a place and begin a job; return a worker for it, unless none is ready.

        That is the one that came back last: it has most of what it needs in the caches.
        """
        self._places.acquire()
        with self._changed:
            self._num_jobs += 1
            self._changed.notify()
            return self._ready.pop() if self._ready else None

    def release_place(self) -> None:
        self._places.release()

    def end_job(self, worker: WorkerProcess | None) -> None:
        """worker: that is ready for another one."""
        with self._changed:
            self._num_jobs -= 1
            self._is_wanted = True
            self._add(worker)
            self._changed.notify()

    def _add(self, worker: WorkerProcess | None) -> None:
        if worker is not None and len(self._ready) < self._size:
            self._ready.append(worker)
        elif worker is not None:
            self._dismiss(worker)

    def _run(self) -> None:
        while self._wait_until_wanted():
            worker = self._make()
            with self._changed:
                self._is_wanted = worker is not None
                self._add(worker)

    def _wait_until_wanted(self) -> bool:
        """Return whether a worker is to be made; False: never again."""
        with self._changed:
            while not self._closed:
                self._changed.wait_for(lambda: self._lacks_one or self._closed)
                if not self._changed.wait_for(lambda: self._num_jobs or self._closed, QUIET_S):
                    return True
            return False

    @property
    def _lacks_one(self) -> bool:
        return self._is_wanted and not self._num_jobs and len(self._ready) < self._size


class Place:
    """Where one job is done: another's once it steps aside, or else when it is over."""

    def __init__(self, crew: Crew, aside: threading.BoundedSemaphore | None = None) -> None:
        """aside: how many more jobs may step aside."""
        self.is_aside = False
        self._crew = crew
        self._aside = aside

    def take(self) -> WorkerProcess | None:
        """Wait for the place; return a worker if one is ready."""
        return self._crew.take()

    def step_aside(self) -> None:
        """Let a short job have the place, unless too many have stepped aside.  Idempotent."""
        if self._aside is not None and not self.is_aside and self._aside.acquire(blocking=False):
            self.is_aside = True
            self._crew.release_place()

    def leave(self, worker: WorkerProcess | None) -> None:
        """worker: for the next job."""
        self._crew.end_job(worker)
        if self.is_aside and self._aside is not None:
            self._aside.release()
        else:
            self._crew.release_place()
