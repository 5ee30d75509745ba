"""Vectors for numba: what the kernel of numba_cpu computes with.

A Kind says how a cache keeps its numbers and how this machine multiplies them.  It is an argument
of nearly all functions here, but only its type matters: there is compiled code for each kind.

The cache is read as words of 32 bits: one float32, or a pair of numbers of 16 bits, the first in
the lower half.  A block is a tuple of vectors, rows times columns of them, small enough to stay in
registers; its shape comes as two tuples of that many elements.  Addresses and steps are in bytes,
steps are constants, so that addresses need no registers.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.imputils import lower_constant
from numba.extending import intrinsic, models, register_model, typeof_impl

from structgen.model.compiled.compiler import features, multiplies_bfloat16_fast
from structgen.model.compiled.instructions import (
    FLOAT,
    HALF,
    SHORT,
    WORD,
    add_product,
    call_by_lane,
    larger,
    lower_half,
    of,
    polynomial,
    read,
    splat_of,
    splatted,
    to_bfloat16,
    two_to,
    words_of,
    write,
)
from structgen.model.compiled.vectors import Vector

LOWEST = np.float32(-3e38)  # a score that is out of sight; finite, so that differences are


@dataclass(frozen=True)
class Kind:
    """How the numbers of a cache are kept and multiplied.

    number: float32, bfloat16 or float16.  lanes: numbers of 32 bits in a vector.
    dot: multiply bfloat16 as they are, in pairs, by an instruction of AVX512_BF16.  Else numbers
    are widened, and all arithmetic is of float32.
    """

    number: str
    lanes: int
    dot: bool = False

    @property
    def pack(self) -> int:
        """Numbers in a word."""
        return 1 if self.number == "float32" else 2

    @property
    def scalar_bytes(self) -> int:
        """Bytes of one number of the other factor, the queries or the weights."""
        return 2 if self.dot else 4

    @property
    def word_scalar_bytes(self) -> int:
        """Bytes of as many of them as there are numbers in a word."""
        return self.pack * self.scalar_bytes


def kind_of(number: str) -> Kind:
    """Return the kind for numbers of this dtype on the CPU that numba compiles for."""
    # One register of AVX-512, or one of 256 bits, or two of 128.
    lanes = 16 if "avx512f" in features() else 8
    return Kind(number, lanes, dot=number == "bfloat16" and multiplies_bfloat16_fast())


class _KindType(types.Type):
    def __init__(self, kind: Kind) -> None:
        super().__init__(name=repr(kind))
        self.kind = kind


@register_model(_KindType)
class _KindModel(models.OpaqueModel):
    pass


@typeof_impl.register(Kind)
def _type_of_kind(kind: Kind, _context: Any) -> _KindType:
    return _KindType(kind)


@lower_constant(_KindType)
def _kind_constant(context: Any, _builder: Any, _type: Any, _kind: Any) -> Any:
    return context.get_dummy_value()


# --- numbers ---


@intrinsic
def lanes(typing: Any, kind: Any) -> Any:
    return _constant_of(kind, kind.kind.lanes)


@intrinsic
def pack(typing: Any, kind: Any) -> Any:
    return _constant_of(kind, kind.kind.pack)


@intrinsic
def scalar_bytes(typing: Any, kind: Any) -> Any:
    return _constant_of(kind, kind.kind.scalar_bytes)


def _constant_of(kind: Any, value: int) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, value)

    return types.intp(kind), build


@intrinsic
def read_number(typing: Any, address: Any, is_float32: Any) -> Any:
    """Return the float32, or else the bfloat16, at an address as float32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _read_input(builder, *arguments, lambda element: element)

    return types.float32(types.intp, types.boolean), build


@intrinsic
def read_numbers(typing: Any, kind: Any, address: Any, is_float32: Any) -> Any:
    """Like read_number, of as many as a vector holds."""
    count = kind.kind.lanes

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, address, is_float32 = arguments
        return _read_input(
            builder, address, is_float32, lambda element: ir.VectorType(element, count)
        )

    return Vector(types.float32, count)(kind, types.intp, types.boolean), build


def _read_input(builder: Any, address: Any, is_float32: Any, shape: Any) -> Any:
    with builder.if_else(is_float32) as (then, otherwise):
        with then:
            wide = read(builder, address, shape(FLOAT))
            then_block = builder.block
        with otherwise:
            bits = builder.zext(read(builder, address, shape(SHORT)), shape(WORD))
            narrow = lower_half(builder, bits)
            otherwise_block = builder.block
    number = builder.phi(shape(FLOAT))
    number.add_incoming(wide, then_block)
    number.add_incoming(narrow, otherwise_block)
    return number


