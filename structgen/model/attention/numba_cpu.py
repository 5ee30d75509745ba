"""The default on CPU: paged attention compiled by numba, close to what memory bandwidth allows.

The keys and values of a (block, KV head) are contiguous, so that they are read once, in order, for
the whole group of query heads that shares them.  Keys lie transposed:

    layer [num_blocks, Hk, 2, D * S]     0: keys [D, S]     1: values [S, D]

with S, D = block_size and head_dim rounded up to the vector width.  Then both products are sums of
a vector times a scalar, 16 tokens or 16 dimensions at a time, and nothing is ever reduced across a
vector:

    scores[16 tokens] += q[d] * keys[d, 16 tokens]     out[16 dims] += weight[t] * values[t, 16 dims]

Work is cut into pieces, a run of one sequence's new tokens times one KV head; each thread gets
consecutive pieces of about the same total cost.  Arithmetic is float32.  numba has no bfloat16, so
the cache is passed as raw bits: the dtype of the array says how to widen them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import numba
import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

from structgen import logs
from structgen.errors import ConfigError
from structgen.model.attention.base import AttentionBackend, AttentionMetadata

log = logs.get(__name__)

LANES = 16  # float32 of an AVX-512 register; LLVM splits vectors where registers are smaller
KEY_TILE = 256  # keys between two updates of the running softmax; the largest block size
SCORE_STEP = KEY_TILE + LANES  # from a row of scores to the next
ROW_TILE = 64  # query rows (new tokens times heads of a group) of one piece of work

# Raw bits by cache dtype.  float16 is told from bfloat16 by the sign of the integer.
_BITS = {torch.float32: np.float32, torch.bfloat16: np.uint16, torch.float16: np.int16}

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)


# --- vectors: a numba type, and the five operations that the kernel is made of ---


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


def _offsets(builder: Any, at: Any, step: Any, count: int) -> list[Any]:
    return [builder.add(at, builder.mul(step, step.type(i))) for i in range(count)]


@intrinsic  # type: ignore[misc]
def _zeros(typing: Any, rows: Any) -> Any:
    """Return a vector of zeros for each element of the tuple `rows`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        return context.make_tuple(builder, signature.return_type, [zero] * len(rows))

    return types.UniTuple(_vector, len(rows))(rows), build


@intrinsic  # type: ignore[misc]
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


@intrinsic  # type: ignore[misc]
def _load_rows(typing: Any, rows: Any, array: Any, at: Any, step: Any) -> Any:
    """Return the vectors at array[at], array[at + step], ..., one per element of `rows`."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, source, start, stride = arguments
        vectors = [
            _read(builder, _pointer(context, builder, array, source, offset), _FLOAT)
            for offset in _offsets(builder, start, stride, len(rows))
        ]
        return context.make_tuple(builder, signature.return_type, vectors)

    return types.UniTuple(_vector, len(rows))(rows, array, types.intp, types.intp), build


@intrinsic  # type: ignore[misc]
def _store_rows(typing: Any, vectors: Any, array: Any, at: Any, step: Any) -> Any:
    """Write the vectors to array[at], array[at + step], ..."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, target, start, stride = arguments
        for i, offset in enumerate(_offsets(builder, start, stride, len(vectors))):
            pointer = _pointer(context, builder, array, target, offset)
            vector = builder.extract_value(tuple_, i)
            builder.store(vector, builder.bitcast(pointer, _VECTOR.as_pointer())).align = 4
        return context.get_dummy_value()

    return types.void(vectors, array, types.intp, types.intp), build


@intrinsic  # type: ignore[misc]
def _add_scaled(typing: Any, sums: Any, scalars: Any, at: Any, step: Any, vector: Any) -> Any:
    """Return sums[i] + scalars[at + i * step] * vector for each i."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_, source, start, stride, factor = arguments
        results = []
        for i, offset in enumerate(_offsets(builder, start, stride, len(sums))):
            scalar = builder.load(_pointer(context, builder, scalars, source, offset))
            product = builder.fmul(_splat(builder, scalar), factor, flags=("contract",))
            old = builder.extract_value(tuple_, i)
            results.append(builder.fadd(old, product, flags=("contract",)))
        return context.make_tuple(builder, signature.return_type, results)

    return sums(sums, scalars, types.intp, types.intp, _vector), build


@intrinsic  # type: ignore[misc]
def _as_float(typing: Any, bits: Any) -> Any:
    """Return the float32 with these 32 bits."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), build


@intrinsic  # type: ignore[misc]
def _pointer_to(typing: Any, address: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.intp), build


