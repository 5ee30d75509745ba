"""The two products of attention, for as many rows and columns as registers hold sums of.

A panel is rows times columns of sums; its shape comes as two tuples of that many elements.  Rows
are query rows, columns are vectors of tokens (of scores) or of dimensions (of results).  The loops
are written in LLVM's terms, which compiles several times faster than what numba makes of them.
"""

# numba's typing API has no types.
# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from structgen.model.attention.numba_vectors import Kind
from structgen.model.compiled.instructions import (
    FLOAT,
    HALF,
    LONG,
    SHORT,
    WORD,
    add_product,
    dot_bfloat16,
    lower_half,
    moved,
    prefetch,
    read,
    splat_of,
    splatted,
    upper_half,
    words_of,
    write,
)

# From a row of scratch to the next, in bytes: constants, so that the rows' addresses need no
# registers; odd numbers of cache lines, so that rows do not compete for the same ones.
KEY_TILE = 256  # scores in a row
MAX_HEAD_DIM = 512
SCORE_STEP = (KEY_TILE + 16) * 4
DIM_STEP = (MAX_HEAD_DIM + 16) * 4


@intrinsic
def score_panel(
    typing: Any, kind: Any, rows: Any, columns: Any, count: Any, queries: Any, keys: Any,
    word_step: Any, scores: Any, ahead: Any,
) -> Any:  # fmt: skip
    """Write scores = queries . keys.

    count: words of a query.  queries, scores: addresses of the first row's.  keys: the address of a
    list of the columns' addresses.  word_step: bytes from a word of a key to its next.  ahead:
    bytes from a key to what will be read soon.
    """
    shape = _Shape(kind.kind, len(rows), len(columns))

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, count, queries, keys, word_step, scores, ahead = arguments
        starts = [read(builder, moved(builder, keys, 8 * c), LONG) for c in range(shape.width)]
        sums = shape.variables(builder)
        with _loop(builder, count) as j:
            offset = builder.mul(j, word_step)
            words = [shape.words(builder, builder.add(start, offset)) for start in starts]
            for start in starts:
                prefetch(builder, builder.add(builder.add(start, ahead), offset))
            at = builder.add(queries, builder.mul(j, LONG(kind.kind.word_scalar_bytes)))
            shape.multiply(builder, sums, at, DIM_STEP, words)
        shape.write(builder, sums, scores, SCORE_STEP)
        return context.get_dummy_value()

    longs = [types.intp] * 6
    return types.void(kind, rows, columns, *longs), build


@intrinsic
def value_panel(
    typing: Any, kind: Any, rows: Any, columns: Any, weights: Any, blocks: Any, length: Any,
    size: Any, dim: Any, column: Any, sums: Any, ahead: Any,
) -> Any:  # fmt: skip
    """Add weights . values to sums.

    weights, sums: addresses of the first row's.  blocks: the address of a list, of the addresses of
    the values of blocks of `size` tokens, `length` in all.  dim: numbers in a row of values.
    column: the first of these numbers that the panel is about.  ahead: the address of a list like
    `blocks`, of what will be read soon.
    """
    shape = _Shape(kind.kind, len(rows), len(columns))
    pack, scalar_bytes = kind.kind.pack, kind.kind.scalar_bytes

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *_, weights, blocks, length, size, dim, column, target, ahead = arguments
        sums = shape.variables(builder, target, DIM_STEP)
        token, block = (cgutils.alloca_once_value(builder, LONG(0)) for _ in range(2))
        row_step = builder.mul(dim, LONG(4))
        with _while(builder, lambda: builder.icmp_signed("<", builder.load(token), length)):
            t, listed = builder.load(token), builder.load(block)
            start = read(builder, builder.add(blocks, builder.mul(listed, LONG(8))), LONG)
            soon = read(builder, builder.add(ahead, builder.mul(listed, LONG(8))), LONG)
            soon = builder.add(soon, builder.mul(column, LONG(4)))
            left = builder.sub(length, t)
            is_whole = builder.icmp_signed("<=", size, left)
            tokens = builder.select(is_whole, size, left)
            scalars = builder.add(weights, builder.mul(t, LONG(scalar_bytes)))
            first = builder.add(start, builder.mul(column, LONG(4)))
            num_words = builder.udiv(tokens, LONG(pack))
            with _loop(builder, num_words) as j:
                at = builder.add(first, builder.mul(j, row_step))
                words = [shape.words(builder, moved(builder, at, o)) for o in shape.offsets]
                later = builder.add(soon, builder.mul(j, row_step))
                for offset in shape.offsets:
                    prefetch(builder, moved(builder, later, offset))
                scalar = builder.add(scalars, builder.mul(j, LONG(kind.kind.word_scalar_bytes)))
                shape.multiply(builder, sums, scalar, SCORE_STEP, words)
            if pack == 2:
                is_odd = builder.trunc(tokens, ir.IntType(1))
                with builder.if_then(is_odd, likely=False):
                    last = builder.mul(num_words, row_step)
                    scalar = builder.add(
                        scalars, builder.mul(num_words, LONG(kind.kind.word_scalar_bytes))
                    )
                    with builder.if_else(is_whole) as (unpaired, paired):
                        with unpaired:
                            at = builder.add(start, builder.mul(column, LONG(2)))
                            words = shape.singles(builder, builder.add(at, last))
                            shape.multiply_first(builder, sums, scalar, SCORE_STEP, words)
                        with paired:
                            at = builder.add(first, last)
                            words = [
                                shape.words(builder, moved(builder, at, o)) for o in shape.offsets
                            ]
                            shape.multiply_first(builder, sums, scalar, SCORE_STEP, words)
            builder.store(builder.add(t, size), token)
            builder.store(builder.add(listed, LONG(1)), block)
        shape.write(builder, sums, target, DIM_STEP)
        return context.get_dummy_value()

    longs = [types.intp] * 8
    return types.void(kind, rows, columns, *longs), build


