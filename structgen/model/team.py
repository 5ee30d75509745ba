"""A team of threads: those that torch's own operators run on.

A pool of our own (numba has three kinds) would fight with torch's for the cores: the threads of
either go on spinning for a while when their work is done, just when the other's have something to
do.
"""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from structgen import logs
from structgen.model.compiled import chain

log = logs.get(__name__)

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Team:
    """Runs compiled functions on up to `size` threads at once.

    barrier: address of a C function that has each thread of a running team wait for the others.
    thread_number: address of one that returns which of the team the calling thread is, from 0.
    """

    def __init__(self, threads: int) -> None:
        """threads: as many as torch has; OpenMP rebuilds its pool when the number changes."""
        self.size, self.barrier, self.thread_number = 1, 0, 0
        if threads > 1:
            self._find_openmp(threads)

    def run(self, task: int, argument: int, size: int) -> None:
        """Call the C function at `task` with an address, on so many threads, and wait for all."""
        if size == 1:
            _TASK(task)(argument)
        else:
            self._parallel(task, argument, size, 0)

    def run_all(self, calls: npt.NDArray[np.void]) -> None:
        """Make calls one after the other.

        calls: CALL records (compiled/chain.py), each for no more threads than the team has.
        """
        size = int(calls["num_threads"].max())
        assert size <= self.size, f"{size} threads wanted of {self.size}"
        record = np.zeros(1, chain.CHAIN)
        record["num_calls"], record["num_threads"] = len(calls), size
        record["calls"] = calls.ctypes.data
        record["barrier"], record["thread_number"] = self.barrier, self.thread_number
        self.run(chain.compile_task(), record.ctypes.data, size)

    def _find_openmp(self, threads: int) -> None:
        try:
            library = ctypes.CDLL(None)  # GNU OpenMP, loaded by torch
            parallel, barrier = library.GOMP_parallel, library.GOMP_barrier
            thread_number = library.omp_get_thread_num
        except (AttributeError, OSError, TypeError):
            log.warning("no GNU OpenMP in this process, kernels run on one thread")
            return
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        self._parallel = parallel
        self.size = threads
        self.barrier = ctypes.cast(barrier, ctypes.c_void_p).value or 0
        self.thread_number = ctypes.cast(thread_number, ctypes.c_void_p).value or 0
