"""Compiling constraints off the loop: a pool, a bounded cache, one compile per constraint.

Loop thread only, except for `_work`, which runs in the pool and touches nothing but the backends.
However many requests ask for a constraint, it is compiled once; each is told through `post`, which
must be safe to call from any thread.  A refusal is remembered like a success.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from structgen.constraints import Constraint
from structgen.errors import ConstraintError
from structgen.grammar.choosing import Backends, Chosen

FAILURE_BYTES = 256  # what a remembered refusal is counted as


class Compiled(msgspec.Struct, frozen=True):
    """The outcome of one compile: exactly one of `chosen` and `error` is set."""

    constraint: Constraint
    seconds: float
    chosen: Chosen | None = None
    error: Exception | None = None

    @property
    def size_bytes(self) -> int:
        return self.chosen.grammar.size_bytes if self.chosen else FAILURE_BYTES


class Compiler:
    """post(compiled): hand an outcome to the loop thread, which then calls `land`."""

    def __init__(
        self,
        backends: Backends,
        post: Callable[[Compiled], None],
        *,
        threads: int,
        max_bytes: int,
        max_entries: int,
    ) -> None:
        self._backends = backends
        self._post = post
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._cache: OrderedDict[Constraint, Compiled] = OrderedDict()
        self._cache_bytes = 0
        self._in_flight: dict[Constraint, Future[None]] = {}

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def cache_bytes(self) -> int:
        return self._cache_bytes

    def get(self, constraint: Constraint) -> Compiled | None:
        """Return a finished outcome, marking it as used."""
        compiled = self._cache.get(constraint)
        if compiled is not None:
            self._cache.move_to_end(constraint)
        return compiled

    def start(self, constraint: Constraint) -> None:
        """Compile in the pool unless that is under way."""
        if constraint not in self._in_flight:
            self._in_flight[constraint] = self._pool.submit(self._work, constraint)

    def cancel(self, constraint: Constraint) -> None:
        """Drop a compile that nobody waits for any more, if it has not begun."""
        future = self._in_flight.get(constraint)
        if future is not None and future.cancel():
            del self._in_flight[constraint]

    def land(self, compiled: Compiled) -> None:
        """Take an outcome back from `post` and keep it, evicting the least recently used."""
        del self._in_flight[compiled.constraint]
        if isinstance(compiled.error, ConstraintError) or compiled.chosen:
            self._cache[compiled.constraint] = compiled
            self._cache_bytes += compiled.size_bytes
        while len(self._cache) > self._max_entries or self._cache_bytes > self._max_bytes:
            _, evicted = self._cache.popitem(last=False)
            self._cache_bytes -= evicted.size_bytes

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, constraint: Constraint) -> None:
        started = time.perf_counter()
        chosen: Chosen | None = None
        failure: Exception | None = None
        try:
            chosen = self._backends.explored(self._backends.compile(constraint))
        except Exception as error:  # whatever a library throws is this constraint's misfortune
            failure = error
        seconds = time.perf_counter() - started
        self._post(Compiled(constraint, seconds, chosen, failure))
