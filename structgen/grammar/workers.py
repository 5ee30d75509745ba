"""The processes of `worker_process`, seen from the engine."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import NamedTuple, Protocol, Self

from structgen.grammar import BACKENDS, frames, load_backend
from structgen.grammar.base import Vocabulary
from structgen.grammar.jobs import Job
from structgen.grammar.worker_process import (
    MAX_CONTROL_BYTES,
    Ended,
    Fork,
    Forked,
    FromTemplate,
    Limits,
    Open,
    Opened,
    Reap,
    Reply,
    ToTemplate,
    be_template,
    decode_from_template,
    decode_reply,
    encode,
)

STDERR = 2
# A worker ends itself at its time limit, which is of the processor.  At this many times as much of
# the clock the engine ends it, so that nobody waits long for one that others leave no time to.
CLOCK_LIMIT = 2.0

# A worker of lowest priority has what others leave over.  If that is next to nothing, because other
# programs keep all processors busy, this is when it shows.
STARVED_S = 0.5
STARVED_SHARE = 0.01  # of a processor, less than that
TEMPLATE_TIMEOUT_S = 60.0


class Overdue(NamedTuple):
    """What a job had taken."""

    clock_s: float
    processor_s: float


class TemplateLost(Exception):
    """The template has ended, or does not answer."""


class WorkerLost(Exception):
    """A worker ended in the midst of a job.

    end: None if nobody knows how.  overdue: it was killed, at its time limit by the clock.
    """

    def __init__(self, end: Ended | None, *, overdue: Overdue | None = None) -> None:
        super().__init__(end)
        self.end = end
        self.overdue = overdue


class WorkerStarved(Exception):
    """A worker of lowest priority gets no time to do its job.  It was killed."""


class _Child(Protocol):
    """A process of ours."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> object: ...

    def wait(self) -> object:
        """Wait for its end.  Idempotent."""


class _ForkedChild:
    """A child as Popen has it, that is a copy of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle: int | None = os.pidfd_open(pid)

    def kill(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def wait(self) -> None:
        if self._handle is not None:
            os.waitid(os.P_PIDFD, self._handle, os.WEXITED)
            os.close(self._handle)
            self._handle = None


class TemplateProcess:
    """Forks workers, and says how they ended.  Thread-safe."""

    def __init__(self, process: _Child, control: socket.socket) -> None:
        """`spawn` and `split_off` make one."""
        self._process = process
        self._control = control
        self._control.settimeout(TEMPLATE_TIMEOUT_S)
        self._lock = threading.Lock()
        self._opening = False

    @classmethod
    def spawn(cls) -> Self:
        """Start one; it imports the libraries (seconds) while it is not waited for."""
        ours, theirs = _control()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "structgen.grammar.worker_process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=STDERR,
                pass_fds=[theirs.fileno()],
            )
        return cls(process, ours)

    @classmethod
    def split_off(cls) -> Self:
        """Fork one off this process, whose only thread must be the caller's.

        It shares the memory of the libraries, which are imported here unless they are already.
        """
        for name in BACKENDS:
            load_backend(name)
        ours, theirs = _control()
        gc.freeze()  # a collection writes to all that it looks at, and what is written is copied
        pid = os.fork()
        if pid == 0:
            ours.close()
            _let_go_of_stdin()
            be_template(theirs)
        theirs.close()
        return cls(_ForkedChild(pid), ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, vocabulary: Vocabulary, limits: Limits) -> None:
        """Have it build the libraries, without waiting for that; once, before anything else."""
        with tempfile.TemporaryFile() as file, self._lock:
            file.write(encode(vocabulary))
            file.seek(0)
            self._send(Open(limits), file.fileno())
            self._opening = True

    def fork(self, limits: Limits) -> WorkerProcess:
        """Raises TemplateLost."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                answer = self._ask(Fork(), theirs.fileno())
            except TemplateLost:
                ours.close()
                raise
        assert isinstance(answer, Forked), answer
        return WorkerProcess(self, answer.pid, ours, limits)

    def reap(self, pid: int) -> Ended | None:
        """Wait for a worker that is ending, and say how it did; None if nobody knows."""
        try:
            answer = self._ask(Reap(pid))
        except TemplateLost:
            return None
        assert isinstance(answer, Ended), answer
        return answer

    def close(self) -> None:
        """End it, but not its workers.  Idempotent."""
        # Left alone it would end as well, but not before it has imported everything.
        self._process.kill()
        self._process.wait()
        with self._lock:
            self._control.close()

    def _ask(self, message: ToTemplate, *files: int) -> FromTemplate:
        with self._lock:
            if self._opening:
                opened = self._receive()
                assert isinstance(opened, Opened), opened
                self._opening = False
            self._send(message, *files)
            return self._receive()

    def _send(self, message: ToTemplate, *files: int) -> None:
        try:
            socket.send_fds(self._control, [encode(message)], files)
        except OSError as error:
            raise TemplateLost(str(error)) from None

    def _receive(self) -> FromTemplate:
        try:
            message = self._control.recv(MAX_CONTROL_BYTES)
        except OSError as error:  # TimeoutError among them
            raise TemplateLost(str(error)) from None
        if not message:
            raise TemplateLost("it has ended")
        answer: FromTemplate = decode_from_template(message)
        return answer


