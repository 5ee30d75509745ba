"""The memory of the processes that a benchmark has started."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import msgspec
import psutil

PERIOD_S = 0.5


class Share(msgspec.Struct, frozen=True):
    """What one process has of the memory; pages that several share are divided among them."""

    command: str
    size_bytes: int


class Peak(msgspec.Struct):
    """The most that all had together, and who had what then."""

    size_bytes: int = 0
    shares: list[Share] = []

    def note(self) -> None:
        found = shares()
        size = sum(share.size_bytes for share in found)
        if size > self.size_bytes:
            self.size_bytes, self.shares = size, found

    def by_process(self) -> list[list[str | float]]:
        """Return command and megabytes of each process, the largest first."""
        ordered = sorted(self.shares, key=lambda share: -share.size_bytes)
        return [[share.command, in_mb(share.size_bytes)] for share in ordered]


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Peak]:
    """Give the peak of what happens inside, looked at twice a second."""
    peak = Peak()
    watching = asyncio.create_task(_watch(peak))
    try:
        yield peak
    finally:
        watching.cancel()
        await asyncio.to_thread(peak.note)


async def _watch(peak: Peak) -> None:
    while True:
        await asyncio.to_thread(peak.note)
        await asyncio.sleep(PERIOD_S)


def shares() -> list[Share]:
    """Return the proportional set sizes of all processes below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            size = process.memory_full_info().pss
            found.append(Share(" ".join(process.cmdline()[1:4])[:60], size))
    return found


def in_mb(size_bytes: int) -> float:
    return round(size_bytes / 1e6)