@intrinsic  # type: ignore[misc]
def _take(typing: Any, counter: Any) -> Any:
    """Return the int64 at the address `counter` and add one to it, as one atomic operation."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        return builder.atomic_rmw(
            "add", builder.bitcast(arguments[0], word.as_pointer()), word(1), "monotonic"
        )

    return types.int64(types.voidptr), build


# --- the kernel ---

# Sums may be reordered.  Infinities stay what they are.
_FAST = {"reassoc", "contract", "arcp", "nsz", "nnan"}


def _jit(**options: Any) -> Any:
    """Compile with the cache on disk, in the package or, if that is read-only, in the user's."""
    return numba.njit(cache=True, nogil=True, error_model="numpy", **options)


# What the threads of one call share, and are given the address of.
_FRAME = np.dtype(
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


_ONE, _TWO, _THREE, _FOUR = ((0,) * count for count in (1, 2, 3, 4))


@_jit()
def _panel(rows, n, a, a_at, a_step, b, b_at, b_step, out, out_at, out_step, fresh):  # type: ignore[no-untyped-def]
    """out[i, 0:LANES] = (fresh ? 0 : out[i]) + sum over j < n of a[i, j] * b[j, 0:LANES]."""
    sums = _zeros(rows) if fresh else _load_rows(rows, out, out_at, out_step)
    for j in range(n):
        sums = _add_scaled(sums, a, a_at + j, a_step, _load(b, b_at + j * b_step))
    _store_rows(sums, out, out_at, out_step)


@_jit()
def _product(  # type: ignore[no-untyped-def]
    num_rows, n, width, a, a_at, a_step, b, b_at, b_step, out, out_at, out_step, fresh
):
    """out[num_rows, width] = (fresh ? 0 : out) + a[num_rows, n] @ b[n, width]; width in LANES."""
    for column in range(0, width, LANES):
        b_from = b_at + column
        row = 0
        while row < num_rows:
            a_from, out_from = a_at + row * a_step, out_at + row * out_step + column
            left = num_rows - row
            if left >= 4:
                _panel(
                    _FOUR, n, a, a_from, a_step, b, b_from, b_step, out, out_from, out_step, fresh
                )
                row += 4
            elif left == 3:
                _panel(
                    _THREE, n, a, a_from, a_step, b, b_from, b_step, out, out_from, out_step, fresh
                )
                row += 3
            elif left == 2:
                _panel(
                    _TWO, n, a, a_from, a_step, b, b_from, b_step, out, out_from, out_step, fresh
                )
                row += 2
            else:
                _panel(
                    _ONE, n, a, a_from, a_step, b, b_from, b_step, out, out_from, out_step, fresh
                )
                row += 1


@_jit(fastmath=_FAST - {"reassoc"})
def _exp(x):  # type: ignore[no-untyped-def]
    """e ** x within 1e-7 (relative), for x in [-87, 88]; inlined, so loops over it vectorise."""
    power = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    # ln 2 in two parts: the first has few bits, so the product is exact.
    rest = x - power * np.float32(0.693359375) + power * np.float32(2.12194440e-4)
    series = np.float32(1.9875691500e-4)
    series = series * rest + np.float32(1.3981999507e-3)
    series = series * rest + np.float32(8.3334519073e-3)
    series = series * rest + np.float32(4.1665795894e-2)
    series = series * rest + np.float32(1.6666665459e-1)
    series = series * rest + np.float32(5.0000001201e-1)
    series = series * rest * rest + rest + np.float32(1)
    return series * _as_float((np.int32(power) + np.int32(127)) << np.int32(23))


@_jit()
def _round_up(size):  # type: ignore[no-untyped-def]
    return (size + LANES - 1) // LANES * LANES


@_jit(fastmath=_FAST)
def _cap(row, start, stop, softcap):  # type: ignore[no-untyped-def]
    """row = softcap * tanh(row / softcap), in place."""
    for t in range(start, stop):
        doubled = min(max(row[t] * (np.float32(2) / softcap), np.float32(-30)), np.float32(30))
        row[t] = softcap - softcap * np.float32(2) / (_exp(doubled) + np.float32(1))


@_jit(fastmath=_FAST)
def _highest(row, start, stop, highest):  # type: ignore[no-untyped-def]
    for t in range(start, stop):
        highest = max(highest, row[t])
    return highest


@_jit(fastmath=_FAST)
def _exponentiate(row, start, stop, highest):  # type: ignore[no-untyped-def]
    """row = exp(row - highest), in place; returns the sum."""
    total = np.float32(0)
    for t in range(start, stop):
        row[t] = _exp(max(row[t] - highest, np.float32(-87)))
        total += row[t]
    return total


@_jit(fastmath=_FAST)
def _soften(row, start, stop, softcap, highest, total, sums):  # type: ignore[no-untyped-def]
    """Turn a tile's scores [start, stop) into weights, the others into 0; keep the softmax running.

    Returns the new highest score and total weight; `sums` so far is rescaled to them.
    """
    row[:start] = 0
    row[max(stop, 0) :] = 0
    if start >= stop:
        return highest, total
    if softcap > 0:
        _cap(row, start, stop, softcap)
    new_highest = _highest(row, start, stop, highest)
    if new_highest > highest:
        factor = _exp(max(highest - new_highest, np.float32(-87)))
        total *= factor
        for d in range(sums.size):
            sums[d] *= factor
    return new_highest, total + _exponentiate(row, start, stop, new_highest)


@_jit()
def _score(num_rows, queries, cache, blocks, begin, end, head, frame, scores):  # type: ignore[no-untyped-def]
    """Write queries . keys [begin, end) to scores, a block at a time.

    The lanes behind a block's last token hold anything; the next block overwrites them.
    """
    size, dim = frame.block_size, _round_up(frame.head_dim)
    for t in range(begin, end, size):
        block = np.int64(blocks[t // size])
        keys_at = (block * frame.num_kv_heads + head) * 2 * dim * size
        _product(
            num_rows, frame.head_dim, min(size, end - t), queries, 0, dim,
            cache, keys_at, size, scores, t - begin, SCORE_STEP, True,
        )  # fmt: skip


@_jit()
def _gather(num_rows, weights, cache, blocks, begin, end, head, frame, sums):  # type: ignore[no-untyped-def]
    """Add weights . values [begin, end) to sums."""
    size, dim = frame.block_size, _round_up(frame.head_dim)
    for t in range(begin, end, size):
        block = np.int64(blocks[t // size])
        values_at = ((block * frame.num_kv_heads + head) * 2 + 1) * dim * size
        _product(
            num_rows, min(size, end - t), dim, weights, t - begin, SCORE_STEP,
            cache, values_at, dim, sums, 0, dim, False,
        )  # fmt: skip


@_jit(fastmath=_FAST)
def _attend(piece, head, q, cache, blocks, out, frame, queries, scores, sums, state):  # type: ignore[no-untyped-def]
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
            queries[row * dim + d] = source[d] * frame.scale
        state[row, 0], state[row, 1] = np.float32(-3e38), np.float32(0)
    sums[: num_rows * dim] = 0

    size = frame.block_size
    stop = position + count
    step = KEY_TILE // size * size
    for begin in range(max(position - frame.window + 1, 0) // size * size, stop, step):
        end = min(begin + step, stop)
        _score(num_rows, queries, cache, blocks, begin, end, head, frame, scores)
        for row in range(num_rows):
            last = position + row // group
            state[row, 0], state[row, 1] = _soften(
                scores[row * SCORE_STEP : row * SCORE_STEP + end - begin],
                max(last - frame.window + 1 - begin, 0),
                min(last + 1, end) - begin,
                frame.softcap, state[row, 0], state[row, 1], sums[row * dim : (row + 1) * dim],
            )  # fmt: skip
        _gather(num_rows, scores, cache, blocks, begin, end, head, frame, sums)

    for row in range(num_rows):
        target = out[first + row // group, head * group + row % group]
        for d in range(frame.head_dim):
            target[d] = sums[row * dim + d] / state[row, 1]


@_jit()
def _work(q, cache, table, pieces, out, frame, frame_address):  # type: ignore[no-untyped-def]
    """Take units of work, a piece times a KV head, until there are none."""
    dim = _round_up(frame.head_dim)
    rows = max(ROW_TILE, frame.num_heads // frame.num_kv_heads)
    queries = np.zeros(rows * dim, np.float32)
    sums = np.empty(rows * dim, np.float32)
    scores = np.empty(rows * SCORE_STEP, np.float32)
    state = np.empty((rows, 2), np.float32)
    while True:
        unit = _take(frame_address)
        if unit >= frame.num_pieces * frame.num_kv_heads:
            return
        piece, head = pieces[unit // frame.num_kv_heads], unit % frame.num_kv_heads
        _attend(
            piece, head, q, cache, table[piece[0]], out, frame, queries, scores, sums, state
        )  # fmt: skip


@functools.cache
def _task(bits: type[np.generic]) -> Any:
    """Compile what each thread runs, for a cache of such raw bits: a C function of the frame."""

    @numba.cfunc(types.void(types.voidptr), cache=True)  # type: ignore[misc]
    def task(address):  # type: ignore[no-untyped-def]
        frame = numba.carray(address, 1, _FRAME)[0]
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

    return task


@_jit()
def _store(k, v, slots, cache, block_size):  # type: ignore[no-untyped-def]
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


# --- the backend ---


class _Pieces(NamedTuple):
    """The work of one step, the same in every layer.  table, cells: [num_pieces, 4], see _attend."""

    meta: AttentionMetadata
    group: int
    cells: npt.NDArray[np.int64]


class NumbaCpuAttention(AttentionBackend):
    """See the top of the file.  Runs on the threads that torch's own operators run on."""

    name: ClassVar[str] = "numba_cpu"

    def __init__(self, threads: int) -> None:
        """threads: as many as torch has; OpenMP rebuilds its pool when the number changes."""
        self._threads = threads
        self._run_parallel = _openmp() if threads > 1 else None
        self._pieces: _Pieces | None = None

    def kv_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        return (num_blocks, num_kv_heads, 2, block_size, -(-head_dim // LANES) * LANES)

    def prepare(self, kv_dtype: torch.dtype) -> None:
        if kv_dtype not in _BITS:
            raise ConfigError(f"kv_dtype must be one of {sorted(map(str, _BITS))}, got {kv_dtype}")
        bits = _BITS[kv_dtype]
        _task(bits)
        none = np.empty((0, 1, 1), bits)
        _store(none, none, np.empty(0, np.int64), np.empty(0, bits), 1)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        kv_layer: torch.Tensor,
        meta: AttentionMetadata,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        cache = _raw(kv_layer.view(-1))
        block_size = kv_layer.shape[3]
        keys, values = (_raw(tensor.to(kv_layer.dtype).contiguous()) for tensor in (k, v))
        _store(keys, values, meta.slot_mapping.numpy(), cache, block_size)

        queries = q.float().contiguous()
        out = torch.empty_like(queries)
        pieces = self._cut(meta, group=q.shape[1] // k.shape[1])
        frame = np.zeros(1, _FRAME)
        frame[0] = (
            0,
            queries.data_ptr(),
            out.data_ptr(),
            kv_layer.data_ptr(),
            meta.block_table.data_ptr(),
            pieces.ctypes.data,
            len(queries),
            cache.size,
            *meta.block_table.shape,
            len(pieces),
            q.shape[1],
            k.shape[1],
            q.shape[2],
            block_size,
            meta.max_k if window is None else window,
            scale,
            softcap or 0.0,
        )
        self._run(_task(_BITS[kv_layer.dtype]).address, frame.ctypes.data)
        return out.to(q.dtype)

    def _cut(self, meta: AttentionMetadata, group: int) -> npt.NDArray[np.int64]:
        """Return the pieces of a step; the same object for each layer of one forward."""
        pieces = self._pieces
        if pieces is None or pieces.meta is not meta or pieces.group != group:
            pieces = self._pieces = _Pieces(meta, group, _cut(meta, max(1, ROW_TILE // group)))
        return pieces.cells

    def _run(self, task: int, frame: int) -> None:
        if self._run_parallel is None:
            _TASK(task)(frame)
        else:
            self._run_parallel(task, frame, self._threads, 0)


_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _openmp() -> Callable[[int, int, int, int], None] | None:
    """Return GNU OpenMP's "run this function on a team of threads", or None without that library.

    It is the library that torch computes with, loaded by torch.  A pool of our own (numba has
    three kinds) would fight with torch's for the cores: the threads of either go on spinning for
    a while when their work is done, just when the other's have something to do.
    """
    try:
        run = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        log.warning("no GNU OpenMP in this process, attention runs on one thread")
        return None
    run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    run.restype = None
    return cast("Callable[[int, int, int, int], None]", run)


def _raw(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a view of the tensor's bits that `_load` knows how to widen."""
    if tensor.dtype == torch.float32:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(_BITS[tensor.dtype])


def _cut(meta: AttentionMetadata, most: int) -> npt.NDArray[np.int64]:
    """Cut each sequence's new tokens into pieces of at most `most`; the costly ones first.

    Returns [num_pieces, 4]: sequence, first token, number of tokens, position of the first.
    """
    starts = meta.cu_seqlens_q.numpy().astype(np.int64)
    lengths = np.diff(starts)
    counts = -(-lengths // most)
    sequence = np.repeat(np.arange(len(lengths)), counts)
    index = np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[sequence] + index * most
    ends = starts[sequence + 1]
    count = np.minimum(most, ends - first)
    position = meta.seq_lens.numpy()[sequence] - (ends - first)
    order = np.argsort(-count * (position + count), kind="stable")
    return np.stack([sequence, first, count, position], axis=1)[order]