@intrinsic
def write_output(typing: Any, number: Any, address: Any, is_float32: Any) -> Any:
    """Write a float32, or a vector of them, or else the bfloat16 that are nearest."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, address, is_float32 = arguments
        with builder.if_else(is_float32) as (then, otherwise):
            with then:
                write(builder, value, address)
            with otherwise:
                write(builder, to_bfloat16(builder, value), address)
        return context.get_dummy_value()

    return types.void(number, types.intp, types.boolean), build


@intrinsic
def write_cached(typing: Any, kind: Any, number: Any, address: Any) -> Any:
    """Write a float32, or a vector of them, as numbers of the cache."""
    return _write_as(kind, number, kind.kind.number)


@intrinsic
def write_scalar(typing: Any, kind: Any, number: Any, address: Any) -> Any:
    """Write a float32, or a vector of them, as panels want their scalars."""
    return _write_as(kind, number, "bfloat16" if kind.kind.dot else "float32")


def _write_as(kind: Any, number: Any, kept: str) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, value, address = arguments
        if kept == "bfloat16":
            value = to_bfloat16(builder, value)
        elif kept == "float16":
            value = builder.fptrunc(value, of(value, HALF))
        write(builder, value, address)
        return context.get_dummy_value()

    return types.void(kind, number, types.intp), build


@intrinsic
def copy_word(typing: Any, source: Any, target: Any) -> Any:
    return _copy(WORD)


@intrinsic
def copy_short(typing: Any, source: Any, target: Any) -> Any:
    return _copy(SHORT)


def _copy(element: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write(builder, read(builder, arguments[0], element), arguments[1])
        return context.get_dummy_value()

    return types.void(types.intp, types.intp), build


# --- vectors ---


@intrinsic
def splat(typing: Any, kind: Any, number: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splatted(builder, arguments[1], kind.kind.lanes)

    return Vector(types.float32, kind.kind.lanes)(kind, types.float32), build


@intrinsic
def load(typing: Any, kind: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return read(builder, arguments[1], ir.VectorType(FLOAT, kind.kind.lanes))

    return Vector(types.float32, kind.kind.lanes)(kind, types.intp), build


@intrinsic
def write_weights(typing: Any, kind: Any, vector: Any, address: Any) -> Any:
    """Write what `rounded` returned, as panels want their scalars."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, value, address = arguments
        if kind.kind.dot:
            words = ir.VectorType(WORD, kind.kind.lanes)
            bits = builder.lshr(builder.bitcast(value, words), words_of(16, kind.kind.lanes))
            value = builder.trunc(bits, ir.VectorType(SHORT, kind.kind.lanes))
        write(builder, value, address)
        return context.get_dummy_value()

    return types.void(kind, vector, types.intp), build


@intrinsic
def rounded(typing: Any, kind: Any, vector: Any) -> Any:
    """Return positive numbers as near as panels take them."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[1]
        if not kind.kind.dot:
            return value
        count = kind.kind.lanes
        bits = builder.bitcast(value, ir.VectorType(WORD, count))
        bits = builder.add(bits, words_of(0x8000, count))
        return builder.bitcast(builder.and_(bits, words_of(0xFFFF0000, count)), value.type)

    return vector(kind, vector), build


@intrinsic
def power_of_two(typing: Any, kind: Any, vector: Any, factor: Any, highest: Any) -> Any:
    """Return 2 ** ((vector - highest) * factor), for lanes up to about `highest`.

    It is 0 below 2 ** -126.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, x, factor, highest = arguments
        shift = builder.fneg(builder.fmul(highest, factor))
        factor, shift = (splatted(builder, number, kind.kind.lanes) for number in (factor, shift))
        degree = 3 if kind.kind.dot else 7  # weights of bfloat16 have 8 bits
        return _power_of_two(builder, add_product(builder, shift, x, factor), degree)

    return vector(kind, vector, types.float32, types.float32), build


@intrinsic
def capped(typing: Any, kind: Any, vector: Any, scale: Any, softcap: Any) -> Any:
    """Return softcap * tanh(vector * scale / softcap)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, scores, scale, cap = arguments
        scale, cap = (splatted(builder, number, kind.kind.lanes) for number in (scale, cap))
        scores = builder.fmul(scores, scale)
        # tanh x = sign(x) (1 - e) / (1 + e) with e = exp(-2 |x|), which cannot overflow.
        size = call_by_lane(builder, "llvm.fabs", scores)
        factor = splat_of(-2 / math.log(2), kind.kind.lanes)
        power = builder.fdiv(builder.fmul(size, factor), cap)
        small, one = _power_of_two(builder, power, 7), splat_of(1.0, kind.kind.lanes)
        tanh = builder.fdiv(builder.fsub(one, small), builder.fadd(one, small))
        return call_by_lane(builder, "llvm.copysign", builder.fmul(cap, tanh), scores)

    return vector(kind, vector, types.float32, types.float32), build


def _power_of_two(builder: Any, x: Any, degree: int) -> Any:
    """Emit 2 ** x, x at most about 0: within 2e-4 (relative) with a degree of 3, 2e-7 with 7."""
    x = larger(builder, x, splat_of(-127.0, x.type.count))
    near = call_by_lane(builder, "llvm.rint", x)
    rest = builder.fsub(x, near)
    return builder.fmul(polynomial(builder, _series(degree), rest), two_to(builder, near))


def _series(degree: int) -> list[float]:
    """Return the polynomial that is 2 ** x for x in [-1/2, 1/2]."""
    domain = [-0.5, 0.5]
    series = np.polynomial.Chebyshev.interpolate(np.exp2, degree, domain)
    return series.convert(kind=np.polynomial.Polynomial).coef.tolist()
