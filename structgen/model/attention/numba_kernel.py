"""The kernel of numba_cpu: attention over a paged cache, compiled for this machine's vectors.

Both products of attention are sums of a vector times a scalar, so that nothing is ever added up
across a vector, and a block of sums stays in registers:

    scores[row, token...] += query[row, d] * keys[d, token...]
    sums[row, d...] += weight[row, token] * values[token, d...]

where a row is a new token times a query head of the group.  Keys are taken in tiles of KEY_TILE
tokens that begin at the same positions whoever asks, and each row has sums of its own, added up in
one order: what comes out for a token depends neither on its neighbours in the batch nor on how a
prompt was cut into chunks.

The keys and values of a (block, KV head), with two numbers of 16 bits or one of 32 in a word:

    keys   [D / pack, block_size, pack]
    values [block_size / pack, D, pack]     the last token of an odd block has its row unpaired

Scratch is rows of float32, SCORE_STEP or DIM_STEP bytes apart.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import functools

import numba
import numpy as np

from structgen.model.attention import numba_panels, numba_store, numba_vectors
from structgen.model.attention.numba_panels import (
    DIM_STEP,
    KEY_TILE,
    SCORE_STEP,
    score_panel,
    value_panel,
)
from structgen.model.attention.numba_store import half_bytes, round_up, store_all
from structgen.model.attention.numba_vectors import (
    LOWEST,
    Kind,
    capped,
    lanes,
    load,
    pack,
    power_of_two,
    read_number,
    read_numbers,
    rounded,
    scalar_bytes,
    splat,
    write_output,
    write_scalar,
    write_weights,
)
from structgen.model.compiled import compiler, instructions, threads, vectors
from structgen.model.compiled.compiler import inline, jit
from structgen.model.compiled.threads import COUNTER_BYTES, call_for_number, take
from structgen.model.compiled.vectors import larger, largest, pointer_to, store, total

ROW_TILE = 48  # query rows (new tokens times heads of a group) of one unit of work

_LOG2_E = np.float32(1.4426950408889634)

# What the threads of one call share, and are given the address of.  All of 8 bytes.
# units: int64 [num_units, 5], sequence, first new token, number of them, position of the first, KV
# head.  shares: int64 [num_threads + 1], where the units of each thread begin.  counters: zeros,
# int64 [2, num_threads, COUNTER] (threads.py), of what is stored and of the units.  barrier,
# thread_number: C functions.
ADDRESSES = (
    *("q", "k", "v", "out", "cache", "slots", "table", "scratch"),
    *("units", "shares", "counters", "barrier", "thread_number"),
)
STRIDES = ("q_token", "q_head", "k_token", "k_head", "v_token", "v_head")  # in bytes
COUNTS = (
    *("num_threads", "num_tokens", "num_sequences", "table_width", "num_units", "num_heads"),
    *("num_kv_heads", "head_dim", "block_size", "window", "scratch_bytes", "input_bytes"),
)
FRAME = np.dtype(
    [
        *((name, np.int64) for name in (*ADDRESSES, *STRIDES, *COUNTS)),
        *((name, np.float64) for name in ("scale", "softcap")),
    ]
)


def scratch_bytes(num_rows: int) -> int:
    """Return the bytes of scratch that a thread needs for units of at most so many rows."""
    needed = num_rows * (SCORE_STEP + 2 * DIM_STEP + 8) + KEY_TILE * 4 * 8
    return (needed + 4095) // 4096 * 4096  # threads write to pages of their own


# --- the two products ---

_ROWS = {16: (0,) * 6, 8: (0,) * 3}  # that fit in registers, with four columns
_FOUR, _THREE, _TWO, _ONE = ((0,) * count for count in (4, 3, 2, 1))


@inline()
def _score_rows(kind, tall, columns, num_rows, num_words, queries, keys, size, scores, ahead):
    row = 0
    while row < num_rows:
        q, s, left = queries + row * DIM_STEP, scores + row * SCORE_STEP, num_rows - row
        if left >= len(tall):
            score_panel(kind, tall, columns, num_words, q, keys, size * 4, s, ahead)
            row += len(tall)
        elif left >= 3:
            score_panel(kind, _THREE, columns, num_words, q, keys, size * 4, s, ahead)
            row += 3
        elif left == 2:
            score_panel(kind, _TWO, columns, num_words, q, keys, size * 4, s, ahead)
            row += 2
        else:
            score_panel(kind, _ONE, columns, num_words, q, keys, size * 4, s, ahead)
            row += 1


@jit()
def _score(kind, tall, num_rows, frame, queries, columns, tokens, scores):
    """Write queries . keys to scores.

    columns: the address of a list, of the address of each whole vector of tokens.  tokens: their
    first tokens, in the tile.  Lanes behind a block's last token hold anything, and the next column
    overwrites them.
    """
    size, num_words = frame.block_size, (frame.head_dim + pack(kind) - 1) // pack(kind)
    half = half_bytes(kind, frame)  # the values are read next
    column = 0
    while column < tokens.size:
        keys, target = columns + column * 8, scores + tokens[column] * 4
        if tokens.size - column >= 4 and size % lanes(kind) == 0:
            _score_rows(kind, tall, _FOUR, num_rows, num_words, queries, keys, size, target, half)
            column += 4
        else:
            _score_rows(kind, tall, _ONE, num_rows, num_words, queries, keys, size, target, half)
            column += 1


@inline()
def _value_rows(kind, tall, columns, num_rows, weights, blocks, length, size, dim, at, sums, ahead):
    row = 0
    while row < num_rows:
        w, s = weights + row * SCORE_STEP, sums + row * DIM_STEP + at * 4
        left = num_rows - row
        if left >= len(tall):
            value_panel(kind, tall, columns, w, blocks, length, size, dim, at, s, ahead)
            row += len(tall)
        elif left >= 3:
            value_panel(kind, _THREE, columns, w, blocks, length, size, dim, at, s, ahead)
            row += 3
        elif left == 2:
            value_panel(kind, _TWO, columns, w, blocks, length, size, dim, at, s, ahead)
            row += 2
        else:
            value_panel(kind, _ONE, columns, w, blocks, length, size, dim, at, s, ahead)
            row += 1


@jit()
def _gather(kind, tall, num_rows, frame, weights, blocks, ahead, length, sums):
    """Add weights . values to sums, for the first `length` tokens of `blocks`."""
    size, dim = frame.block_size, round_up(frame.head_dim, lanes(kind))
    at = 0
    while at < dim:
        if dim - at >= 4 * lanes(kind):
            _value_rows(
                kind, tall, _FOUR, num_rows, weights, blocks, length, size, dim, at, sums, ahead
            )
            at += 4 * lanes(kind)
        else:
            _value_rows(
                kind, tall, _ONE, num_rows, weights, blocks, length, size, dim, at, sums, ahead
            )
            at += lanes(kind)


# --- the softmax ---


@jit()
def _soften(kind, frame, row, start, stop, width, state, sums, dim):
    """Turn a row's scores [start, stop) into weights, the others into 0; keep the softmax running.

    row: the address of `width` scores, whole vectors.  state: the highest score and the total
    weight so far, which are updated, and `sums` with them.
    """
    step = lanes(kind) * 4
    if start >= stop:
        for at in range(0, width * 4, step):
            store(splat(kind, np.float32(0)), row + at)
        return
    factor = np.float32(frame.scale * _LOG2_E)
    if frame.softcap > 0:
        factor, scale, softcap = _LOG2_E, np.float32(frame.scale), np.float32(frame.softcap)
        for at in range(0, width * 4, step):
            store(capped(kind, load(kind, row + at), scale, softcap), row + at)
    if start > 0 or stop < width:
        scores = numba.carray(pointer_to(row), width, np.float32)
        for t in range(start):
            scores[t] = LOWEST
        for t in range(stop, width):
            scores[t] = LOWEST
    peaks = load(kind, row)
    for at in range(step, width * 4, step):
        peaks = larger(peaks, load(kind, row + at))
    highest = max(state[0], largest(peaks))
    if highest > state[0]:
        shrink = power_of_two(kind, splat(kind, state[0]), factor, highest)
        for at in range(0, dim * 4, step):
            store(load(kind, sums + at) * shrink, sums + at)
        state[0], state[1] = highest, state[1] * largest(shrink)
    all_weights = splat(kind, np.float32(0))
    for at in range(0, width * 4, step):
        weights = rounded(kind, power_of_two(kind, load(kind, row + at), factor, highest))
        write_weights(kind, weights, row + at // 4 * scalar_bytes(kind))
        all_weights = all_weights + weights
    state[1] += total(all_weights)


# --- one unit of work: a run of new tokens of one sequence times a KV head ---


@inline()
def _copy_query(kind, frame, source, target):
    is_float32, width, source_width = frame.input_bytes == 4, scalar_bytes(kind), frame.input_bytes
    whole = frame.head_dim // lanes(kind) * lanes(kind)
    for d in range(0, whole, lanes(kind)):
        numbers = read_numbers(kind, source + d * source_width, is_float32)
        write_scalar(kind, numbers, target + d * width)
    for d in range(whole, frame.head_dim):
        number = read_number(source + d * source_width, is_float32)
        write_scalar(kind, number, target + d * width)
    write_scalar(kind, np.float32(0), target + frame.head_dim * width)  # the rest of a word


@jit()
def _begin(kind, frame, unit, queries, sums, state):
    """Lay out the queries of a unit, and clear what is summed up."""
    group, dim = frame.num_heads // frame.num_kv_heads, round_up(frame.head_dim, lanes(kind))
    row, head = 0, unit[4]
    for token in range(unit[1], unit[1] + unit[2]):
        for query_head in range(head * group, (head + 1) * group):
            source = frame.q + token * frame.q_token + query_head * frame.q_head
            _copy_query(kind, frame, source, queries + row * DIM_STEP)
            for at in range(0, dim * 4, lanes(kind) * 4):
                store(splat(kind, np.float32(0)), sums + row * DIM_STEP + at)
            state[row, 0], state[row, 1] = LOWEST, np.float32(0)
            row += 1


@jit()
def _finish(kind, frame, unit, sums, state):
    """Write the results of a unit."""
    group, is_float32 = frame.num_heads // frame.num_kv_heads, frame.input_bytes == 4
    whole = frame.head_dim // lanes(kind) * lanes(kind)
    row, head = 0, unit[4]
    for token in range(unit[1], unit[1] + unit[2]):
        for query_head in range(head * group, (head + 1) * group):
            index = (token * frame.num_heads + query_head) * frame.head_dim
            out, source = frame.out + index * frame.input_bytes, sums + row * DIM_STEP
            share = np.float32(1) / state[row, 1]
            for d in range(0, whole, lanes(kind)):
                numbers = load(kind, source + d * 4) * splat(kind, share)
                write_output(numbers, out + d * frame.input_bytes, is_float32)
            for d in range(whole, frame.head_dim):
                number = read_number(source + d * 4, True) * share
                write_output(number, out + d * frame.input_bytes, is_float32)
            row += 1


@jit()
def _list(kind, frame, head, table, length, columns, tokens, blocks):
    """List a tile's columns of keys and blocks of values; return the number of columns."""
    half, count = half_bytes(kind, frame), 0
    for i, t in enumerate(range(0, length, frame.block_size)):
        keys = frame.cache + (np.int64(table[i]) * frame.num_kv_heads + head) * 2 * half
        blocks[i] = keys + half
        for offset in range(0, min(frame.block_size, length - t), lanes(kind)):
            columns[count], tokens[count] = keys + offset * 4, t + offset
            count += 1
    return count


