"""The front end's way to the engine: start, ready, send, receive, close.

`ProcessClient` runs the engine in its own process and talks to it over sockets; `InprocClient` is
the same core without sockets, stepped by its caller.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio

from structgen import logs, messages
from structgen.config import EngineConfig
from structgen.engine.endpoints import INPUT_SOCKET, OUTPUT_SOCKET, endpoint
from structgen.errors import ConfigError, EngineDead, StructgenError
from structgen.messages import (
    Abort,
    Check,
    EngineOutput,
    EngineRequest,
    Fatal,
    Found,
    FromEngine,
    ModelInfo,
    Outputs,
    Ready,
    Shutdown,
    ToEngine,
)
from structgen.trace import OFF, Trace

log = logs.get(__name__)

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
STDERR = 2


class EngineClient(Protocol):
    """What the asynchronous front end needs of an engine.  Used on one event loop."""

    async def start(self) -> Path:
        """Start the engine; again after EngineDead to restart it.

        Returns the model's folder, which the engine goes on to load.
        Raises ConfigError: it can never start like this.  EngineDead: it died while starting.
        """

    async def ready(self) -> ModelInfo:
        """Wait until the engine that was started serves.  Raises what `start` raises."""

    def send(self, message: EngineRequest | Check | Abort) -> None:
        """Hand over a message without blocking.  Raises EngineDead: there is no engine."""

    async def receive(self) -> Outputs:
        """Wait for what a step has to say.  Raises EngineDead: the engine is gone."""

    async def close(self) -> None:
        """Stop the engine; harmless when it is not running."""


class ProcessClient:
    """An engine in its own process (engine/process.py)."""

    def __init__(self, config: EngineConfig, trace: Trace = OFF) -> None:
        """trace: of the calling process; the engine joins it, as the config says."""
        self._config = config
        self._trace = trace
        self._engine: _Engine | None = None

    @property
    def pid(self) -> int | None:
        return self._engine.process.pid if self._engine else None

    async def start(self) -> Path:
        await self.close()
        self._engine = await _Engine.spawn(self._config, self._trace)
        message = await self._engine.receive()
        if isinstance(message, Found):
            return Path(message.folder)
        raise await self._start_failed(message)

    async def ready(self) -> ModelInfo:
        engine = self._require_engine()
        message = await engine.receive()
        if isinstance(message, Ready):
            await engine.connected()
            return message.model
        raise await self._start_failed(message)

    async def _start_failed(self, message: FromEngine | int) -> StructgenError:
        await self.close()
        if isinstance(message, Fatal):
            # It said so in good order: the configuration is at fault, a restart would not help.
            return ConfigError(message.message)
        return EngineDead(f"the engine ended while starting{_exit(message)}")

    def send(self, message: EngineRequest | Check | Abort) -> None:
        self._require_engine().send(message)

    async def receive(self) -> Outputs:
        message = await self._require_engine().receive()
        if isinstance(message, Outputs):
            return message
        if isinstance(message, Fatal):
            raise EngineDead(f"the engine died: {message.message}")
        raise EngineDead(f"the engine died{_exit(message)}")

    def _require_engine(self) -> _Engine:
        if self._engine is None:
            raise EngineDead("the engine is not running")
        return self._engine

    async def close(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            await engine.close()


class _Engine:
    """One incarnation of the process: its sockets, their folder, and its end."""

    def __init__(self, config: EngineConfig, trace: Trace) -> None:
        self._trace = trace
        self._folder = tempfile.TemporaryDirectory(prefix="structgen-", ignore_cleanup_errors=True)
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PUSH)
        self._input.sndhwm = 0
        self._input.linger = 0
        self._output = zmq.asyncio.Context(self._context).socket(zmq.PULL)
        self._output.rcvhwm = 0
        folder = Path(self._folder.name)
        self._input.bind(endpoint(folder, INPUT_SOCKET))
        self._output.bind(endpoint(folder, OUTPUT_SOCKET))
        self._arguments = (
            *("-m", "structgen.engine.process"),
            str(folder),
            msgspec.json.encode(config).decode(),
        )
        self.process: asyncio.subprocess.Process
        self._ended: asyncio.Task[int]
        self._next: asyncio.Task[bytes] | None = None

    @classmethod
    async def spawn(cls, config: EngineConfig, trace: Trace) -> _Engine:
        engine = cls(config, trace)
        engine.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *engine._arguments,
            stdin=asyncio.subprocess.PIPE,  # the life line: closes when this process ends
            stdout=STDERR,
            start_new_session=True,  # an interrupt at the terminal is ours to handle
        )
        engine._ended = asyncio.create_task(engine.process.wait())
        return engine

    def send(self, message: ToEngine) -> None:
        try:
            self._input.send(messages.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineDead("the engine does not answer") from None

    async def connected(self) -> None:
        """Wait until the process has connected to the socket that `send` writes to."""
        # Nobody else touches the socket before `start` returns.
        wait_ms = int(CONNECT_TIMEOUT_S * 1000)
        if not await asyncio.to_thread(self._input.poll, wait_ms, zmq.POLLOUT):
            raise EngineDead("the engine does not listen")

    async def receive(self) -> FromEngine | int:
        """Wait for a message, or for the process to end: then return its exit code."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._output.recv())
        await asyncio.wait({self._next, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if not self._next.done():
            # What it said last may still be on its way from the socket.
            await asyncio.wait({self._next}, timeout=0.1)
        if self._next.done():
            data, self._next = self._next.result(), None
            with self._trace.span("decode", bytes=len(data)):
                message: FromEngine = messages.decode_from_engine(data)
            return message
        return self._ended.result()

    async def close(self) -> None:
        if not self._ended.done():
            await self._stop()
        if self._next is not None:
            self._next.cancel()
        self._input.close()
        self._output.close()
        self._context.term()
        self._folder.cleanup()

    async def _stop(self) -> None:
        """Ask it to stop; end it by force if it does not."""
        try:
            self.send(Shutdown())
        except EngineDead:
            self.process.terminate()
        assert self.process.stdin is not None
        self.process.stdin.close()
        done, _ = await asyncio.wait({self._ended}, timeout=CLOSE_TIMEOUT_S)
        if not done:
            log.warning("engine did not stop, killing it", pid=self.process.pid)
            self.process.kill()
            await self._ended


def _exit(code: object) -> str:
    """Say how the process ended."""
    if isinstance(code, int) and code < 0:
        return f" by signal {-code}"
    return f" with code {code}"


class InprocClient:
    """The engine in this process, stepped by its caller, from one thread."""

    def __init__(self, config: EngineConfig, trace: Trace = OFF) -> None:
        # Imported here: only who runs a model pays for importing one.
        from structgen.engine.build import build_core, find_model, spawn_template

        found, template = find_model(config), spawn_template(config)
        self.core, self.model = build_core(config, found, template, trace)

    def send(self, message: EngineRequest | Abort) -> None:
        self.core.inbox.put(message)

    def step(self) -> list[EngineOutput]:
        """Run one step, or wait for work if there is none; the list may be empty."""
        return self.core.step()

    def close(self) -> None:
        self.core.close()
