"""What the intrinsics of kernels emit: LLVM's instructions, for vectors of any number of lanes.

Memory is addressed by plain integers, in bytes: a kernel is told where its operands lie, and
numba's arrays would only be taken apart again.  A pair of numbers of 16 bits lies in a word of 32,
the first in its lower half.
"""

# llvmlite and numba have no types.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

BYTE, SHORT, WORD, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
HALF, FLOAT = ir.HalfType(), ir.FloatType()

_SECOND_LEVEL = 2  # of the caches that prefetch may fill


class _BFloat16(ir.Type):
    """What llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


_BFLOAT16 = _BFloat16()  # one for all: llvmlite compares the types of arguments


# --- memory ---


def moved(builder: Any, address: Any, offset: int) -> Any:
    return builder.add(address, address.type(offset)) if offset else address


def read(builder: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    """Emit a read from an address that need only be aligned to 16 bits."""
    value = builder.load(builder.inttoptr(moved(builder, address, offset), kind.as_pointer()))
    value.align = 2
    return value


def write(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 2


def prefetch(builder: Any, address: Any) -> None:
    """Emit a request for the cache line at an address, which need not be valid.

    Into the second level cache: the first one is for what is in use, and can wait for fewer lines
    at once (on Zen 4, what was read ahead into both took 1.3 times as long).
    """
    options = [WORD(number) for number in (0, _SECOND_LEVEL, 1)]  # to read, into what, data
    pointer = builder.inttoptr(address, BYTE.as_pointer())
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, *options)


# --- constants ---


def splatted(builder: Any, scalar: Any, lanes: int) -> Any:
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, WORD(0))
    return builder.shuffle_vector(first, undefined, words_of(0, lanes))


def splat_of(value: float, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(FLOAT, lanes), [float(np.float32(value))] * lanes)


def words_of(value: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(WORD, lanes), [value] * lanes)


def like(value: Any, number: int) -> Any:
    """Return a constant of a value's type."""
    is_vector = isinstance(value.type, ir.VectorType)
    return ir.Constant(value.type, [number] * value.type.count if is_vector else number)


def of(value: Any, element: Any) -> Any:
    """Return the type of a value with other elements."""
    is_vector = isinstance(value.type, ir.VectorType)
    return ir.VectorType(element, value.type.count) if is_vector else element


# --- arithmetic ---


def call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Emit a call of a function of LLVM's."""
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def call_by_lane(builder: Any, name: str, *arguments: Any) -> Any:
    """Emit a call of a function of LLVM's that takes and returns vectors of float32."""
    kind = arguments[0].type
    return call(builder, f"{name}.v{kind.count}f32", kind, *arguments)


def add_product(builder: Any, term: Any, left: Any, right: Any) -> Any:
    """Emit term + left * right, fused where the CPU can."""
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(term, product, flags=("contract",))


def larger(builder: Any, left: Any, right: Any) -> Any:
    """Emit the larger of both, in each lane; right if one of them is NaN."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def fold(builder: Any, vector: Any, combine: Callable[[Any, Any, Any], Any]) -> Any:
    """Emit one number of all lanes: halves combined until there is one, whose order is fixed."""
    lanes = vector.type.count
    while lanes > 1:
        lanes //= 2
        orders = [
            ir.Constant(ir.VectorType(WORD, lanes), [*range(at, at + lanes)]) for at in (0, lanes)
        ]
        halves = [builder.shuffle_vector(vector, vector, order) for order in orders]
        vector = combine(builder, *halves)
    return builder.extract_element(vector, WORD(0))


def polynomial(builder: Any, factors: Sequence[float], x: Any) -> Any:
    """Emit factors[0] + factors[1] * x + ..."""
    *others, result = (splat_of(factor, x.type.count) for factor in factors)
    for term in reversed(others):
        result = add_product(builder, term, result, x)
    return result


def two_to(builder: Any, exponent: Any) -> Any:
    """Emit 2 ** exponent, whole numbers of float32 in [-127, 127]; of -127 it is 0."""
    lanes = exponent.type.count
    whole = builder.fptosi(exponent, ir.VectorType(WORD, lanes))
    shifted = builder.shl(builder.add(whole, words_of(127, lanes)), words_of(23, lanes))
    return builder.bitcast(shifted, exponent.type)


# --- bfloat16 ---


def to_bfloat16(builder: Any, number: Any) -> Any:
    """Emit the bits of the bfloat16 nearest to float32, halves to even; NaN stays NaN."""
    bits = builder.bitcast(number, of(number, WORD))
    last = builder.and_(builder.lshr(bits, like(bits, 16)), like(bits, 1))
    nearest = builder.add(bits, builder.add(last, like(bits, 0x7FFF)))
    # Rounding could turn what is no number into one.
    is_number = builder.fcmp_ordered("==", number, number)
    nearest = builder.select(is_number, nearest, like(bits, 0x7FC00000))
    return builder.trunc(builder.lshr(nearest, like(bits, 16)), of(number, SHORT))


def lower_half(builder: Any, words: Any) -> Any:
    """Emit the first bfloat16 of each word as float32."""
    return builder.bitcast(builder.shl(words, like(words, 16)), of(words, FLOAT))


def upper_half(builder: Any, words: Any) -> Any:
    """Emit the second bfloat16 of each word as float32."""
    return builder.bitcast(builder.and_(words, like(words, 0xFFFF0000)), of(words, FLOAT))


def dot_bfloat16(builder: Any, total: Any, left: Any, right: Any) -> Any:
    """Emit total + left * right of both halves of each word, by AVX512_BF16's instruction."""
    lanes = total.type.count
    pairs = ir.VectorType(_BFLOAT16, 2 * lanes)
    operands = [builder.bitcast(value, pairs) for value in (left, right)]
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}"
    return call(builder, name, total.type, total, *operands)