@jit()
def _list_ahead(kind, frame, unit, next_unit, table, begin, ahead):
    """List the keys that are to be asked for while the values of the tile at `begin` are read.

    They are what will be read a whole tile later, block by block: the rest of the unit's keys, then
    the next unit's.  What a short tile has no time to ask for was asked for by the one before it.
    """
    half, size = half_bytes(kind, frame), frame.block_size
    whole, at = KEY_TILE // size, begin // size
    first, stop = _first(frame, unit)
    num_blocks = (stop + size - 1) // size - at  # from here on
    left = num_blocks - whole  # behind this tile; less than none if it is short
    if begin == first:
        left = max(left, 0)
    own, others = table[unit[0]], table[next_unit[0]]
    next_first, next_stop = _first(frame, next_unit)
    next_first, next_last = next_first // size, (next_stop - 1) // size
    for i in range(min(num_blocks, whole)):
        if i < left:
            block, head = own[at + whole + i], unit[4]
        else:  # behind the end any will do
            block, head = others[min(next_first + i - left, next_last)], next_unit[4]
        ahead[i] = frame.cache + (np.int64(block) * frame.num_kv_heads + head) * 2 * half


@inline()
def _first(frame, unit):
    """Return where the first tile of a unit begins, and where its tokens end."""
    tile = KEY_TILE // frame.block_size * frame.block_size
    return max(unit[3] - frame.window + 1, 0) // tile * tile, unit[3] + unit[2]


