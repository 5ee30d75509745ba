"""Constraints are tried in a process that may die over them; the next one is served anyway."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from feeding import byte_vocabulary

from structgen.constraints import Backend, Choice, Constraint, JsonSchema, Regex
from structgen.errors import (
    ConstraintError,
    ConstraintTooLarge,
    InternalError,
    LimitExceeded,
    StructgenError,
)
from structgen.grammar.choosing import Backends
from structgen.grammar.isolation import IsolatedWorkshop
from structgen.grammar.jobs import Judge, verdict_of
from structgen.grammar.worker_process import Limits
from structgen.grammar.workers import TemplateProcess
from structgen.grammar.workshop import LocalWorkshop

LIMITS = Limits(time_s=0.7, memory_bytes=256 << 20)
# Its automaton has 2**31 states.
ENDLESS = Regex("(?:a|b)*a(?:a|b){30}", backend=Backend.OUTLINES_CORE)
# Of this one 2**13, which takes some 50 ms.
LONG = Regex("(?:a|b)*a(?:a|b){12}", backend=Backend.OUTLINES_CORE)


def build(limits: Limits) -> IsolatedWorkshop:
    vocabulary = byte_vocabulary()
    template = TemplateProcess.spawn()
    template.open(vocabulary, limits)
    return IsolatedWorkshop(template, Backends(vocabulary), limits, num_workers=2)


@pytest.fixture(scope="module")
def workshop() -> Iterator[IsolatedWorkshop]:
    workshop = build(LIMITS)
    workshop.warm_up()
    yield workshop
    workshop.close()
    assert processes() == []


def processes() -> list[psutil.Process]:
    """Return the template and the workers."""
    mine = psutil.Process().children(recursive=True)
    return [one for one in mine if is_of_the_workshop(one)]


def is_of_the_workshop(process: psutil.Process) -> bool:
    try:
        return "structgen.grammar.worker_process" in process.cmdline()
    except psutil.NoSuchProcess:  # it has just ended
        return False


def templates() -> list[psutil.Process]:
    return [one for one in processes() if one.ppid() == os.getpid()]


def workers() -> list[psutil.Process]:
    return [one for one in processes() if one.ppid() != os.getpid()]


def is_one_stopped() -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):  # one has just ended
        return any(worker.status() == psutil.STATUS_STOPPED for worker in workers())
    return False


def kill(pid: int) -> None:
    """Kill a process and wait until it is dead, though perhaps not reaped."""
    handle = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([handle], [], [], 10)[0]
    os.close(handle)


def fails(workshop: IsolatedWorkshop, constraint: Constraint) -> StructgenError:
    with pytest.raises(StructgenError) as failure:
        workshop.compile(constraint)
    return failure.value


def assert_serves(workshop: IsolatedWorkshop) -> None:
    option = f"served at {time.monotonic()}"
    chosen = workshop.compile(Choice((option,)))
    matcher = chosen.grammar.new_matcher()
    for byte in option.encode():
        matcher.accept(byte)
    assert matcher.accepting


def test_what_comes_back_is_what_is_compiled_here(workshop: IsolatedWorkshop) -> None:
    schema = JsonSchema('{"allOf":[{"type":"integer"},{"minimum":3}],"title":"t"}')
    there = workshop.compile(schema)
    here = LocalWorkshop(Backends(byte_vocabulary())).compile(schema)
    assert there.recipe == here.recipe
    assert there.backend.name == "llguidance"
    assert there.grammar.size_bytes == here.grammar.size_bytes


def test_a_text_is_judged_there_as_here(workshop: IsolatedWorkshop) -> None:
    backends = Backends(byte_vocabulary())
    for backend in (Backend.LLGUIDANCE, Backend.XGRAMMAR, Backend.OUTLINES_CORE):
        recipe = workshop.compile(Regex("é?[0-9]{2}", backend=backend)).recipe
        for text in ("é12", "é1", "x"):
            job = Judge(recipe, text)
            there = verdict_of(workshop.perform(job))
            assert there == verdict_of(LocalWorkshop(backends).perform(job))
            assert (there.accepted, there.is_prefix) == (text == "é12", text == "é1")


def test_a_text_that_takes_too_long_is_said_to(workshop: IsolatedWorkshop) -> None:
    recipe = workshop.compile(Regex("[ab]*")).recipe
    with pytest.raises(LimitExceeded, match="judging the text takes more than") as caught:
        verdict_of(workshop.perform(Judge(recipe, "ab" * 130_000)))
    assert caught.value.field == "input.text"
    assert_serves(workshop)


@pytest.mark.parametrize(
    ("constraint", "kind", "field"),
    [
        (JsonSchema('{"type":"nosuch"}'), ConstraintError, "input.constraint.json_schema"),
        (Regex("("), ConstraintError, "input.constraint.regex"),
        (JsonSchema('{"multipleOf":1000003}'), ConstraintTooLarge, "input.constraint.json_schema"),
    ],
)
def test_a_refusal_crosses_with_its_kind_and_field(
    workshop: IsolatedWorkshop, constraint: Constraint, kind: type[StructgenError], field: str
) -> None:
    error = fails(workshop, constraint)
    assert type(error) is kind
    assert error.field == field
    assert_serves(workshop)


def test_a_compile_beyond_its_time_is_killed_and_may_be_tried_again(
    workshop: IsolatedWorkshop,
) -> None:
    began = time.monotonic()
    error = fails(workshop, ENDLESS)
    assert time.monotonic() - began < LIMITS.time_s + 3
    assert (type(error), error.status) == (LimitExceeded, "RESOURCE_EXHAUSTED")
    assert error.retryable
    assert "compile_time_s, 0.7 s" in error.message
    assert error.field == "input.constraint.regex"
    assert_serves(workshop)


def test_a_worker_that_cannot_end_itself_is_killed(workshop: IsolatedWorkshop) -> None:
    stopper = while_it_compiles(workshop, signal.SIGSTOP)
    error = fails(workshop, ENDLESS)
    stopper.join()
    assert re.search(r"in 1\.4 s it had 0\.\d\d s of a processor", error.message)
    assert "compile_time_s is 0.7 s" in error.message
    assert_serves(workshop)


def test_a_crash_is_said_to_be_one(workshop: IsolatedWorkshop) -> None:
    killer = while_it_compiles(workshop, signal.SIGABRT)
    error = fails(workshop, ENDLESS)
    killer.join()
    assert type(error) is InternalError
    assert "SIGABRT" in error.message
    assert_serves(workshop)


def test_a_worker_killed_from_outside_says_nothing_about_the_constraint(
    workshop: IsolatedWorkshop,
) -> None:
    killer = while_it_compiles(workshop, signal.SIGKILL)
    error = fails(workshop, ENDLESS)
    killer.join()
    assert type(error) is LimitExceeded
    assert error.retryable
    assert_serves(workshop)


def while_it_compiles(workshop: IsolatedWorkshop, signal_number: int) -> threading.Timer:
    """Send a signal to the worker that is busy in a third of its time."""

    def send() -> None:
        (busy,) = (one for one in workers() if one.status() == psutil.STATUS_RUNNING)
        busy.send_signal(signal_number)

    timer = threading.Timer(LIMITS.time_s / 3, send)
    timer.start()
    return timer


def test_one_compile_does_not_wait_for_another_that_takes_long(
    workshop: IsolatedWorkshop,
) -> None:
    slow = threading.Thread(target=fails, args=(workshop, ENDLESS))
    slow.start()
    assert_serves(workshop)
    assert slow.is_alive()
    slow.join()


def test_a_short_compile_does_not_wait_for_as_many_long_ones_as_there_are_workers(
    workshop: IsolatedWorkshop,
) -> None:
    slow = [threading.Thread(target=fails, args=(workshop, ENDLESS)) for _ in range(3)]
    for thread in slow:
        thread.start()
    assert_serves(workshop)
    assert all(thread.is_alive() for thread in slow)
    for thread in slow:
        thread.join()


def test_workers_lost_while_idle_are_replaced(workshop: IsolatedWorkshop) -> None:
    for worker in workers():
        kill(worker.pid)
    for _ in range(3):
        assert_serves(workshop)


def test_another_takes_the_place_of_a_worker_before_the_next_job_comes(
    workshop: IsolatedWorkshop,
) -> None:
    workshop.warm_up()
    old = {worker.pid for worker in workers()}
    fails(workshop, ENDLESS)
    deadline = time.monotonic() + 20
    while len(new := {worker.pid for worker in workers()}) != len(old) or new == old:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert_serves(workshop)
    assert {worker.pid for worker in workers()} == new


def test_a_lost_template_is_replaced_when_it_is_needed(workshop: IsolatedWorkshop) -> None:
    (template,) = templates()
    kill(template.pid)
    assert_serves(workshop)
    fails(workshop, ENDLESS)
    fails(workshop, ENDLESS)
    assert_serves(workshop)


def starve(workshop: IsolatedWorkshop) -> None:
    """Have a worker get no time at lowest priority; for a while, others take turns."""
    workshop.warm_up()
    for worker in workers():
        worker.suspend()
    assert_serves(workshop)


def test_a_worker_that_gets_no_time_at_lowest_priority_makes_way_for_another(
    workshop: IsolatedWorkshop,
) -> None:
    starve(workshop)
    assert_serves(workshop)


def test_a_worker_whose_job_is_over_takes_no_more_turns(workshop: IsolatedWorkshop) -> None:
    starve(workshop)
    workshop.warm_up()
    compiling = threading.Thread(target=workshop.compile, args=(LONG,))
    compiling.start()
    has_taken_turns = False
    while compiling.is_alive():  # and this process is busy, so that there is no time to spare
        has_taken_turns |= is_one_stopped()
    assert has_taken_turns
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert not is_one_stopped()


def test_memory_is_limited_and_asking_again_does_not_help() -> None:
    workshop = build(Limits(time_s=20.0, memory_bytes=32 << 20))
    errors: list[StructgenError] = []
    try:
        error = fails(workshop, ENDLESS)
        assert type(error) is ConstraintTooLarge
        assert "compile_memory_bytes, 33554432 bytes" in error.message
        assert_serves(workshop)
        # While we are at it: closing ends what is running.
        busy = threading.Thread(target=lambda: errors.append(fails(workshop, ENDLESS)))
        busy.start()
        time.sleep(0.05)
    finally:
        workshop.close()
    busy.join(5)
    assert isinstance(errors[0], LimitExceeded)
    assert isinstance(fails(workshop, Choice(("late",))), LimitExceeded)
