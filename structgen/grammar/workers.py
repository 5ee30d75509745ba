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
from collections.abc import Callable
from typing import Protocol, Self

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

# Most jobs take milliseconds, and somebody waits for their first token.  One that takes longer
# gives way to the streams that run beside it: they are not to blame.
PATIENCE_S = 0.05
TEMPLATE_TIMEOUT_S = 60.0


class TemplateLost(Exception):
    """The template has ended, or does not answer."""


class WorkerLost(Exception):
    """A worker ended in the midst of a job.

    end: None if nobody knows how.  overdue: it was still there after its time limit, and was
    killed.
    """

    def __init__(self, end: Ended | None, *, overdue: bool = False) -> None:
        super().__init__(end)
        self.end = end
        self.overdue = overdue


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
        self._connection.settimeout(CLOCK_LIMIT * limits.time_s)
        # Unlike its id, this is never another's; only `end` has it reaped, so it is there still.
        self._handle = os.pidfd_open(pid)
        self._ending = threading.Lock()
        self._is_over = False
        self._end: Ended | None = None

    @property
    def alive(self) -> bool:
        """Whether it waits for a job: what it would say now is that it has ended."""
        if self._is_over:
            return False
        return not self._answers_within(0)

    def perform(self, job: Job, when_long: Callable[[], None]) -> Reply:
        """when_long: called if the job takes long, once.

        Raises WorkerLost: nothing more can be asked of it.
        """
        try:
            frames.send(self._connection, encode(job))
            if not self._answers_within(PATIENCE_S):
                when_long()
            message = frames.receive(self._connection)
        except TimeoutError:
            self.kill()
            raise WorkerLost(self.end(), overdue=True) from None
        except OSError:
            message = None
        if message is None:
            raise WorkerLost(self.end())
        reply: Reply = decode_reply(message)
        return reply

    def _answers_within(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

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
                self._end = self._template.reap(self.pid)
                os.close(self._handle)
                self._is_over = True
        return self._end
