"""Vectors for code that numba compiles: what the passes of a fused layer are made of.

Memory is addressed by plain integers, in bytes: a pass is told where its operands lie, and numba's
arrays would only be taken apart again.  A *word* is 4 bytes of operands of a product, as many as
fit; `bits` says what they are:

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

import operator
from collections.abc import Iterator
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from structgen.model.compiled.compiler import features

_FEATURES = features()
_HAS_BFLOAT16_DOT = "avx512bf16" in _FEATURES
LANES = 16 if {"avx512f", "avx512bw"} <= _FEATURES else 8
_HAS_INT8_DOT = ("avx512vnni" if LANES == 16 else "avxvnni") in _FEATURES
_HAS_PAIR_DOT = "avx2" in _FEATURES and not _HAS_INT8_DOT
PANEL_VECTORS = 2
HAS_32_REGISTERS = LANES == 16

_BYTE, _HALF_WORD, _WORD = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_FLOAT = ir.FloatType()
_BYTES = ir.VectorType(_BYTE, 4 * LANES)
_HALF_WORDS = ir.VectorType(_HALF_WORD, 2 * LANES)
_WORDS = ir.VectorType(_WORD, LANES)
_FLOATS = ir.VectorType(_FLOAT, LANES)
_FLOATS_SIZE = 4 * LANES
# The operands of the dot product instructions became what they are in LLVM 22 and 18.
_DOT_OPERAND = _BYTES if llvm.llvm_version_info >= (22,) else _WORDS


class _BFloat16(ir.Type):
    """What llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


_BFLOAT16_PAIRS = ir.VectorType(_BFloat16(), 2 * LANES)


# --- types ---


class _Vector(types.Type):
    """A vector of float32, or of 32-bit whole numbers."""

    def __init__(self, name: str, lanes: Any) -> None:
        super().__init__(name=f"{name}x{LANES}")
        self.lanes = lanes


_floats = _Vector("float32", _FLOATS)
_words = _Vector("int32", _WORDS)


@register_model(_Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: _Vector) -> None:
        super().__init__(manager, numba_type, numba_type.lanes)


# --- emitting ---


def _at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    moved = builder.add(address, address.type(offset)) if offset else address
    return builder.inttoptr(moved, kind.as_pointer())


def _read(builder: Any, address: Any, kind: Any, offset: int = 0) -> Any:
    value = builder.load(_at(builder, address, offset, kind))
    value.align = 4
    return value


def _write(builder: Any, value: Any, address: Any, offset: int = 0) -> None:
    builder.store(value, _at(builder, address, offset, value.type)).align = 1


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(_WORD, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * LANES))


def _constant(value: float) -> Any:
    return ir.Constant(_FLOATS, [value] * LANES)


def _whole(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LANES)


def _call(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kinds = [argument.type for argument in arguments]
    return builder.call(_function(builder, name, result, *kinds), arguments)


def _function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, arguments)
    return cgutils.get_or_insert_function(builder.module, kind, name)


def _fma(builder: Any, left: Any, right: Any, term: Any) -> Any:
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(product, term, flags=("contract",))


# --- float32 ---


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """Return an address as numba's arrays want it."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _BYTE.as_pointer())

    return types.voidptr(types.intp), build


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """Return the LANES float32 at an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _read(builder, arguments[0], _FLOATS)

    return _floats(types.intp), build


