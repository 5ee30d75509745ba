"""Workers that wait for jobs: who is taken, and who is made anew."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from structgen.grammar.crew import Crew, Place
from structgen.grammar.workers import WorkerProcess


class Works:
    """Makes workers that are nothing but names, and keeps those that are dismissed."""

    def __init__(self) -> None:
        self.names = itertools.count()
        self.made = threading.Semaphore(0)
        self.dismissed: list[WorkerProcess] = []

    def make(self) -> WorkerProcess:
        self.made.release()
        return cast(WorkerProcess, f"worker {next(self.names)}")


@pytest.fixture
def works() -> Works:
    return Works()


@pytest.fixture
def crew(works: Works) -> Iterator[Crew]:
    crew = Crew(2, works.make, works.dismissed.append)
    yield crew
    crew.close()


def test_who_came_back_last_is_taken_first(crew: Crew) -> None:
    crew.fill()
    first, second = Place(crew), Place(crew)
    workers = [first.take(), second.take()]
    assert set(workers) == {"worker 0", "worker 1"}
    second.leave(workers[1])
    first.leave(workers[0])
    assert Place(crew).take() == workers[0]


def test_a_job_that_comes_before_there_is_a_worker_is_given_none(crew: Crew) -> None:
    assert Place(crew).take() is None


def test_workers_are_made_for_jobs_to_come_once_none_is_under_way(crew: Crew, works: Works) -> None:
    crew.fill()
    for _ in range(2):
        assert works.made.acquire(timeout=0)
    places = [Place(crew), Place(crew)]
    for place in places:
        place.take()
    for place in places:
        place.leave(None)
    for _ in range(2):
        assert works.made.acquire(timeout=20)
    assert not works.dismissed


def test_a_job_that_steps_aside_leaves_its_place_to_another(crew: Crew) -> None:
    aside = threading.BoundedSemaphore(1)
    places = [Place(crew, aside) for _ in range(3)]
    places[0].take()
    places[1].take()
    places[0].step_aside()
    places[2].take()  # else it waits for ever
    assert places[0].is_aside
    for place in places:
        place.leave(None)
    assert aside.acquire(blocking=False)


def test_who_comes_back_to_a_full_crew_is_dismissed(crew: Crew, works: Works) -> None:
    crew.fill()
    place = Place(crew, threading.BoundedSemaphore(1))
    worker = place.take()
    place.leave(worker)
    crew.take()
    crew.end_job(worker)
    extra = works.make()
    crew.take()
    crew.end_job(worker)
    crew.end_job(extra)
    assert works.dismissed == [extra]