@jit()
def _attend(kind, tall, frame, unit, next_unit, table, scratch, num_rows):
    """Do one unit.  next_unit: whose keys are to be read ahead.

    scratch: for num_rows rows, of the thread.
    """
    scores, queries = scratch, scratch + num_rows * SCORE_STEP
    sums = queries + num_rows * DIM_STEP
    rest = sums + num_rows * DIM_STEP
    state = numba.carray(pointer_to(rest), (num_rows, 2), np.float32)
    lists_at = rest + num_rows * 8
    lists = numba.carray(pointer_to(lists_at), (4, KEY_TILE), np.int64)
    blocks_at, ahead_at = lists_at + 2 * KEY_TILE * 8, lists_at + 3 * KEY_TILE * 8
    columns, tokens, blocks, ahead = lists[0], lists[1], lists[2], lists[3]
    _begin(kind, frame, unit, queries, sums, state)

    count, position, head, size = unit[2], unit[3], unit[4], frame.block_size
    group, dim = frame.num_heads // frame.num_kv_heads, round_up(frame.head_dim, lanes(kind))
    tile = KEY_TILE // size * size
    first, stop = _first(frame, unit)
    for begin in range(first, stop, tile):
        length = min(tile, stop - begin)
        width = round_up(length, lanes(kind))
        own = table[unit[0]]
        num_columns = _list(
            kind, frame, head, own[begin // size :], length, columns, tokens, blocks
        )
        _list_ahead(kind, frame, unit, next_unit, table, begin, ahead)
        _score(kind, tall, count * group, frame, queries, lists_at, tokens[:num_columns], scores)
        row = 0
        for last in range(position - begin, position + count - begin):
            seen, end = max(last - frame.window + 1, 0), min(last + 1, length)
            for _ in range(group):
                at, target = scores + row * SCORE_STEP, sums + row * DIM_STEP
                _soften(kind, frame, at, seen, end, width, state[row], target, dim)
                row += 1
        _gather(kind, tall, count * group, frame, scores, blocks_at, ahead_at, length, sums)
    _finish(kind, frame, unit, sums, state)


@jit()
def _work(kind, tall, frame, me):
    """Store, then do a thread's share of the units, and what others are late with."""
    num_rows, count = max(ROW_TILE, frame.num_heads // frame.num_kv_heads), frame.num_threads
    scratch = frame.scratch + me * frame.scratch_bytes
    store_all(kind, frame, me, scratch)
    table = numba.carray(
        pointer_to(frame.table), (frame.num_sequences, frame.table_width), np.int32
    )
    units = numba.carray(pointer_to(frame.units), (frame.num_units, 5), np.int64)
    shares = numba.carray(pointer_to(frame.shares), count + 1, np.int64)
    # Not by runs: each unit is taken before the last one is done, for its keys to be read ahead.
    for owner in range(me, me + count):
        owner %= count
        counter = frame.counters + (count + owner) * COUNTER_BYTES
        first, stop = (shares[owner], shares[owner + 1]) if count > 1 else (0, frame.num_units)
        index = first + take(counter)
        while index < stop:
            later = first + take(counter)
            ahead = units[min(later, stop - 1)]
            _attend(kind, tall, frame, units[index], ahead, table, scratch, num_rows)
            index = later


# --- what the backend calls ---


@functools.cache
def compile_task(kind: Kind) -> int:
    """Return the address of what each thread runs: a C function of the address of a FRAME."""
    tall = _ROWS[kind.lanes]
    source = compiler.digest(
        compiler, instructions, threads, vectors, numba_panels, numba_store, numba_vectors
    )

    def task(address):
        _ = source
        frame = numba.carray(address, 1, FRAME)[0]
        me = call_for_number(frame.thread_number) if frame.num_threads > 1 else 0
        _work(kind, tall, frame, me)

    return compiler.c_function(task)
