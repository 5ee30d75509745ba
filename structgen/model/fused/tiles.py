"""Tiles: the sums of products of some rows with a panel of weights, while they are in registers.

A panel is PANEL_VECTORS vectors of columns, a tile a tuple of the vectors of a panel's columns, row
by row.  Its height comes as a tuple of as many elements.  Memory is addressed in bytes.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from structgen.model.compiled import instructions
from structgen.model.compiled.compiler import multiplies_bfloat16_fast
from structgen.model.compiled.instructions import (
    BYTE,
    FLOAT,
    SHORT,
    WORD,
    add_product,
    call,
    dot_bfloat16,
    lower_half,
    moved,
    read,
    splat_of,
    splatted,
    upper_half,
    words_of,
    write,
)
from structgen.model.fused.operands import (
    FLOATS,
    HAS_INT8_DOT,
    HAS_PAIR_DOT,
    LANES,
    WORDS,
    floats,
    integers,
)

PANEL_VECTORS = 2

_BYTES = ir.VectorType(BYTE, 4 * LANES)
_HALF_WORDS = ir.VectorType(SHORT, 2 * LANES)
_FLOATS_SIZE = 4 * LANES
# The operands of the dot product instructions became what they are in LLVM 22 and 18.
_DOT_OPERAND = _BYTES if llvm.llvm_version_info >= (22,) else WORDS


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the words of a panel at an address, which need not be valid."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for index in range(PANEL_VECTORS):
            where = moved(builder, arguments[0], index * _FLOATS_SIZE)
            instructions.prefetch(builder, where)
        return context.get_dummy_value()

    return types.void(types.intp), build


@intrinsic
def zeros(typing: Any, rows: Any) -> Any:
    """Return a tile of float32, a row for each element of the tuple `rows`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors = [splat_of(0.0, LANES)] * (PANEL_VECTORS * len(rows))
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(floats, PANEL_VECTORS * len(rows))(rows), build


@intrinsic
def starts(typing: Any, rows: Any, address: Any, step: Any) -> Any:
    """Return a tile of int32, every row filled with its own number.

    address: of the first row's.  step: bytes from one row to the next, here and below.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vectors: list[Any] = []
        for place in _row_addresses(builder, len(rows), *arguments[1:]):
            vectors += [splatted(builder, read(builder, place, WORD), LANES)] * PANEL_VECTORS
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(integers, PANEL_VECTORS * len(rows))(rows, types.intp, types.intp), build


@intrinsic
def add_products(typing: Any, bits: Any, tile: Any, x: Any, step: Any, weights: Any) -> Any:
    """Return a tile plus a word of each row times the words of a panel.

    x: address of the first row's word.  weights: address of the panel's.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, tuple_, source, step, factors = arguments
        dot = _DOTS[bits.instance_type]
        in_pairs = dot is _dot_int8 and HAS_PAIR_DOT
        panel = _read_panel(builder, factors, WORDS)
        if in_pairs:
            panel = [_halves(builder, vector) for vector in panel]
        results: list[Any] = []
        for place in _row_addresses(builder, len(tile) // PANEL_VECTORS, source, step):
            offsets = (0, 4) if in_pairs else (0,)
            words = [
                splatted(builder, read(builder, place, WORD, offset), LANES) for offset in offsets
            ]
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
            scale = splatted(builder, read(builder, at, FLOAT), LANES)
            for _ in range(PANEL_VECTORS):
                number = builder.extract_value(numbers, len(results))
                old = builder.extract_value(tuple_, len(results))
                results.append(add_product(builder, old, builder.sitofp(number, FLOATS), scale))
        return context.make_tuple(builder, signature.return_type, results)

    return tile(tile, whole, types.intp, types.intp), build


@intrinsic
def scale_columns(typing: Any, tile: Any, scales: Any, biases: Any) -> Any:
    """Return a tile times the scale of each column plus its bias."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, *places = arguments
        scales, biases = (_read_panel(builder, place, FLOATS) for place in places)
        results = []
        for index in range(len(tile)):
            column, vector = index % PANEL_VECTORS, builder.extract_value(tuple_, index)
            results.append(add_product(builder, biases[column], vector, scales[column]))
        return context.make_tuple(builder, signature.return_type, results)

    return tile(tile, types.intp, types.intp), build


@intrinsic
def add_tile(typing: Any, tile: Any, address: Any, step: Any) -> Any:
    """Return a tile plus the one in memory."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, *place = arguments
        results = [
            builder.fadd(builder.extract_value(tuple_, index), read(builder, at, FLOATS))
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
            write(builder, builder.extract_value(tuple_, index), at)
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
    return [read(builder, address, kind, index * _FLOATS_SIZE) for index in range(PANEL_VECTORS)]


def _dot_int8(builder: Any, old: Any, word: Any, vector: Any) -> Any:
    if HAS_INT8_DOT:
        operands = [builder.bitcast(value, _DOT_OPERAND) for value in (vector, word)]
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{32 * LANES}", WORDS, old, *operands)
    for shift in (24, 16, 8, 0):
        left = builder.ashr(builder.shl(word, words_of(shift, LANES)), words_of(24, LANES))
        right = builder.lshr(builder.shl(vector, words_of(shift, LANES)), words_of(24, LANES))
        old = builder.add(old, builder.mul(left, right))
    return old


def _halves(builder: Any, words: Any) -> list[Any]:
    """Emit the first and third byte of each word, and the second and fourth, as 16 bits each."""
    shifted = [words, builder.lshr(words, words_of(8, LANES))]
    return [
        builder.bitcast(builder.and_(one, words_of(0x00FF00FF, LANES)), _HALF_WORDS)
        for one in shifted
    ]


def _dot_pairs(builder: Any, old: Any, words: list[Any], halves: list[Any]) -> Any:
    name = "llvm.x86.avx512.pmaddw.d.512" if LANES == 16 else "llvm.x86.avx2.pmadd.wd"
    for word, half in zip(words, halves, strict=True):
        pairs = builder.bitcast(word, _HALF_WORDS)
        old = builder.add(old, call(builder, name, WORDS, half, pairs))
    return old


def _dot_bfloat16(builder: Any, old: Any, word: Any, vector: Any) -> Any:
    if multiplies_bfloat16_fast():
        return dot_bfloat16(builder, old, word, vector)
    for widen in (lower_half, upper_half):
        old = add_product(builder, old, widen(builder, word), widen(builder, vector))
    return old


def _dot_float32(builder: Any, old: Any, word: Any, vector: Any) -> Any:
    return add_product(builder, old, *(builder.bitcast(one, FLOATS) for one in (word, vector)))


_DOTS = {types.int8: _dot_int8, types.uint16: _dot_bfloat16, types.float32: _dot_float32}
