"""The engine's own process: `python -m structgen.engine.process FOLDER CONFIG`.

    input thread    zmq PULL, decode      ->  core.inbox
    loop thread     core.step()           ->  outbox       (the main thread)
    output thread   outbox, encode        ->  zmq PUSH

FOLDER holds the two sockets, bound by the front end; CONFIG is an EngineConfig as JSON.  Standard
input is a life line: it is never written to, and its end means that the front end is gone.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import queue
import shutil
import signal
import sys
import threading
import traceback
from functools import partial
from pathlib import Path

import msgspec
import zmq

from structgen import logs, messages, trace
from structgen.config import EngineConfig
from structgen.engine.build import build_core, find_model, fork_template
from structgen.engine.core import EngineCore
from structgen.engine.endpoints import INPUT_SOCKET, OUTPUT_SOCKET, endpoint
from structgen.errors import StructgenError
from structgen.garbage import look_seldom
from structgen.messages import Fatal, Found, FromEngine, Outputs, Ready, Shutdown
from structgen.trace import OFF, Trace

log = logs.get(__name__)

# How long a step may still take after the front end is gone before the process ends by force.
LAST_STEP_S = 10.0
LINGER_MS = 2000

# How long a thread in Python keeps the interpreter from the others.  A forward asks for it at every
# operator, so with the usual 5 ms one busy thread beside it made steps of 10 ms last a second.
SWITCH_INTERVAL_S = 0.0005

# Device files, in /dev, of what triton compiles for: NVIDIA's, AMD's, and either's under Windows.
ACCELERATORS = ("nvidia[0-9]*", "kfd", "dxg")


class EngineProcess:
    """Runs a core until told to stop, until its front end is gone, or until it breaks."""

    def __init__(self, folder: Path, config: EngineConfig) -> None:
        self._folder = folder
        self._config = config
        self._context = zmq.Context()
        self._outbox: queue.SimpleQueue[FromEngine | None] = queue.SimpleQueue()
        self._trace: Trace = OFF
        self._output = threading.Thread(target=self._send_outputs, name="output")

    def run(self) -> int:
        """Return the process's exit code."""
        try:
            return self._serve()
        except StructgenError as error:
            self._outbox.put(Fatal(error.message))
            return 1
        except BaseException as error:
            log.error("engine died", exc_info=True)
            self._outbox.put(Fatal(f"{type(error).__name__}: {error}", traceback.format_exc()))
            return 1
        finally:
            self._outbox.put(None)
            self._start_sending()
            self._output.join()
            self._trace.close()

    def _serve(self) -> int:
        model = find_model(self._config)
        template = fork_template(self._config)  # from here on, other threads may run
        self._trace = trace.join(self._config.trace, "engine")
        self._start_sending()
        self._outbox.put(Found(str(model.folder)))
        core, info = build_core(
            self._config,
            model,
            template,
            self._trace,
            seconds_per_output=self._config.seconds_per_output,
        )
        look_seldom()  # to look through a model takes a quarter of a second
        _return_freed_memory()
        threading.Thread(target=self._receive, args=(core,), name="input", daemon=True).start()
        self._outbox.put(Ready(info))
        core.say = lambda outputs: self._say(Outputs(outputs))
        news = Outputs([])
        while core.running:
            # What a step has to say is said while the device is at the next one.
            outputs = core.step(meanwhile=partial(self._say, news))
            news = Outputs(outputs, core.take_checked())
        self._say(news)
        core.close()
        return 0

    def _say(self, news: Outputs) -> None:
        if news.outputs or news.checked:
            self._outbox.put(news)

    def _start_sending(self) -> None:
        """Idempotent."""
        if self._output.ident is None:
            self._output.start()

    def _send_outputs(self) -> None:
        socket = self._context.socket(zmq.PUSH)
        socket.linger = LINGER_MS
        socket.sndhwm = 0  # never block here: the front end bounds what is under way
        socket.connect(endpoint(self._folder, OUTPUT_SOCKET))
        while (message := self._outbox.get()) is not None:
            with self._trace.span("encode"):
                data = messages.encode(message)
            with self._trace.span("send", bytes=len(data)):
                socket.send(data)
        socket.close()

    def _receive(self, core: EngineCore) -> None:
        try:
            self._receive_inputs(core)
        except BaseException:  # nobody would hear anything more
            log.error("the input thread broke", exc_info=True)
            os._exit(1)

    def _receive_inputs(self, core: EngineCore) -> None:
        socket = self._context.socket(zmq.PULL)
        socket.rcvhwm = 0
        socket.connect(endpoint(self._folder, INPUT_SOCKET))
        life_line = sys.stdin.fileno()
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(life_line, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if socket in ready:
                with self._trace.span("receive"):
                    core.inbox.put(messages.decode_to_engine(socket.recv()))
            if life_line in ready and not os.read(life_line, 1):
                self._front_end_is_gone(core)
                return

    def _front_end_is_gone(self, core: EngineCore) -> None:
        core.inbox.put(Shutdown())
        force = threading.Timer(LAST_STEP_S, os._exit, (1,))
        force.daemon = True
        force.start()


def _return_freed_memory() -> None:
    """Give the system back what loading the model took for a while, hundreds of megabytes of it."""
    with contextlib.suppress(AttributeError, OSError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def _leave_out_triton(config: EngineConfig) -> None:
    """Keep torch from importing a compiler that a CPU has no use for, and that takes 70 MB."""
    devices = (name for pattern in ACCELERATORS for name in Path("/dev").glob(pattern))
    if config.device == "cpu" or (config.device == "auto" and next(devices, None) is None):
        sys.modules["triton"] = None  # type: ignore[assignment]  # as if it was not installed


def main() -> int:
    gc.disable()  # what importing makes is there to stay, and looking for garbage in it takes 1 s
    folder = Path(sys.argv[1])
    config = msgspec.json.decode(sys.argv[2], type=EngineConfig)
    # An interrupt at the terminal is for the front end, which drains and then stops this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logs.configure(config.log_level)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _leave_out_triton(config)
    threading.current_thread().name = "loop"
    try:
        return EngineProcess(folder, config).run()
    finally:
        # The front end removes it as well, unless it was killed.
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # Not sys.exit: threads of native libraries must not delay or hang the end.
    code = main()
    sys.stderr.flush()
    os._exit(code)
