"""Where keys and values lie in a block of the cache, and how new ones get there.

The layout is in numba_kernel.py, and so is the frame.
"""

# What numba compiles is its own dialect, with its own types, and its typing API has none.
# mypy: ignore-errors

from __future__ import annotations

import numba
import numpy as np

from structgen.model.attention.numba_vectors import (
    copy_short,
    copy_word,
    lanes,
    pack,
    read_number,
    read_numbers,
    write_cached,
)
from structgen.model.compiled.compiler import inline, jit
from structgen.model.compiled.threads import call, runs
from structgen.model.compiled.vectors import pointer_to

_TILE = 16  # new tokens that are stored as one unit of work


@inline()
def round_up(size, step):
    return (size + step - 1) // step * step


@inline()
def half_bytes(kind, frame):
    """Return the bytes of a block's keys of one head; its values follow."""
    dim = round_up(frame.head_dim, lanes(kind))
    return dim * frame.block_size * 4 // pack(kind)


@inline()
def _copy_row(kind, source, is_float32, count, target):
    """Write `count` numbers of the input in a row, as the cache keeps them."""
    width, source_width = 4 // pack(kind), 4 if is_float32 else 2
    whole = count // lanes(kind) * lanes(kind)
    for d in range(0, whole, lanes(kind)):
        numbers = read_numbers(kind, source + d * source_width, is_float32)
        write_cached(kind, numbers, target + d * width)
    for d in range(whole, count):
        number = read_number(source + d * source_width, is_float32)
        write_cached(kind, number, target + d * width)
    write_cached(kind, np.float32(0), target + count * width)  # the rest of a word


@jit()
def _store_token(kind, frame, k, v, keys, values, offset, row):
    """Put the key and the value of one token and head to its place.

    k, v, keys, values: addresses; row: that of a row of scratch.
    """
    size, dim, is_float32 = frame.block_size, frame.head_dim, frame.input_bytes == 4
    row_bytes = round_up(dim, lanes(kind)) * 4
    _copy_row(kind, k, is_float32, dim, row)
    for j in range((dim + pack(kind) - 1) // pack(kind)):
        copy_word(row + j * 4, keys + (j * size + offset) * 4)
    _copy_row(kind, v, is_float32, dim, row)
    target = values + offset // pack(kind) * row_bytes
    if pack(kind) == 1:
        for d in range(dim):
            copy_word(row + d * 4, target + d * 4)
    elif offset == size - 1 and size % 2 == 1:
        for d in range(dim):
            copy_short(row + d * 2, target + d * 2)
    else:
        for d in range(dim):
            copy_short(row + d * 2, target + offset % 2 * 2 + d * 4)


@inline()
def _store(kind, frame, token, slot, row):
    """Put the keys and values of one new token to its slot."""
    block, offset = slot // frame.block_size, slot % frame.block_size
    half = half_bytes(kind, frame)
    for head in range(frame.num_kv_heads):
        k = frame.k + token * frame.k_token + head * frame.k_head
        v = frame.v + token * frame.v_token + head * frame.v_head
        keys = frame.cache + (block * frame.num_kv_heads + head) * 2 * half
        _store_token(kind, frame, k, v, keys, keys + half, offset, row)


@jit()
def store_all(kind, frame, me, row):
    """Store a thread's share of the new tokens, and of what others are late with; wait for them."""
    count = frame.num_threads
    slots = numba.carray(pointer_to(frame.slots), frame.num_tokens, np.int64)
    for first, stop in runs(frame.counters, frame.num_tokens, _TILE, me, count):
        for token in range(first, stop):
            _store(kind, frame, token, slots[token], row)
    if count > 1:
        call(frame.barrier)
