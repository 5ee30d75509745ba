"""grpc.health.v1: "" says that the process lives, the service's name that it takes requests.

Unlike the servicer of grpcio-health-checking, watches end when the server does; they would hold up
its stop for the whole grace period.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]  # not generic at run time

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class HealthService(health_pb2_grpc.HealthServicer):
    """Belongs to one event loop.  A watch sees the latest status, not each one between."""

    def __init__(self, ready_names: tuple[str, ...]) -> None:
        """ready_names: the services whose status follows `set_ready`."""
        self._ready_names = ready_names
        self._statuses: dict[str, int] = {"": HealthCheckResponse.SERVING}
        self._changed = asyncio.Event()
        self._closed = False
        self.set_ready(False)

    def set_ready(self, ready: bool) -> None:
        for name in self._ready_names:
            self._statuses[name] = (
                HealthCheckResponse.SERVING if ready else HealthCheckResponse.NOT_SERVING
            )
        self._announce()

    def close(self) -> None:
        """Tell every watch that nothing is served any more, and end it."""
        for name in self._statuses:
            self._statuses[name] = HealthCheckResponse.NOT_SERVING
        self._closed = True
        self._announce()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        last = None
        while True:
            changed = self._changed  # of the next change, so none between is missed
            status = self._statuses.get(request.service, HealthCheckResponse.SERVICE_UNKNOWN)
            if status != last:
                await context.write(HealthCheckResponse(status=status))
                last = status
            if self._closed:
                return
            if changed is self._changed:
                await changed.wait()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
