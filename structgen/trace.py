"""Where the time of a step goes: spans of work by thread, in a file that ui.perfetto.dev opens.

    with trace.span("forward", tokens=12):
        ...

Any thread may record; it costs that thread a microsecond, as a thread of the trace's own writes the
file.  That is an array of the Trace Event Format, an event a line, which several processes append
to: one begins it, others join.  The one that began it closes the array; if it was killed, nobody
does, which viewers do not mind.  Times are those of the system's monotonic clock, the same in all
processes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import NamedTuple, Protocol

import msgspec

from structgen import logs
from structgen.errors import ConfigError

log = logs.get(__name__)

# Of one process, some 60 MB: many minutes of a busy CPU.  What comes later is not recorded.
MAX_SPANS = 500_000
WRITE_EVERY_S = 0.2


class Trace(Protocol):
    def span(self, name: str, **facts: int) -> AbstractContextManager[None]:
        """Record what the block does, on the thread that runs it.

        Not over an `await`: the spans of a thread lie beside or within each other.
        """

    def note(self, name: str, began_s: float, ended_s: float) -> None:
        """Record what this thread did between two readings of `time.perf_counter`."""

    def close(self) -> None:
        """Write what is left.  Idempotent; what is recorded later is lost."""


def begin(path: str | None, process: str) -> Trace:
    """Begin a trace, over one that is there; `path` None: record nothing.

    process: the name that the tracks of this process go under.
    Raises ConfigError: the file cannot be written.
    """
    return OFF if path is None else TraceFile(path, process, begins=True)


def join(path: str | None, process: str) -> Trace:
    """Add this process to a trace that another has begun, and closes when this one is gone."""
    return OFF if path is None else TraceFile(path, process, begins=False)


class _Off:
    """Records nothing."""

    def span(self, name: str, **facts: int) -> AbstractContextManager[None]:
        return _NOTHING

    def note(self, name: str, began_s: float, ended_s: float) -> None:
        pass

    def close(self) -> None:
        pass


_NOTHING = nullcontext()
OFF: Trace = _Off()


class _Record(NamedTuple):
    """One span.  thread: its identity.  Times in nanoseconds."""

    name: str
    thread: int
    began: int
    ended: int
    facts: dict[str, int]


class TraceFile:
    """A Trace that this process writes to a file."""

    def __init__(self, path: str, process: str, *, begins: bool) -> None:
        self._begins = begins
        self._records: deque[_Record] = deque()
        self._threads: dict[int, str] = {}  # names by identity, in the order of their tracks
        self._num_written = 0
        self._closing = threading.Event()
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  # closed by `close`
            if begins:
                self._file.truncate(0)
                self._file.write(b"[\n")
        except OSError as error:
            raise ConfigError(f"cannot write the trace {path}: {error}") from None
        self._write([_name("process_name", 0, process)])
        self._writer = threading.Thread(target=self._keep_writing, name="trace", daemon=True)
        self._writer.start()

    def span(self, name: str, **facts: int) -> AbstractContextManager[None]:
        return _Span(self, name, facts)

    def note(self, name: str, began_s: float, ended_s: float) -> None:
        self.record(name, round(began_s * 1e9), round(ended_s * 1e9), {})

    def record(self, name: str, began: int, ended: int, facts: dict[str, int]) -> None:
        """Record what this thread did between two readings of `time.perf_counter_ns`."""
        thread = threading.get_ident()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        self._records.append(_Record(name, thread, began, ended, facts))

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self._writer.join()
        if self._begins:  # valid JSON has no comma before the bracket, so something must follow it
            self._file.write(_encode(_name("process_sort_index", 0, -1)) + b"\n]\n")
        self._file.close()

    def _keep_writing(self) -> None:
        """Write what is recorded until closed, or until something is amiss."""
        tracks: dict[int, int] = {}
        try:
            while not self._closing.wait(WRITE_EVERY_S):
                self._write(self._take(tracks))
            self._write(self._take(tracks))
        except OSError as error:
            log.warning("the trace ends here", reason=str(error))

    def _take(self, tracks: dict[int, int]) -> list[_Event]:
        """Return the events of what was recorded since.  tracks: of threads, by identity."""
        events: list[_Event] = []
        for _ in range(len(self._records)):
            record = self._records.popleft()
            if self._num_written == MAX_SPANS:
                continue
            self._num_written += 1
            track = tracks.get(record.thread)
            if track is None:
                track = tracks[record.thread] = len(tracks) + 1
                events.append(_name("thread_name", track, self._threads[record.thread]))
            events.append(_event(record, track))
        return events

    def _write(self, events: Sequence[_Event]) -> None:
        # In one call: what two processes append must not be mixed within a line.
        self._file.write(b"".join([_encode(event) + b",\n" for event in events]))


class _Span:
    """Records the time between its entry and its exit."""

    __slots__ = ("_began", "_facts", "_name", "_trace")

    def __init__(self, trace: TraceFile, name: str, facts: dict[str, int]) -> None:
        self._trace = trace
        self._name = name
        self._facts = facts

    def __enter__(self) -> None:
        self._began = time.perf_counter_ns()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._trace.record(self._name, self._began, time.perf_counter_ns(), self._facts)


_Event = dict[str, object]
_encode = msgspec.json.encode


def _event(record: _Record, track: int) -> _Event:
    """Return a complete event; the format counts in microseconds."""
    return {
        "name": record.name,
        "ph": "X",
        "ts": record.began / 1e3,
        "dur": (record.ended - record.began) / 1e3,
        "pid": os.getpid(),
        "tid": track,
        "args": record.facts,
    }


def _name(kind: str, track: int, value: str | int) -> _Event:
    """Return the event that names a process or a thread, or puts it in its place."""
    key = "sort_index" if isinstance(value, int) else "name"
    return {"name": kind, "ph": "M", "pid": os.getpid(), "tid": track, "args": {key: value}}