def _control() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _let_go_of_stdin() -> None:
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())


class WorkerProcess:
    """Does one job at a time, on whichever thread brings it."""

    def __init__(
        self, template: TemplateProcess, pid: int, connection: socket.socket, limits: Limits
    ) -> None:
        self.pid = pid
        self._template = template
        self._connection = connection
        self._clock_limit_s = CLOCK_LIMIT * limits.time_s
        self._began = 0.0  # by the clock, and of the time of the processor that it has had
        self._began_processor_s = 0.0
        # Unlike its id, this is never another's; only `end` has it reaped, so it is there still.
        self._handle = os.pidfd_open(pid)
        self.is_lowest = False
        self._ending = threading.Lock()
        self._is_over = False
        self._end: Ended | None = None

    @property
    def alive(self) -> bool:
        """Whether it waits for a job: what it would say now is that it has ended."""
        if self._is_over:
            return False
        return not self.answers_within(0)

    def begin(self, job: Job) -> None:
        """Have it do a job.  Raises WorkerLost: nothing more can be asked of it."""
        self._began, self._began_processor_s = time.monotonic(), self._processor_s()
        self._connection.settimeout(self._clock_limit_s)
        try:
            frames.send(self._connection, encode(job))
        except OSError:
            raise self._loss() from None

    def answers_within(self, seconds: float) -> bool:
        """Whether `finish` need not wait, be it that nothing will come."""
        poll = select.poll()
        try:
            poll.register(self._connection, select.POLLIN)
        except ValueError:  # it is closed
            return True
        return bool(poll.poll(seconds * 1000))

    def finish(self) -> Reply:
        """Wait for the answer.  Raises WorkerLost: nothing more can be asked of it."""
        left_s = self._clock_limit_s - (time.monotonic() - self._began)
        if not self.answers_within(max(0.0, left_s)):
            had_s = self._processor_s() - self._began_processor_s
            self.kill()
            raise WorkerLost(None, overdue=Overdue(self._clock_limit_s, had_s))
        try:
            message = frames.receive(self._connection)
        except OSError:
            message = None
        if message is None:
            raise self._loss()
        reply: Reply = decode_reply(message)
        return reply

    def lower(self) -> bool:
        """Give it what others leave over and no more, from now on; False: the system refuses.

        It is not only nice: any thread that wakes up takes the processor from it at once.  There is
        no way back.
        """
        with self._ending:
            if self._is_over:
                return True
            try:
                os.sched_setscheduler(self.pid, os.SCHED_IDLE, os.sched_param(0))
            except ProcessLookupError:
                return True
            except OSError:
                return False
        self.is_lowest = True
        return True

    def require_time(self) -> None:
        """Wait for the answer for a while.  Raises WorkerStarved."""
        had_s = self._processor_s()
        if self.answers_within(STARVED_S):
            return
        if self._processor_s() - had_s < STARVED_SHARE * STARVED_S:
            self.kill()
            raise WorkerStarved

    def _processor_s(self) -> float:
        """Return the time of the processor that it has had."""
        try:
            return time.clock_gettime(~self.pid << 3 | 2)  # as clock_getcpuclockid(3) has it
        except OSError:  # it has ended
            return 0.0

    def _loss(self) -> WorkerLost:
        return WorkerLost(self.end())

    def pause(self) -> None:
        """Have it stop where it is."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with self._ending, contextlib.suppress(ProcessLookupError):
            if not self._is_over:
                signal.pidfd_send_signal(self._handle, number)

    def end(self) -> Ended | None:
        """Have it end, unless it has; say how it did, if that is known.  Idempotent."""
        with self._ending:
            if not self._is_over:
                self._connection.close()
                select.select([self._handle], [], [])  # the template must not wait for it
                self._end = self._template.reap(self.pid)
                os.close(self._handle)
                self._is_over = True
        return self._end
