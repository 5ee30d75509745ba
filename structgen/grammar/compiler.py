"""Compiling constraints off the loop: a pool, a bounded cache, one compile per constraint.

Loop thread only, except for `_work`, which runs in the pool and touches nothing but the workshop.
However many requests ask for a constraint, it is compiled once; each is told through `post`, which
must be safe to call from any thread.  A refusal is remembered like a success; what may go better
another time is not.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from structgen.constraints import Backend, Constraint
from structgen.errors import InternalError, LimitExceeded, StructgenError
from structgen.grammar.base import field_of
from structgen.grammar.choosing import Chosen
from structgen.grammar.workshop import Workshop
from structgen.messages import ConstraintInfo

ENTRY_BYTES = 512  # of the cache, beside the constraint and what was made of it


class Compiled(msgspec.Struct, frozen=True):
    """The outcome of one compile: exactly one of `chosen` and `error` is set.

    alias: the constraint that names the library which AUTO has chosen, and so comes to the same.
    """

    constraint: Constraint
    chosen: Chosen | None = None
    error: Exception | None = None
    seconds: float = 0.0

    size_bytes: int = ENTRY_BYTES
    alias: Constraint | None = None

    @property
    def lasting(self) -> bool:
        """Whether another try would come to the same."""
        failed_for_good = isinstance(self.error, StructgenError) and not self.error.retryable
        return self.chosen is not None or failed_for_good

    def require(self) -> Chosen:
        """Return what was compiled.  Raises StructgenError: why nothing was."""
        if self.chosen is not None:
            return self.chosen
        if isinstance(self.error, StructgenError):
            raise self.error
        raise InternalError(f"compiling the constraint failed: {self.error}")

    def info(self, constraint: Constraint, *, cached: bool) -> ConstraintInfo:
        """Tell about it to whoever asked for `constraint`.  Raises as `require`."""
        chosen = self.require()
        return ConstraintInfo(
            backend=chosen.backend.name,
            compile_s=self.seconds,
            cached=cached,
            key=constraint.key(),
            keywords=chosen.keywords,
        )


class Compiler:
    """post(compiled): hand an outcome to the loop thread, which then calls `land`.

    max_pending: constraints that may be under way, waiting for a thread included.
    """

    def __init__(
        self,
        workshop: Workshop,
        post: Callable[[Compiled], None],
        *,
        threads: int,
        max_bytes: int,
        max_entries: int,
        max_pending: int,
    ) -> None:
        self._workshop = workshop
        self._post = post
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._max_pending = max_pending
        self._cache: OrderedDict[Constraint, Compiled] = OrderedDict()
        self._cache_bytes = 0
        self._aliases: dict[Constraint, Constraint] = {}  # what is in the cache by another name
        self._in_flight: dict[Constraint, Future[None]] = {}

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def cache_bytes(self) -> int:
        return self._cache_bytes

    def get(self, constraint: Constraint) -> Compiled | None:
        """Return a finished outcome, marking it as used."""
        name = constraint if constraint in self._cache else self._aliases.get(constraint)
        if name is None:
            return None
        self._cache.move_to_end(name)
        return self._cache[name]

    def start(self, constraint: Constraint) -> None:
        """Compile in the pool unless that is under way.

        Raises LimitExceeded: as much as is allowed is under way.
        """
        if constraint in self._in_flight:
            return
        if len(self._in_flight) >= self._max_pending:
            raise LimitExceeded(
                f"at most {self._max_pending} constraints may wait to be compiled (compile_queue)",
                field=field_of(constraint),
            )
        self._in_flight[constraint] = self._pool.submit(self._work, constraint)

    def cancel(self, constraint: Constraint) -> None:
        """Drop a compile that nobody waits for any more, if it has not begun."""
        future = self._in_flight.get(constraint)
        if future is not None and future.cancel():
            del self._in_flight[constraint]

    def land(self, compiled: Compiled) -> None:
        """Take an outcome back from `post` and keep it, evicting the least recently used."""
        del self._in_flight[compiled.constraint]
        if compiled.lasting:
            self._cache[compiled.constraint] = compiled
            self._cache_bytes += compiled.size_bytes
            if compiled.alias is not None:
                self._aliases[compiled.alias] = compiled.constraint
        while len(self._cache) > self._max_entries or self._cache_bytes > self._max_bytes:
            _, evicted = self._cache.popitem(last=False)
            self._cache_bytes -= evicted.size_bytes
            if evicted.alias is not None:
                del self._aliases[evicted.alias]

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._workshop.close()

    def _work(self, constraint: Constraint) -> None:
        started = time.perf_counter()
        size = ENTRY_BYTES + len(msgspec.msgpack.encode(constraint))
        try:
            chosen = self._workshop.compile(constraint)
        except Exception as error:  # whatever a library throws is this constraint's misfortune
            compiled = Compiled(constraint, error=error, size_bytes=size)
        else:
            size += chosen.grammar.size_bytes
            compiled = Compiled(
                constraint, chosen, size_bytes=size, alias=_alias(constraint, chosen)
            )
        seconds = time.perf_counter() - started
        self._post(msgspec.structs.replace(compiled, seconds=seconds))


def _alias(constraint: Constraint, chosen: Chosen) -> Constraint | None:
    if constraint.backend is not Backend.AUTO:
        return None
    name = next((name for name in Backend if name == chosen.backend.name), Backend.AUTO)
    return msgspec.structs.replace(constraint, backend=name)
