"""The kernel of numba_cpu: attention over a paged cache, compiled for this machine's vectors.

In three parts: a vector type for numba and what can be done with it; the arithmetic; how threads
take work.  All in one file because numba's cache on disk is renewed when this file changes, not
when one that it imports does.

Both products of attention are sums of a vector times a scalar, so that nothing is ever added up
across a vector, and a whole row of sums stays in registers:

    scores[LANES tokens] += q[d] * keys[d, LANES tokens]
    out[LANES dims] += weight[t] * values[t, LANES dims]

Keys and values are raw bits, for numba has no bfloat16; the type of the bits says how to widen
them.  Arithmetic is float32.  Scratch is rows of _ROW_STEP float32.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import functools
import math
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from structgen import logs

log = logs.get(__name__)

# float32 of a vector: one AVX-512 register, or one of 256 bits, or two of 128.
LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8
KEY_TILE = 256  # keys between two updates of the running softmax; the largest block size
ROW_TILE = 64  # query rows (new tokens times heads of a group) of one piece of work
MAX_HEAD_DIM = 512

# From a row of scratch to the next.  A constant, so that the rows' addresses need no registers; an
# odd number of cache lines, so that the rows do not compete for the same ones.
_ROW_STEP = MAX_HEAD_DIM + 16
_USUAL_BLOCK = 16  # the block size worth a loop of its own: the default
_LOWEST = np.float32(-3e38)  # a score that is out of sight; finite, so that differences are

BITS_FLOAT32, BITS_BFLOAT16, BITS_FLOAT16 = np.float32, np.uint16, np.int16

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


# --- vectors ---


class _VectorType(types.Type):
    def __init__(self) -> None:
        super().__init__(name=f"float32x{LANES}")


_vector = _VectorType()


@register_model(_VectorType)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, numba_type: _VectorType) -> None:
        super().__init__(manager, numba_type, _VECTOR)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, at: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [at])


def _read(builder: Any, pointer: Any, element: Any) -> Any:
    """Read a vector of elements; the address need only be aligned to one."""
    vector = builder.load(builder.bitcast(pointer, ir.VectorType(element, LANES).as_pointer()))
    vector.align = 2 if isinstance(element, ir.IntType) else 4
    return vector


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, lanes)


def _row_offsets(builder: Any, at: Any, count: int) -> list[Any]:
    return [builder.add(at, at.type(i * _ROW_STEP)) for i in range(count)]


@intrinsic
def _zeros(typing: Any, rows: Any) -> Any:
    """Return a vector of zeros for each element of the tuple `rows`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        return context.make_tuple(builder, signature.return_type, [zero] * len(rows))

    return types.UniTuple(_vector, len(rows))(rows), build


@intrinsic
def _load(typing: Any, array: Any, at: Any) -> Any:
    """Return array[at : at + LANES] as float32, of whatever the raw bits stand for."""
    bits, words = ir.IntType(16), ir.VectorType(ir.IntType(32), LANES)

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], *arguments)
        if array.dtype == types.float32:
            return _read(builder, pointer, _FLOAT)
        narrow = _read(builder, pointer, bits)
        if array.dtype == types.int16:
            half = builder.bitcast(narrow, ir.VectorType(ir.HalfType(), LANES))
            return builder.fpext(half, _VECTOR)
        # bfloat16 is the upper half of float32.
        shift = ir.Constant(words, [16] * LANES)
        return builder.bitcast(builder.shl(builder.zext(narrow, words), shift), _VECTOR)

    return _vector(array, types.intp), build


