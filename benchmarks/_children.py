"""Work done in a forked child, under limits of CPU time, wall time and memory."""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable, Generator
from enum import StrEnum
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class Ending(StrEnum):
    DONE = "done"
    TIME_OUT = "time_out"
    MEMORY = "memory"
    CRASH = "crash"


class Limits(msgspec.Struct, frozen=True):
    """Of one stage.  wall_s: for when the machine is busy."""

    cpu_s: int = 10
    wall_s: float = 40.0
    memory_bytes: int = 4 * 2**30


class Outcome(msgspec.Struct, Generic[T], frozen=True):
    """results: of the stages that were completed."""

    ending: Ending
    results: list[T]


def run(stages: Callable[[], Generator[T, None, None]], limits: Limits) -> Outcome[T]:
    """Run a generator in a child; each value that it yields ends a stage with fresh limits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _be_child(stages, writing, limits)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        results, in_time = _collect(pipe.fileno(), limits.wall_s)
    if not in_time:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return Outcome(_ending(status) if in_time else Ending.TIME_OUT, results)


def _be_child(stages: Callable[[], Generator[T, None, None]], writing: int, limits: Limits) -> None:
    code = 1
    with contextlib.suppress(BaseException):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries write their warnings there
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        memory = _mapped_bytes() + limits.memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        code = _run_stages(stages, writing, limits)
    os._exit(code)


def _run_stages(
    stages: Callable[[], Generator[T, None, None]], writing: int, limits: Limits
) -> int:
    _allow(limits.cpu_s)
    try:
        for result in stages():
            data = pickle.dumps(result)
            os.write(writing, len(data).to_bytes(4) + data)
            _allow(limits.cpu_s)
    except MemoryError:
        return 3
    return 0


def _allow(cpu_s: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = int(used.ru_utime + used.ru_stime) + 1 + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (total, resource.RLIM_INFINITY))


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _collect(pipe: int, wall_s: float) -> tuple[list[T], bool]:
    results: list[T] = []
    buffer = b""
    deadline = time.monotonic() + wall_s
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return results, False
        data = os.read(pipe, 1 << 16)
        if not data:
            return results, True
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + int.from_bytes(buffer[:4]):
            size = int.from_bytes(buffer[:4])
            results.append(pickle.loads(buffer[4 : 4 + size]))
            buffer = buffer[4 + size :]
            deadline = time.monotonic() + wall_s


def _ending(status: int) -> Ending:
    if os.WIFSIGNALED(status):
        is_cpu = os.WTERMSIG(status) == signal.SIGXCPU
        return Ending.TIME_OUT if is_cpu else Ending.CRASH
    return {0: Ending.DONE, 3: Ending.MEMORY}.get(os.WEXITSTATUS(status), Ending.CRASH)