class _Shape:
    """Emits what a panel does with its sums, which are variables, row by row."""

    def __init__(self, kind: Kind, height: int, width: int) -> None:
        self.kind, self.height, self.width = kind, height, width
        self.offsets = [c * kind.lanes * 4 for c in range(width)]
        self.vector = ir.VectorType(FLOAT, kind.lanes)

    def variables(self, builder: Any, source: Any = None, step: int = 0) -> list[Any]:
        """Return variables for the sums: zeros, or what is at `source`."""
        variables = []
        for i in range(self.height):
            for offset in self.offsets:
                if source is None:
                    value = splat_of(0.0, self.kind.lanes)
                else:
                    value = read(builder, moved(builder, source, i * step + offset), self.vector)
                variables.append(cgutils.alloca_once(builder, self.vector))
                builder.store(value, variables[-1])
        return variables

    def write(self, builder: Any, sums: list[Any], target: Any, step: int) -> None:
        variables = iter(sums)
        for i in range(self.height):
            for offset in self.offsets:
                value = builder.load(next(variables))
                write(builder, value, moved(builder, target, i * step + offset))

    def words(self, builder: Any, address: Any) -> Any:
        return read(builder, address, ir.VectorType(WORD, self.kind.lanes))

    def singles(self, builder: Any, address: Any) -> list[Any]:
        """Return consecutive numbers of 16 bits as words whose second number is missing."""
        shorts, words = (ir.VectorType(bits, self.kind.lanes) for bits in (SHORT, WORD))
        return [
            builder.zext(read(builder, moved(builder, address, offset // 2), shorts), words)
            for offset in self.offsets
        ]

    def multiply(
        self, builder: Any, sums: list[Any], scalars: Any, step: int, words: list[Any]
    ) -> None:
        """Add scalars[i] * words[c], of all the numbers of a word, to the sum of each i, c."""
        parts = [None] if self.kind.dot else range(self.kind.pack)
        for part in parts:
            factors = [self._factor(builder, word, part) for word in words]
            for i in range(self.height):
                at = moved(builder, scalars, i * step + 4 * (part or 0))
                element = FLOAT if part is not None else WORD
                scalar = splatted(builder, read(builder, at, element), self.kind.lanes)
                for c, factor in enumerate(factors):
                    self._add(builder, sums[i * self.width + c], scalar, factor)

    def multiply_first(
        self, builder: Any, sums: list[Any], scalars: Any, step: int, words: list[Any]
    ) -> None:
        """Like multiply, of the first number of a word only; nothing comes of the others."""
        factors = [self._factor(builder, word, 0) for word in words]
        for i in range(self.height):
            at = moved(builder, scalars, i * step)
            if self.kind.dot:
                number = lower_half(builder, builder.zext(read(builder, at, SHORT), WORD))
            else:
                number = read(builder, at, FLOAT)
            scalar = splatted(builder, number, self.kind.lanes)
            for c, factor in enumerate(factors):
                self._add(builder, sums[i * self.width + c], scalar, factor)

    def _add(self, builder: Any, variable: Any, scalar: Any, factor: Any) -> None:
        old = builder.load(variable)
        emit = add_product if scalar.type == self.vector else dot_bfloat16
        builder.store(emit(builder, old, scalar, factor), variable)

    def _factor(self, builder: Any, words: Any, part: int | None) -> Any:
        """Emit the first or the second number of each word as float32, or the words for None."""
        count = self.kind.lanes
        if part is None:
            return words
        if self.kind.number == "float32":
            return builder.bitcast(words, self.vector)
        if self.kind.number == "bfloat16":
            return (upper_half if part else lower_half)(builder, words)
        lower = builder.lshr(words, words_of(16, count)) if part else words
        halves = builder.bitcast(
            builder.trunc(lower, ir.VectorType(SHORT, count)), ir.VectorType(HALF, count)
        )
        return builder.fpext(halves, self.vector)


@contextmanager
def _loop(builder: Any, count: Any) -> Iterator[Any]:
    with cgutils.for_range(builder, count) as loop:
        yield loop.index


@contextmanager
def _while(builder: Any, condition: Any) -> Iterator[None]:
    head, body, end = (builder.append_basic_block(name) for name in ("head", "body", "end"))
    builder.branch(head)
    builder.position_at_end(head)
    builder.cbranch(condition(), body, end)
    builder.position_at_end(body)
    yield
    builder.branch(head)
    builder.position_at_end(end)