@intrinsic
def store(typing: Any, vector: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _write(builder, *arguments)
        return context.get_dummy_value()

    return types.void(_floats, types.intp), build


@intrinsic
def load_one(typing: Any, address: Any) -> Any:
    """Return the float32 at an address."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _read(builder, arguments[0], _FLOAT)

    return types.float32(types.intp), build


@intrinsic
def store_one(typing: Any, value: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _write(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.float32, types.intp), build


@intrinsic
def store_whole(typing: Any, value: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _write(builder, *arguments)
        return context.get_dummy_value()

    return types.void(types.int32, types.intp), build


@intrinsic
def splat(typing: Any, value: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, arguments[0])

    return _floats(types.float32), build


def _operator(function: Any, emit: Any) -> None:
    @intrinsic
    def apply(typing: Any, left: Any, right: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, emit)(*arguments)

        return _floats(_floats, _floats), build

    @overload(function, inline="always")
    def choose(left, right):
        if left is _floats and right is _floats:
            return lambda left, right: apply(left, right)
        return None


for _binary, _emit in {
    operator.add: "fadd",
    operator.sub: "fsub",
    operator.mul: "fmul",
    operator.truediv: "fdiv",
}.items():
    _operator(_binary, _emit)


@intrinsic
def larger_size(typing: Any, most: Any, vector: Any) -> Any:
    """Return the larger of most and |vector|, in each lane.  A lane that is NaN counts as 0."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = _call(builder, f"llvm.fabs.v{LANES}f32", _FLOATS, arguments[1])
        return builder.select(builder.fcmp_ordered(">", size, arguments[0]), size, arguments[0])

    return _floats(_floats, _floats), build


@intrinsic
def largest(typing: Any, vector: Any) -> Any:
    """Return the largest lane; none is NaN."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _function(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", _FLOAT, _FLOATS)
        return builder.call(function, arguments, fastmath=("nnan", "nsz"))

    return types.float32(_floats), build


@intrinsic
def no_numbers(typing: Any) -> Any:
    """Return whole numbers, all 0."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _whole(0)

    return _words(), build


@intrinsic
def add_numbers(typing: Any, left: Any, right: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.add(*arguments)

    return _words(_words, _words), build


@intrinsic
def total_number(typing: Any, vector: Any) -> Any:
    """Return the sum of the lanes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _call(builder, f"llvm.vector.reduce.add.v{LANES}i32", _WORD, *arguments)

    return types.int32(_words), build


@intrinsic
def total(typing: Any, vector: Any) -> Any:
    """Return the sum of the lanes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name = f"llvm.vector.reduce.fadd.v{LANES}f32"
        function = _function(builder, name, _FLOAT, _FLOAT, _FLOATS)
        return builder.call(function, [_FLOAT(-0.0), *arguments], fastmath=("reassoc",))

    return types.float32(_floats), build


@intrinsic
def sigmoid(typing: Any, vector: Any) -> Any:
    """Return 1 / (1 + e ** -vector), within 4e-7 (relative)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        [x] = arguments
        size = _call(builder, f"llvm.fabs.v{LANES}f32", _FLOATS, x)
        power = _exp(builder, builder.fsub(_constant(0.0), size))
        is_negative = builder.fcmp_ordered("<", x, _constant(0.0))
        top = builder.select(is_negative, power, _constant(1.0))
        return builder.fdiv(top, builder.fadd(_constant(1.0), power))

    return _floats(_floats), build


def _exp(builder: Any, x: Any) -> Any:
    """Emit e ** x, x at most 0: 2 ** n * e ** r, n whole, |r| up to half of ln 2.

    Within 2e-7 (relative); lanes below -87 count as -87, the last power that is a normal number.
    """
    lowest = _constant(-87.0)
    x = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    scaled = builder.fmul(x, _constant(1.4426950408889634))
    whole = _call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, scaled)
    # ln 2 in two parts, the first of so few bits that its product with n is exact.
    rest = _fma(builder, whole, _constant(-0.693145751953125), x)
    rest = _fma(builder, whole, _constant(-1.428606765330187e-06), rest)
    series = _constant(1 / 5040)
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        series = _fma(builder, series, rest, _constant(1 / factorial))
    exponent = builder.add(builder.fptosi(whole, _WORDS), _whole(127))
    power = builder.bitcast(builder.shl(exponent, _whole(23)), _FLOATS)
    return builder.fmul(series, power)


# --- operands of products ---


@intrinsic
def pack(typing: Any, bits: Any, vector: Any, address: Any) -> Any:
    """Write a vector as LANES elements of `bits`, rounded to nearest, ties to even.

    Return those of int8, whose lanes must be in [-127, 127], as whole numbers, and 0 of others.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, lanes, target = arguments
        result = _whole(0)
        if bits.instance_type == types.int8:
            lanes = _call(builder, f"llvm.rint.v{LANES}f32", _FLOATS, lanes)
            result = builder.fptosi(lanes, _WORDS)
            lanes = _whole_operands(builder, result)
        elif bits.instance_type == types.uint16:
            lanes = _bfloat16(builder, lanes)
        _write(builder, lanes, target)
        return result

    return _words(bits, _floats, types.intp), build


def _whole_operands(builder: Any, numbers: Any) -> Any:
    if not _HAS_PAIR_DOT:
        return builder.trunc(numbers, ir.VectorType(_BYTE, LANES))
    halves = builder.trunc(numbers, ir.VectorType(_HALF_WORD, LANES))
    order = [first + place for first in range(0, LANES, 4) for place in (0, 2, 1, 3)]
    return builder.shuffle_vector(halves, halves, ir.Constant(_WORDS, order))


def _bfloat16(builder: Any, lanes: Any) -> Any:
    """Emit the upper halves of float32, rounded; NaN stays NaN."""
    words = builder.bitcast(lanes, _WORDS)
    last = builder.and_(builder.lshr(words, _whole(16)), _whole(1))
    rounded = builder.add(words, builder.add(last, _whole(0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", lanes, lanes)
    kept = builder.select(is_nan, builder.or_(words, _whole(0x400000)), rounded)
    return builder.trunc(builder.lshr(kept, _whole(16)), ir.VectorType(_HALF_WORD, LANES))


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the words of a panel at an address, which need not be valid.

    Into the second level cache: those in use have the first one to themselves.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_BYTE.as_pointer(), _WORD, _WORD, _WORD])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        options = [_WORD(number) for number in (0, 2, 1)]  # to read, the second level, data
        for index in range(PANEL_VECTORS):
            where = _at(builder, arguments[0], index * _FLOATS_SIZE, _BYTE)
            builder.call(function, [where, *options])
        return context.get_dummy_value()

    return types.void(types.intp), build


@intrinsic
def element_size(typing: Any, bits: Any) -> Any:
    """Return the bytes of one element of weights."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.IntType(64)(bits.instance_type.bitwidth // 8)

    return types.int64(bits), build


@intrinsic
def activation_size(typing: Any, bits: Any) -> Any:
    """Return the bytes of one element of activations."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return ir.IntType(64)(bytes_of_activation(bits.instance_type.bitwidth // 8))

    return types.int64(bits), build


def bytes_of_activation(bytes_of_weight: int) -> int:
    return 2 if bytes_of_weight == 1 and _HAS_PAIR_DOT else bytes_of_weight


# --- products: a tile is a tuple, of the vectors of a panel's columns, row by row ---


@intrinsic
def zeros(typing: Any, rows: Any) -> Any:
    """Return a tile of float32, a row for each element of the tuple `rows`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = [_constant(0.0)] * (PANEL_VECTORS * len(rows))
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(_floats, PANEL_VECTORS * len(rows))(rows), build


@intrinsic
def starts(typing: Any, rows: Any, address: Any, step: Any) -> Any:
    """Return a tile of int32, every row filled with its own number.

    address: of the first row's.  step: bytes from one row to the next, here and below.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors: list[Any] = []
        for place in _row_addresses(builder, len(rows), *arguments[1:]):
            vectors += [_splat(builder, _read(builder, place, _WORD))] * PANEL_VECTORS
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(_words, PANEL_VECTORS * len(rows))(rows, types.intp, types.intp), build


@intrinsic
def add_products(typing: Any, bits: Any, tile: Any, x: Any, step: Any, weights: Any) -> Any:
    """Return a tile plus a word of each row times the words of a panel.

    x: address of the first row's word.  weights: address of the panel's.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, tuple_, source, step, factors = arguments
        dot = _DOTS[bits.instance_type]
        in_pairs = dot is _dot_int8 and _HAS_PAIR_DOT
        panel = _read_panel(builder, factors, _WORDS)
        if in_pairs:
            panel = [_halves(builder, vector) for vector in panel]
        results: list[Any] = []
        for place in _row_addresses(builder, len(tile) // PANEL_VECTORS, source, step):
            offsets = (0, 4) if in_pairs else (0,)
            words = [_splat(builder, _read(builder, place, _WORD, offset)) for offset in offsets]
            for vector in panel:
                old = builder.extract_value(tuple_, len(results))
                if in_pairs:
                    results.append(_dot_pairs(builder, old, words, vector))
                else:
                    results.append(dot(builder, old, words[0], vector))
        return context.make_tuple(builder, signature.return_type, results)

    return tile(bits, tile, types.intp, types.intp, types.intp), build


@intrinsic
def add_scaled(typing: Any, tile: Any, whole: Any, scales: Any, step: Any) -> Any:
    """Return a tile of float32 plus one of int32, each row of which is multiplied by its scale."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, numbers, *place = arguments
        results: list[Any] = []
        for at in _row_addresses(builder, len(tile) // PANEL_VECTORS, *place):
            scale = _splat(builder, _read(builder, at, _FLOAT))
            for _ in range(PANEL_VECTORS):
                number = builder.extract_value(numbers, len(results))
                old = builder.extract_value(tuple_, len(results))
                results.append(_fma(builder, builder.sitofp(number, _FLOATS), scale, old))
        return context.make_tuple(builder, signature.return_type, results)

    return tile(tile, whole, types.intp, types.intp), build


@intrinsic
def scale_columns(typing: Any, tile: Any, scales: Any, biases: Any) -> Any:
    """Return a tile times the scale of each column plus its bias."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, *places = arguments
        scales, biases = (_read_panel(builder, place, _FLOATS) for place in places)
        results = []
        for index in range(len(tile)):
            column, vector = index % PANEL_VECTORS, builder.extract_value(tuple_, index)
            results.append(_fma(builder, vector, scales[column], biases[column]))
        return context.make_tuple(builder, signature.return_type, results)

    return tile(tile, types.intp, types.intp), build


@intrinsic
def add_tile(typing: Any, tile: Any, address: Any, step: Any) -> Any:
    """Return a tile plus the one in memory."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, *place = arguments
        results = [
            builder.fadd(builder.extract_value(tuple_, index), _read(builder, at, _FLOATS))
            for index, at in enumerate(_tile_addresses(builder, len(tile), *place))
        ]
        return context.make_tuple(builder, signature.return_type, results)

    return tile(tile, types.intp, types.intp), build


@intrinsic
def store_tile(typing: Any, tile: Any, address: Any, step: Any) -> Any:
    """Write a tile to memory."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, *place = arguments
        for index, at in enumerate(_tile_addresses(builder, len(tile), *place)):
            _write(builder, builder.extract_value(tuple_, index), at)
        return context.get_dummy_value()

    return types.void(tile, types.intp, types.intp), build


def _row_addresses(builder: Any, count: int, address: Any, step: Any) -> Iterator[Any]:
    for row in range(count):
        yield builder.add(address, builder.mul(step, step.type(row)))


def _tile_addresses(builder: Any, count: int, address: Any, step: Any) -> Iterator[Any]:
    for start in _row_addresses(builder, count // PANEL_VECTORS, address, step):
        for index in range(PANEL_VECTORS):
            yield builder.add(start, start.type(index * _FLOATS_SIZE))


def _read_panel(builder: Any, address: Any, kind: Any) -> list[Any]:
    return [_read(builder, address, kind, index * _FLOATS_SIZE) for index in range(PANEL_VECTORS)]


def _dot_int8(builder: Any, old: Any, word: Any, vector: Any) -> Any:
    if _HAS_INT8_DOT:
        operands = [builder.bitcast(value, _DOT_OPERAND) for value in (vector, word)]
        return _call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", _WORDS, old, *operands)
    for shift in (24, 16, 8, 0):
        left = builder.ashr(builder.shl(word, _whole(shift)), _whole(24))
        right = builder.lshr(builder.shl(vector, _whole(shift)), _whole(24))
        old = builder.add(old, builder.mul(left, right))
    return old


def _halves(builder: Any, words: Any) -> list[Any]:
    """Emit the first and third byte of each word, and the second and fourth, as 16 bits each."""
    moved = [words, builder.lshr(words, _whole(8))]
    return [builder.bitcast(builder.and_(one, _whole(0x00FF00FF)), _HALF_WORDS) for one in moved]


def _dot_pairs(builder: Any, old: Any, words: list[Any], halves: list[Any]) -> Any:
    name = "llvm.x86.avx512.pmaddw.d.512" if LANES == 16 else "llvm.x86.avx2.pmadd.wd"
    for word, half in zip(words, halves, strict=True):
        pairs = builder.bitcast(word, _HALF_WORDS)
        old = builder.add(old, _call(builder, name, _WORDS, half, pairs))
    return old


def _dot_bfloat16(builder: Any, old: Any, word: Any, vector: Any) -> Any:
    if _HAS_BFLOAT16_DOT:
        operands = [builder.bitcast(value, _BFLOAT16_PAIRS) for value in (word, vector)]
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * LANES}"
        return _call(builder, name, _FLOATS, old, *operands)
    for widen in (_lower_half, _upper_half):
        old = _fma(builder, widen(builder, word), widen(builder, vector), old)
    return old


def _lower_half(builder: Any, words: Any) -> Any:
    return builder.bitcast(builder.shl(words, _whole(16)), _FLOATS)


def _upper_half(builder: Any, words: Any) -> Any:
    return builder.bitcast(builder.and_(words, _whole(0xFFFF0000)), _FLOATS)


def _dot_float32(builder: Any, old: Any, word: Any, vector: Any) -> Any:
    return _fma(builder, *(builder.bitcast(value, _FLOATS) for value in (word, vector)), old)


_DOTS = {types.int8: _dot_int8, types.uint16: _dot_bfloat16, types.float32: _dot_float32}