@intrinsic
def _load_rows(typing: Any, rows: Any, array: Any, at: Any) -> Any:
    """Return the vectors at `at` in consecutive rows of scratch, one per element of `rows`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, start = arguments
        vectors = [
            _read(builder, _pointer(context, builder, array, source, offset), _FLOAT)
            for offset in _row_offsets(builder, start, len(rows))
        ]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(_vector, len(rows))(rows, array, types.intp), build


@intrinsic
def _store_rows(typing: Any, vectors: Any, array: Any, at: Any) -> Any:
    """Write the vectors to `at` in consecutive rows of scratch."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, target, start = arguments
        for i, offset in enumerate(_row_offsets(builder, start, len(vectors))):
            pointer = _pointer(context, builder, array, target, offset)
            vector = builder.extract_value(tuple_, i)
            builder.store(vector, builder.bitcast(pointer, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(vectors, array, types.intp), build


@intrinsic
def _add_scaled(typing: Any, sums: Any, scalars: Any, at: Any, vector: Any) -> Any:
    """Return sums[i] + scalar * vector for each i, the scalar at `at` in row i of `scalars`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, source, start, factor = arguments
        results = []
        for i, offset in enumerate(_row_offsets(builder, start, len(sums))):
            scalar = builder.load(_pointer(context, builder, scalars, source, offset))
            old = builder.extract_value(tuple_, i)
            results.append(_add_product(builder, old, _splat(builder, scalar), factor))
        return context.make_tuple(builder, signature.return_type, results)

    return sums(sums, scalars, types.intp, _vector), build


@intrinsic
def _plus(typing: Any, left: Any, right: Any) -> Any:
    """Return left[i] + right[i] for two tuples of vectors."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        results = [
            builder.fadd(*(builder.extract_value(tuple_, i) for tuple_ in arguments))
            for i in range(len(left))
        ]
        return context.make_tuple(builder, signature.return_type, results)

    return left(left, right), build


@intrinsic
def _larger(typing: Any, left: Any, right: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _max(builder, *arguments)

    return _vector(_vector, _vector), build


@intrinsic
def _largest(typing: Any, vector: Any) -> Any:
    """Return the largest lane."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _intrinsic_of(builder, "llvm.vector.reduce.fmax", _FLOAT, _VECTOR)
        return builder.call(function, arguments)

    return types.float32(_vector), build


@intrinsic
def _sum(typing: Any, vector: Any) -> Any:
    """Return the sum of the lanes."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = _intrinsic_of(builder, "llvm.vector.reduce.fadd", _FLOAT, _FLOAT, _VECTOR)
        return builder.call(function, [_FLOAT(-0.0), *arguments], fastmath=("reassoc",))

    return types.float32(_vector), build


@intrinsic
def _exp_below(typing: Any, vector: Any, highest: Any) -> Any:
    """Return e ** (vector - highest), for lanes up to `highest`; never below 1e-38."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _exp(builder, builder.fsub(arguments[0], _splat(builder, arguments[1])))

    return _vector(_vector, types.float32), build


@intrinsic
def _capped(typing: Any, vector: Any, softcap: Any) -> Any:
    """Return softcap * tanh(vector / softcap)."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        scores, cap = arguments[0], _splat(builder, arguments[1])
        # tanh x = sign(x) (1 - e) / (1 + e) with e = exp(-2 |x|), which cannot overflow.
        size = builder.call(_intrinsic_of(builder, "llvm.fabs", _VECTOR, _VECTOR), [scores])
        power = builder.fdiv(builder.fmul(size, _constant(-2.0)), cap)
        small, one = _exp(builder, power), _constant(1.0)
        tanh = builder.fdiv(builder.fsub(one, small), builder.fadd(one, small))
        copysign = _intrinsic_of(builder, "llvm.copysign", _VECTOR, _VECTOR, _VECTOR)
        return builder.call(copysign, [builder.fmul(cap, tanh), scores])

    return _vector(_vector, types.float32), build


def _exp(builder: Any, x: Any) -> Any:
    """Emit e ** x, x at most 0, within 2e-7 (relative); lanes below -87 count as -87."""
    words = ir.VectorType(ir.IntType(32), LANES)
    x = _max(builder, x, _constant(-87.0))
    half_more = _add_product(builder, _constant(0.5), x, _constant(1.44269504))  # 1 / ln 2
    power = builder.call(_intrinsic_of(builder, "llvm.floor", _VECTOR, _VECTOR), [half_more])
    # ln 2 in two parts: the first has few bits, so that its product is exact.
    rest = _add_product(builder, x, power, _constant(-0.693359375))
    rest = _add_product(builder, rest, power, _constant(2.12194440e-4))
    series = _constant(1 / 5040)
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        series = _add_product(builder, _constant(1 / factorial), series, rest)
    exponent = builder.add(builder.fptosi(power, words), ir.Constant(words, [127] * LANES))
    shifted = builder.shl(exponent, ir.Constant(words, [23] * LANES))
    return builder.fmul(series, builder.bitcast(shifted, _VECTOR))


def _constant(value: float) -> Any:
    return ir.Constant(_VECTOR, [float(np.float32(value))] * LANES)


def _max(builder: Any, left: Any, right: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def _add_product(builder: Any, term: Any, left: Any, right: Any) -> Any:
    """Emit term + left * right, fused where the CPU can."""
    product = builder.fmul(left, right, flags=("contract",))
    return builder.fadd(term, product, flags=("contract",))


def _intrinsic_of(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Return LLVM's function `name` for our vectors."""
    return cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(result, arguments), f"{name}.v{LANES}f32"
    )


@intrinsic
def _pointer_to(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), build


@intrinsic
def _take(typing: Any, counter: Any) -> Any:
    """Return the int64 at the address `counter` and add one to it, as one atomic operation."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        return builder.atomic_rmw(
            "add", builder.bitcast(arguments[0], word.as_pointer()), word(1), "monotonic"
        )

    return types.int64(types.voidptr), build


# --- the arithmetic ---


def _can_cache() -> bool:
    """Return whether compiled code can be kept: next to this file, or else in the user's cache."""
    try:
        numba.njit(cache=True)(_can_cache)  # compiles nothing yet, only looks for a place
    except RuntimeError:
        log.warning("no place for compiled kernels, each start compiles them again")
        return False
    return True


_CACHE = _can_cache()


def _jit(**options: bool) -> Any:
    return numba.njit(cache=_CACHE, nogil=True, error_model="numpy", **options)


# What the threads of one call share, and are given the address of.
FRAME = np.dtype(
    [
        ("next", np.int64),  # the first unit of work nobody has taken
        *((name, np.intp) for name in ("q", "out", "cache", "table", "pieces")),  # addresses
        *((name, np.int64) for name in ("num_tokens", "cache_size", "num_sequences")),
        *((name, np.int64) for name in ("table_width", "num_pieces", "num_heads")),
        *((name, np.int64) for name in ("num_kv_heads", "head_dim", "block_size", "window")),
        *((name, np.float32) for name in ("scale", "softcap")),
    ],
    align=True,
)


@_jit()
def _round_up(size):
    return (size + LANES - 1) // LANES * LANES


@_jit(forceinline=True)
def _panel(rows, n, a, a_at, b, b_at, b_step, out, out_at, fresh):
    """out[i, 0:LANES] = (fresh ? 0 : out[i]) + sum over j < n of a[i, j] * b[j, 0:LANES].

    rows: a tuple with an element per row i; all sums stay in registers.  Two sums a row, because
    one alone would wait for its last addition.
    """
    even = _zeros(rows) if fresh else _load_rows(rows, out, out_at)
    odd = _zeros(rows)
    for j in range(0, n - 1, 2):
        even = _add_scaled(even, a, a_at + j, _load(b, b_at + j * b_step))
        odd = _add_scaled(odd, a, a_at + j + 1, _load(b, b_at + (j + 1) * b_step))
    if n % 2:
        even = _add_scaled(even, a, a_at + n - 1, _load(b, b_at + (n - 1) * b_step))
    _store_rows(_plus(even, odd), out, out_at)


_EIGHT, _FOUR, _THREE, _TWO, _ONE = ((0,) * count for count in (8, 4, 3, 2, 1))


@_jit(forceinline=True)
def _product(num_rows, n, width, a, a_at, b, b_at, b_step, out, out_at, fresh):
    """out[num_rows, width] = (fresh ? 0 : out) + a[num_rows, n] @ b[n, width].

    a, out: scratch, from a_at and out_at on; b: of the cache.  width is rounded up to LANES.
    """
    for column in range(0, width, LANES):
        row = 0
        while row < num_rows:
            x, y, z = a_at + row * _ROW_STEP, b_at + column, out_at + row * _ROW_STEP + column
            left = num_rows - row
            if left >= 8:
                _panel(_EIGHT, n, a, x, b, y, b_step, out, z, fresh)
                row += 8
            elif left >= 4:
                _panel(_FOUR, n, a, x, b, y, b_step, out, z, fresh)
                row += 4
            elif left == 3:
                _panel(_THREE, n, a, x, b, y, b_step, out, z, fresh)
                row += 3
            elif left == 2:
                _panel(_TWO, n, a, x, b, y, b_step, out, z, fresh)
                row += 2
            else:
                _panel(_ONE, n, a, x, b, y, b_step, out, z, fresh)
                row += 1


@_jit()
def _soften(row, start, stop, softcap, state, sums):
    """Turn a tile's scores [start, stop) into weights, the others into 0; keep the softmax running.

    row: whole vectors.  state: the highest score and the total weight so far, which are updated,
    and `sums` with them.
    """
    if start >= stop:
        row[:] = 0
        return
    if softcap > 0:
        for t in range(0, row.size, LANES):
            _store_rows((_capped(_load(row, t), softcap),), row, t)
    row[:start] = _LOWEST
    row[stop:] = _LOWEST
    peaks = _load(row, 0)
    for t in range(LANES, row.size, LANES):
        peaks = _larger(peaks, _load(row, t))
    highest = max(state[0], _largest(peaks))
    if highest > state[0]:
        factor = np.float32(math.exp(state[0] - highest))
        state[0], state[1] = highest, state[1] * factor
        for d in range(sums.size):
            sums[d] *= factor
    total = _zeros(_ONE)
    for t in range(0, row.size, LANES):
        weights = (_exp_below(_load(row, t), highest),)
        _store_rows(weights, row, t)
        total = _plus(total, weights)
    row[:start] = 0
    row[stop:] = 0
    state[1] += _sum(total[0])


@_jit()
def _score(num_rows, queries, cache, blocks, length, head, frame, scores):
    """Write queries . keys to scores, for the first `length` tokens of `blocks`.

    The lanes behind a block's last token hold anything; the next block overwrites them.
    """
    size, dim = frame.block_size, _round_up(frame.head_dim)
    for i, t in enumerate(range(0, length, size)):
        at = (np.int64(blocks[i]) * frame.num_kv_heads + head) * 2 * dim * size
        count = min(size, length - t)
        _product(num_rows, frame.head_dim, count, queries, 0, cache, at, size, scores, t, True)


@_jit()
def _gather(num_rows, weights, cache, blocks, length, head, frame, sums):
    """Add weights . values to sums, for the first `length` tokens of `blocks`."""
    size, dim = frame.block_size, _round_up(frame.head_dim)
    for i, t in enumerate(range(0, length, size)):
        at = ((np.int64(blocks[i]) * frame.num_kv_heads + head) * 2 + 1) * dim * size
        count = min(size, length - t)
        if count == _USUAL_BLOCK:  # a constant, so that the loop over the tokens is unrolled
            _product(num_rows, _USUAL_BLOCK, dim, weights, t, cache, at, dim, sums, 0, False)
        else:
            _product(num_rows, count, dim, weights, t, cache, at, dim, sums, 0, False)


@_jit()
def _attend(piece, head, q, cache, blocks, out, frame, queries, scores, sums, state):
    """Attend with one run of a sequence's new tokens over one KV head.

    piece: sequence, first token (row of q), number of tokens, position of the first.
    blocks: the sequence's block table.  queries, scores, sums, state: scratch of the thread, a row
    per query row (token times head of the group); state is the running highest score and sum.
    """
    first, count, position = piece[1], piece[2], piece[3]
    group, dim = frame.num_heads // frame.num_kv_heads, _round_up(frame.head_dim)
    num_rows = count * group
    for row in range(num_rows):
        source = q[first + row // group, head * group + row % group]
        for d in range(frame.head_dim):
            queries[row * _ROW_STEP + d] = source[d] * frame.scale
        state[row, 0], state[row, 1] = _LOWEST, np.float32(0)
    sums[: num_rows * _ROW_STEP] = 0

    size, stop = frame.block_size, position + count
    num_tile_blocks = KEY_TILE // size
    first_block = max(position - frame.window + 1, 0) // size
    for block in range(first_block, (stop + size - 1) // size, num_tile_blocks):
        begin, tile = block * size, blocks[block : block + num_tile_blocks]
        length = min(num_tile_blocks * size, stop - begin)
        _score(num_rows, queries, cache, tile, length, head, frame, scores)
        for row in range(num_rows):
            last = position + row // group - begin
            _soften(
                scores[row * _ROW_STEP : row * _ROW_STEP + _round_up(length)],
                max(last - frame.window + 1, 0),
                min(last + 1, length),
                frame.softcap,
                state[row],
                sums[row * _ROW_STEP : row * _ROW_STEP + dim],
            )
        _gather(num_rows, scores, cache, tile, length, head, frame, sums)

    for row in range(num_rows):
        target = out[first + row // group, head * group + row % group]
        for d in range(frame.head_dim):
            target[d] = sums[row * _ROW_STEP + d] / state[row, 1]


@_jit()
def _work(q, cache, table, pieces, out, frame, frame_address):
    """Take units of work, a piece times a KV head, until there are none."""
    rows = max(ROW_TILE, frame.num_heads // frame.num_kv_heads)
    queries = np.empty(rows * _ROW_STEP, np.float32)
    sums = np.empty(rows * _ROW_STEP, np.float32)
    scores = np.empty(rows * _ROW_STEP, np.float32)
    state = np.empty((rows, 2), np.float32)
    while True:
        unit = _take(frame_address)
        if unit >= frame.num_pieces * frame.num_kv_heads:
            return
        piece, head = pieces[unit // frame.num_kv_heads], unit % frame.num_kv_heads
        blocks = table[piece[0]]
        _attend(piece, head, q, cache, blocks, out, frame, queries, scores, sums, state)


# --- what the backend calls ---

_tasks: list[object] = []  # the owners of the compiled code, for the process's life


@functools.cache
def compile_task(bits: type[np.generic]) -> int:
    """Return the address of what each thread runs: a C function of the address of a FRAME."""

    @numba.cfunc(types.void(types.voidptr), cache=_CACHE)
    def task(address):
        frame = numba.carray(address, 1, FRAME)[0]
        shape = (frame.num_tokens, frame.num_heads, frame.head_dim)
        _work(
            numba.carray(_pointer_to(frame.q), shape, np.float32),
            numba.carray(_pointer_to(frame.cache), frame.cache_size, bits),
            numba.carray(
                _pointer_to(frame.table), (frame.num_sequences, frame.table_width), np.int32
            ),
            numba.carray(_pointer_to(frame.pieces), (frame.num_pieces, 4), np.int64),
            numba.carray(_pointer_to(frame.out), shape, np.float32),
            frame,
            address,
        )

    address: int = task.address
    _tasks.append(task)
    return address


@_jit()
def _store(k, v, slots, cache, block_size):
    """Copy the raw bits of k, v [N, Hk, D] to their slots."""
    num_heads, head_dim = k.shape[1], k.shape[2]
    dim = _round_up(head_dim)
    for token in range(slots.size):
        block, offset = slots[token] // block_size, slots[token] % block_size
        for head in range(num_heads):
            keys_at = (block * num_heads + head) * 2 * dim * block_size
            values_at = keys_at + (block_size + offset) * dim
            for d in range(head_dim):
                cache[keys_at + d * block_size + offset] = k[token, head, d]
                cache[values_at + d] = v[token, head, d]


Bits = npt.NDArray[np.float32] | npt.NDArray[np.uint16] | npt.NDArray[np.int16]


def store(k: Bits, v: Bits, slots: npt.NDArray[np.int64], cache: Bits, block_size: int) -> None:
    """Copy k, v [N, Hk, D] to their slots.  cache: one layer, flat."""
    _store(k, v, slots, cache, block_size)
