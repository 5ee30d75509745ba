"""The processes in which strangers' constraints are tried.

    engine ──control──► template ──fork──► worker ◄──jobs── engine

The template has the libraries, from the engine that it was forked off or by importing them if it
was started as `python -m MODULE FD`, and builds them once over the vocabulary.  Then it does what
it is told over its socket: fork a worker, which takes seconds less than starting one, or say how
one ended.  A worker does one job after another until its socket closes, or a job is the end of it:
its time limit is a signal that kills, since nothing else stops a native loop; its memory limit
makes allocations fail; a stack that overflows is its own.  Nothing here has a second thread, so
that forking is sound.  Both end when the engine does, because their sockets close; a worker in the
midst of a job, at its time limit at the latest.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import traceback
from typing import NoReturn, assert_never

import msgspec

from structgen.errors import ConstraintTooLarge, to_wire
from structgen.grammar import BACKENDS, frames, jobs, load_backend
from structgen.grammar.base import Vocabulary
from structgen.grammar.choosing import Backends

MAX_CONTROL_BYTES = 4096
MAX_WRITTEN_BYTES = 64 * 1024  # by libraries to the standard error, during one job
MAX_LAST_WORDS = 500  # characters
EXIT_OUT_OF_MEMORY = 3

# While it has just begun, or takes turns.
NICENESS = 5


class Limits(msgspec.Struct, frozen=True, array_like=True):
    """Of one job: seconds of the processor, and bytes beyond what the template has."""

    time_s: float
    memory_bytes: int


class _Control(msgspec.Struct, frozen=True, array_like=True, tag=True):
    pass


class Open(_Control, frozen=True):
    """Build the libraries; the file that comes along is a vocabulary.  Answered by Opened."""

    limits: Limits


class Opened(_Control, frozen=True):
    pass


class Fork(_Control, frozen=True):
    """Start a worker on the socket that comes along.  Answered by Forked."""


class Forked(_Control, frozen=True):
    pid: int


class Reap(_Control, frozen=True):
    """Wait for a worker that is ending.  Answered by Ended."""

    pid: int


class Ended(_Control, frozen=True):
    """exit_code: negative is the signal that killed it.  last_words: what its library wrote."""

    exit_code: int
    last_words: str = ""


ToTemplate = Open | Fork | Reap
FromTemplate = Opened | Forked | Ended


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says to a job.  last: it ends now, having grown too much."""

    result: jobs.Result
    last: bool = False


decode_job = msgspec.msgpack.Decoder(jobs.Job).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_to_template = msgspec.msgpack.Decoder(ToTemplate).decode
decode_from_template = msgspec.msgpack.Decoder(FromTemplate).decode
decode_vocabulary = msgspec.msgpack.Decoder(Vocabulary).decode
encode = msgspec.msgpack.Encoder().encode


class Template:
    """Sole user of its end of `control`, a socket that keeps messages apart."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._backends: Backends
        self._limits: Limits
        self._written: dict[int, int] = {}  # by worker, the file where its standard error goes

    def run(self) -> None:
        """Obey until the engine's end closes."""
        gc.enable()  # while an engine starts, it is off
        for name in BACKENDS:
            load_backend(name)
        while True:
            message, files, _, _ = socket.recv_fds(self._control, MAX_CONTROL_BYTES, 1)
            if not message:
                return
            self._control.send(encode(self._obey(decode_to_template(message), files)))

    def _obey(self, message: ToTemplate, files: list[int]) -> FromTemplate:
        match message:
            case Open(limits):
                self._open(limits, *files)
                return Opened()
            case Fork():
                return Forked(self._fork(*files))
            case Reap(pid):
                return self._reap(pid)
            case _:
                assert_never(message)

    def _open(self, limits: Limits, file: int) -> None:
        self._limits = limits
        with open(file, "rb") as vocabulary:
            self._backends = Backends(decode_vocabulary(vocabulary.read()))
        for name in BACKENDS:
            self._backends.get(name)
        _ = self._backends.spelling, self._backends.closer
        gc.collect()
        gc.freeze()  # what workers do not touch stays shared with them

    def _fork(self, connection: int) -> int:
        written = os.memfd_create("stderr")
        pid = os.fork()
        if pid == 0:
            self._control.close()
            # Libraries write warnings and the traces of panics there, at a client's bidding.
            os.dup2(written, sys.stderr.fileno())
            _be_worker(connection, self._backends, self._limits)
        os.close(connection)
        self._written[pid] = written
        return pid

    def _reap(self, pid: int) -> Ended:
        _, status = os.waitpid(pid, 0)
        written = self._written.pop(pid)
        text = os.pread(written, MAX_WRITTEN_BYTES, 0).decode(errors="replace")
        os.close(written)
        return Ended(os.waitstatus_to_exitcode(status), text[-MAX_LAST_WORDS:])


class Worker:
    def __init__(self, connection: socket.socket, backends: Backends, limits: Limits) -> None:
        self._connection = connection
        self._backends = backends
        self._limits = limits
        self._at_birth = _mapped_bytes()

    def run(self) -> None:
        """Do jobs until the engine's end closes, or it is time for a new worker."""
        while (message := frames.receive(self._connection)) is not None:
            reply = self._do(decode_job(message))
            frames.send(self._connection, encode(reply))
            if reply.last:
                return

    def _do(self, job: jobs.Job) -> Reply:
        os.ftruncate(sys.stderr.fileno(), 0)
        resource.setrlimit(resource.RLIMIT_AS, (self._room(), resource.RLIM_INFINITY))
        signal.setitimer(signal.ITIMER_PROF, self._limits.time_s)
        try:
            result = jobs.perform(job, self._backends)
        except MemoryError:
            return Reply(out_of_memory(job, self._limits), last=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        # What it has kept is room that the next job would lack.
        grown = _mapped_bytes() - self._at_birth
        return Reply(result, last=grown > self._limits.memory_bytes // 4)

    def _room(self) -> int:
        return self._at_birth + self._limits.memory_bytes


def out_of_memory(job: jobs.Job, limits: Limits) -> jobs.Refused:
    error = ConstraintTooLarge(
        f"{jobs.name_of(job)} takes more than compile_memory_bytes, {limits.memory_bytes} bytes",
        field=jobs.field_of_job(job),
    )
    return jobs.Refused(to_wire(error))


def _be_worker(connection: int, backends: Backends, limits: Limits) -> NoReturn:
    code = 1
    try:
        os.nice(NICENESS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_WRITTEN_BYTES,) * 2)
        Worker(socket.socket(fileno=connection), backends, limits).run()
        code = 0
    except MemoryError:
        code = EXIT_OUT_OF_MEMORY
    except OSError:  # the engine is gone
        code = 0
    finally:
        os._exit(code)


def _mapped_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def be_template(control: socket.socket) -> NoReturn:
    """Serve the engine at the other end, and end when it does."""
    # An interrupt at the terminal is for the front end, which stops the engine, and that us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        Template(control).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # Not sys.exit: threads of native libraries must not delay or hang the end.
    os._exit(0)


if __name__ == "__main__":
    be_template(socket.socket(fileno=int(sys.argv[1])))
