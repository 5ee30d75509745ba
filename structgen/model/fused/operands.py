"""Operands of products, as vectors of LANES: how rows of float32 become them.

A *word* is 4 bytes of operands of a product, as many as fit; `bits` says what they are:

    np.int8      4 whole numbers: activations as they are, weights plus 128.  A CPU that multiplies
                 no bytes but pairs of 16 bits (AVX2) has activations of 16 bits, two words for one
                 of weights: the first and third number, the second and fourth
    np.uint16    2 bfloat16, as raw bits, for numba has no such type
    np.float32   1 number

Sums of products of int8 are exact, in 32 bits; those of the others are float32.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from structgen.model.compiled.compiler import features
from structgen.model.compiled.instructions import (
    BYTE,
    FLOAT,
    LONG,
    SHORT,
    WORD,
    add_product,
    call_by_lane,
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

LANES = 16 if {"avx512f", "avx512bw"} <= features() else 8
HAS_INT8_DOT = ("avx512vnni" if LANES == 16 else "avxvnni") in features()
HAS_PAIR_DOT = "avx2" in features() and not HAS_INT8_DOT
HAS_32_REGISTERS = LANES == 16

FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)
floats, integers = Vector(types.float32, LANES), Vector(types.int32, LANES)


# --- vectors of LANES ---


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """Return the LANES float32 at an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return read(builder, arguments[0], FLOATS)

    return floats(types.intp), build


@intrinsic
def store_whole(typing: Any, value: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        write(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.int32, types.intp), build


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return splatted(builder, arguments[0], LANES)

    return floats(types.float32), build


@intrinsic
def no_integers(typing: Any) -> Any:
    """Return a vector of int32, all 0."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return words_of(0, LANES)

    return integers(), build


@intrinsic
def sigmoid(typing: Any, vector: Any) -> Any:
    """Return 1 / (1 + e ** -vector), within 4e-7 (relative)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        [x] = arguments
        zero, one = splat_of(0.0, LANES), splat_of(1.0, LANES)
        size = call_by_lane(builder, "llvm.fabs", x)
        power = _exp(builder, builder.fsub(zero, size))
        is_negative = builder.fcmp_ordered("<", x, zero)
        return builder.fdiv(builder.select(is_negative, power, one), builder.fadd(one, power))

    return floats(floats), build


_EXP = [1 / math.factorial(degree) for degree in range(8)]


def _exp(builder: Any, x: Any) -> Any:
    """Emit e ** x, x at most 0: 2 ** n * e ** r, n whole, |r| up to half of ln 2.

    Within 2e-7 (relative); lanes below -87 count as -87, the last power that is a normal number.
    """
    lowest = splat_of(-87.0, LANES)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    scaled = builder.fmul(x, splat_of(1.4426950408889634, LANES))
    whole = call_by_lane(builder, "llvm.rint", scaled)
    # ln 2 in two parts, the first of so few bits that its product with n is exact.
    rest = add_product(builder, x, whole, splat_of(-0.693145751953125, LANES))
    rest = add_product(builder, rest, whole, splat_of(-1.428606765330187e-06, LANES))
    return builder.fmul(polynomial(builder, _EXP, rest), two_to(builder, whole))


# --- operands ---


@intrinsic
def pack(typing: Any, bits: Any, vector: Any, address: Any) -> Any:
    """Write a vector as LANES elements of `bits`, rounded to nearest, ties to even.

    Return those of int8, whose lanes must be in [-127, 127], as whole numbers, and 0 of others.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, lanes, target = arguments
        result = words_of(0, LANES)
        if bits.instance_type == types.int8:
            lanes = call_by_lane(builder, "llvm.rint", lanes)
            result = builder.fptosi(lanes, WORDS)
            lanes = _whole_operands(builder, result)
        elif bits.instance_type == types.uint16:
            lanes = to_bfloat16(builder, lanes)
        write(builder, lanes, target)
        return result

    return integers(bits, floats, types.intp), build


def _whole_operands(builder: Any, numbers: Any) -> Any:
    if not HAS_PAIR_DOT:
        return builder.trunc(numbers, ir.VectorType(BYTE, LANES))
    halves = builder.trunc(numbers, ir.VectorType(SHORT, LANES))
    order = [first + place for first in range(0, LANES, 4) for place in (0, 2, 1, 3)]
    return builder.shuffle_vector(halves, halves, ir.Constant(WORDS, order))


@intrinsic
def element_size(typing: Any, bits: Any) -> Any:
    """Return the bytes of one element of weights."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return LONG(bits.instance_type.bitwidth // 8)

    return types.int64(bits), build


@intrinsic
def activation_size(typing: Any, bits: Any) -> Any:
    """Return the bytes of one element of activations."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return LONG(bytes_of_activation(bits.instance_type.bitwidth // 8))

    return types.int64(bits), build


def bytes_of_activation(bytes_of_weight: int) -> int:
    return 2 if bytes_of_weight == 1 and HAS_PAIR_DOT else bytes_of_weight
