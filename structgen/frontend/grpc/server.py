"""The gRPC server: ports, options, readiness, and an end that loses nobody's answer.

    start ──► alive ──model answered──► ready ──SIGTERM──► draining ──► closed
                           ▲   │ engine died
                           └───┘ restarted

Alive, the port is open and health answers; requests are refused UNAVAILABLE until ready, again
while the engine is gone, and for good once draining.  A second signal ends the draining at once.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine

import grpc
from grpc_health.v1 import health_pb2_grpc

from structgen import logs
from structgen.config import EngineConfig, ServerConfig
from structgen.errors import ConfigError
from structgen.frontend.async_llm import AsyncLLM
from structgen.frontend.grpc import health, reflection
from structgen.frontend.grpc._pb import (
    constraint_service_pb2_grpc,
    generation_service_pb2_grpc,
    model_service_pb2_grpc,
)
from structgen.frontend.grpc.services import ConstraintService, GenerationService, ModelService
from structgen.garbage import look_seldom

log = logs.get(__name__)

GENERATION = "structgen.v1.GenerationService"
CONSTRAINT = "structgen.v1.ConstraintService"
MODEL = "structgen.v1.ModelService"
SERVICES = (GENERATION, CONSTRAINT, MODEL)

# Handlers that have their answer need only to send it.
SEND_S = 1.0

# Clients may ping every 10 s, calls or no calls, which keeps proxies and NATs from dropping a long
# silent prefill; by default grpc closes the connection of one that pings more than every 5 minutes.
# The server pings too, so that the requests of a client that vanished are aborted.
KEEPALIVE = (
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)


class Server:
    """Serves an AsyncLLM, which stays its caller's to start and close."""

    def __init__(self, llm: AsyncLLM, config: ServerConfig) -> None:
        self._llm = llm
        self._config = config
        self._health = health.HealthService(SERVICES)
        self._server = grpc.aio.server(options=_options(config))
        self._add_services()

    async def start(self) -> int:
        """Open the port and return its number.  Raises ConfigError: the address cannot be bound."""
        address = _address(self._config.host, self._config.port)
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: {error}") from None
        await self._server.start()
        self._llm.on_state = self._health.set_ready
        self._health.set_ready(self._llm.ready)
        return port

    async def drain(self) -> None:
        """Refuse new requests and return when the running ones have ended, within the grace."""
        self._health.set_ready(False)
        await self._llm.drain(self._config.grace_s)
        self._health.close()
        await self._server.stop(SEND_S)

    async def close(self) -> None:
        """Close the port and every call.  Idempotent."""
        self._llm.on_state = None
        self._health.close()
        await self._server.stop(None)

    def _add_services(self) -> None:
        generation = GenerationService(self._llm, max_batch_items=self._config.max_batch_items)
        add = generation_service_pb2_grpc.add_GenerationServiceServicer_to_server
        add(generation, self._server)
        constraint_service_pb2_grpc.add_ConstraintServiceServicer_to_server(
            ConstraintService(self._llm), self._server
        )
        model_service_pb2_grpc.add_ModelServiceServicer_to_server(
            ModelService(self._llm), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.add_to_server((*SERVICES, health.SERVICE), self._server)


async def serve(engine: EngineConfig, config: ServerConfig) -> None:
    """Serve until SIGTERM or SIGINT; says `structgen ready on HOST:PORT` on stdout.

    Raises ConfigError, EngineDead: the engine cannot start, or died too often.
    """
    llm = AsyncLLM(engine, max_restarts=config.engine_restarts)
    server = Server(llm, config)
    stop, stop_now = _on_signals()
    port = await server.start()
    try:
        if await _finishes(llm.start(), unless=stop):
            address = _address(config.host, port)
            look_seldom()
            print(f"structgen ready on {address}", flush=True)
            log.info("ready", address=address, model=llm.model.name)
            await _finishes(llm.wait_closed(), unless=stop)
        log.info("draining", grace_s=config.grace_s)
        await _finishes(server.drain(), unless=stop_now)
    finally:
        await server.close()
        await llm.close()


def _on_signals() -> tuple[asyncio.Event, asyncio.Event]:
    """Return events that the first and the second of SIGTERM and SIGINT set."""
    first, second = asyncio.Event(), asyncio.Event()

    def received() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, received)
    return first, second


async def _finishes(work: Coroutine[None, None, None], *, unless: asyncio.Event) -> bool:
    """Await `work`, or cancel it once the event is set.  Raises what `work` raises."""
    task = asyncio.create_task(work)
    waiting = asyncio.create_task(unless.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    finished = task.done()
    waiting.cancel()
    task.cancel()
    await asyncio.wait((task, waiting))
    if not task.cancelled():
        task.result()
    return finished


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        *KEEPALIVE,
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        # Else a second server on the port would silently get half of the calls.
        ("grpc.so_reuseport", 0),
    ]


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
