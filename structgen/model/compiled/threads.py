"""How the threads of one call of compiled code divide its work.

Each has a share of it, and takes from that run by run; who is done helps the others.  How far a
share is taken is a counter of its own: an int64 that is 0 when the threads begin, COUNTER of them
from the next.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from structgen.model.compiled.compiler import jit

COUNTER = 8  # a cache line for each
COUNTER_BYTES = 8 * COUNTER


@jit()
def runs(counters, num_items, size, me, count):
    """Yield runs [first, stop) of a thread's share of items, then of what others are late with.

    counters: the address of those of all `count` threads.  size: items of a run, at most.
    """
    for owner in range(me, me + count):
        owner %= count
        counter = counters + owner * COUNTER_BYTES
        start, end = num_items * owner // count, num_items * (owner + 1) // count
        first = start + size * take(counter)
        while first < end:
            yield first, min(first + size, end)
            first = start + size * take(counter)


@intrinsic
def take(typing: Any, counter: Any) -> Any:
    """Return the int64 at an address and add one to it, as one atomic operation.

    It orders no other reads and writes: what threads hand to each other they have to wait for.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        place = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", place, word(1), "monotonic")

    return types.int64(types.intp), build


@intrinsic
def call(typing: Any, function: Any) -> Any:
    """Call the C function at an address, which takes nothing and returns nothing."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.intp), build


@intrinsic
def call_with(typing: Any, function: Any, argument: Any) -> Any:
    """Call the C function at an address with another address; it returns nothing."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)])
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [arguments[1]])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), build


@intrinsic
def call_for_number(typing: Any, function: Any) -> Any:
    """Call the C function at an address, which takes nothing and returns an int."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        number = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return builder.sext(number, ir.IntType(64))

    return types.int64(types.intp), build
