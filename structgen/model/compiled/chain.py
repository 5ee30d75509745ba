"""Calls of compiled code by all threads of a team, one after the other, without Python in between.

What a call does is over, on every thread, before the next one begins.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import functools

import numba
import numpy as np

from structgen.model.compiled import compiler, threads, vectors
from structgen.model.compiled.threads import call, call_for_number, call_with
from structgen.model.compiled.vectors import pointer_to

# function: a C function that the first num_threads threads are to call with `argument`, an address.
CALL = np.dtype(
    [("function", np.intp), ("argument", np.intp), ("num_threads", np.int64)], align=True
)

# What the threads of one run are given the address of.  calls: the address of CALL records.
# barrier, thread_number: C functions.
CHAIN = np.dtype(
    [
        *((name, np.int64) for name in ("num_calls", "num_threads")),
        *((name, np.intp) for name in ("calls", "barrier", "thread_number")),
    ],
    align=True,
)


@functools.cache
def compile_task() -> int:
    """Return the address of what each thread runs: a C function of the address of a CHAIN."""
    source = compiler.digest(compiler, threads, vectors)

    def task(address):
        _ = source
        chain = numba.carray(address, 1, CHAIN)[0]
        calls = numba.carray(pointer_to(chain.calls), chain.num_calls, CALL)
        me = call_for_number(chain.thread_number) if chain.num_threads > 1 else 0
        for index in range(chain.num_calls):
            if index and chain.num_threads > 1:
                call(chain.barrier)
            if me < calls[index].num_threads:
                call_with(calls[index].function, calls[index].argument)

    return compiler.c_function(task)
