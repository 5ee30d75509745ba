"""The arithmetic between two attentions, as a program: a list of passes over the rows of a step.

Few rows are computed together: a pass is done by all threads at once, who take its units of work
until there are none, and then wait for each other, so that each weight is read by one of them.
Many rows are computed apart: a thread takes a block of rows through the whole program, so that they
stay in its cache and nobody waits before the end; each thread reads every weight.  What a row
becomes depends on that row alone, in every bit: its sums are added up in one order, whichever rows
are computed along with it.

    NORMALISE   x * weight / root mean square of x     -> activations
    QUANTISE    x                                      -> activations
    ACTIVATE    gate * sigmoid(gate) * up              -> activations
    MULTIPLY    activations times weights, plus bias   -> out, or added to out
    ROTATE      queries, keys and values: normalised, rotated by their positions, parted

Activations are rows of words (operands.py).  Those of int8 have a scale for each GROUP of a row, so
that its largest element is 127: one that stands out costs its group precision, not the row.

    row       [width]           whole numbers in [-127, 127]
    scales    [width / GROUP]   what they are to be multiplied by
    starts    [width / GROUP]   -128 times their sum, for weights are stored plus 128

Weights lie in panels of PANEL columns, word after word.  Gates and ups alternate, LANES of each.
All other rows are float32.
"""

# mypy: ignore-errors

from __future__ import annotations

import functools
import math

import numba
import numpy as np
from numba import types
from numba.extending import overload

from structgen.model.compiled import compiler, instructions, threads, vectors
from structgen.model.compiled.compiler import jit
from structgen.model.compiled.threads import COUNTER_BYTES, call, call_for_number, runs
from structgen.model.compiled.vectors import (
    larger_size,
    largest,
    load_one,
    pointer_to,
    store,
    store_one,
    total,
)
from structgen.model.fused import operands, tiles
from structgen.model.fused.operands import (
    HAS_32_REGISTERS,
    LANES,
    activation_size,
    element_size,
    load,
    no_integers,
    pack,
    sigmoid,
    splat,
    store_whole,
)
from structgen.model.fused.tiles import PANEL_VECTORS

NORMALISE, QUANTISE, ACTIVATE, MULTIPLY, ROTATE = range(5)

BITS_INT8, BITS_BFLOAT16, BITS_FLOAT32 = np.int8, np.uint16, np.float32

PANEL = PANEL_VECTORS * LANES
GROUP = 64
_LINE = 4 * LANES  # bytes of a vector
_PANEL_LINE = 4 * PANEL
_UNIT_ROWS = 240  # their activations stay in the second level cache; whole tiles
_AHEAD = 18 * 1024  # bytes of weights between what is read and what is asked for

PASS = np.dtype(
    [
        ("kind", np.int64),
        # Addresses: rows to read, and to write; scales and starts of those that are activations.
        *((name, np.intp) for name in ("x", "made", "out", "row_scales", "row_starts")),
        # Addresses: weights, and of MULTIPLY a scale and a bias for each column.
        *((name, np.intp) for name in ("weights", "scales", "biases")),
        # Addresses, of ROTATE: keys and values to write, and norms of their heads, or 0.
        *((name, np.intp) for name in ("keys", "values", "query_norm", "key_norm")),
        # Elements of a row that are computed with, and from one row of activations to the next.
        *((name, np.int64) for name in ("width", "row_width")),
        *((name, np.int64) for name in ("num_columns", "adds")),
        *((name, np.int64) for name in ("num_heads", "num_kv_heads", "head_dim")),
        ("epsilon", np.float32),
    ],
    align=True,
)

# What the threads of one call are given the address of.
PROGRAM = np.dtype(
    [
        # block_rows: rows of a block if they are computed apart, else 0.
        *((name, np.int64) for name in ("num_passes", "num_rows", "num_threads", "block_rows")),
        # Addresses.  cosines, sines: float32 [num_rows, head_dim / 2].  counters: zeros, int64
        # [num_passes, num_threads, COUNTER] (threads.py).  barrier, thread_number: C functions.
        *((name, np.intp) for name in ("passes", "cosines", "sines")),
        *((name, np.intp) for name in ("counters", "barrier", "thread_number")),
    ],
    align=True,
)

# --- passes over rows ---


def _pack(bits, source, width, out, scales, starts):
    """Write a row as activations."""


@overload(_pack)
def _choose_pack(bits, source, width, out, scales, starts):
    return _pack_groups if bits.instance_type == types.int8 else _pack_plain


def _pack_plain(bits, source, width, out, scales, starts):
    step = LANES * activation_size(bits)
    for index in range(width // LANES):
        pack(bits, load(source + index * _LINE), out + index * step)


def _pack_groups(bits, source, width, out, scales, starts):
    size = activation_size(bits)
    poison = splat(np.float32(0))
    for group in range(width // GROUP):
        at = source + 4 * GROUP * group
        most, numbers = splat(np.float32(0)), no_integers()
        for offset in range(0, 4 * GROUP, _LINE):
            lanes = load(at + offset)
            most = larger_size(most, lanes)
            # 0, but NaN for what is not finite, which whole numbers would hide.
            poison = poison + lanes * splat(np.float32(0))
        peak = largest(most)
        factor = splat(np.float32(127) / peak if peak > 0 else np.float32(0))
        for offset in range(0, GROUP, LANES):
            lanes = load(at + 4 * offset) * factor
            packed = pack(bits, lanes, out + size * (GROUP * group + offset))
            numbers = numbers + packed
        store_one(peak / np.float32(127), scales + 4 * group)
        store_whole(np.int32(-128) * total(numbers), starts + 4 * group)
    store_one(load_one(scales) + total(poison), scales)


@jit()
def _root(squares, width, epsilon):
    """Return 1 / the root of the mean square."""
    return np.float32(1) / np.float32(math.sqrt(squares / np.float32(width) + epsilon))


@jit()
def _activate(source, width):
    """Put gate * sigmoid(gate) * up in place of the first half of a row of gates and ups."""
    for index in range(width // LANES):
        at = source + index * 2 * _LINE
        gate = load(at)
        lanes = gate * sigmoid(gate) * load(at + _LINE)
        store(lanes, source + index * _LINE)


@jit()
def _normalise(source, weights, width, epsilon, out):
    squares = splat(np.float32(0))
    for at in range(source, source + 4 * width, _LINE):
        squares = squares + load(at) * load(at)
    root = splat(_root(total(squares), width, epsilon))
    for at in range(0, 4 * width, _LINE):
        store(load(source + at) * root * load(weights + at), out + at)


@jit()
def _make_activations(bits, step, first, stop):
    """Make the activations of rows [first, stop)."""
    width, groups = step.width, 4 * (step.row_width // GROUP)
    for row in range(first, stop):
        source = step.x + 4 * width * row
        if step.kind == NORMALISE:
            made = step.made + 4 * width * row
            _normalise(source, step.weights, width, step.epsilon, made)
            source = made
        elif step.kind == ACTIVATE:
            source += 4 * width * row
            _activate(source, width)
        out = step.out + step.row_width * activation_size(bits) * row
        scales, starts = step.row_scales + groups * row, step.row_starts + groups * row
        _pack(bits, source, width, out, scales, starts)


@jit()
def _turn(source, cosines, sines, half, out):
    """Rotate the pairs (x[d], x[d + half]) of a head."""
    whole = 4 * (half // LANES * LANES)
    for d in range(0, whole, _LINE):
        cosine, sine = load(cosines + d), load(sines + d)
        left, right = load(source + d), load(source + 4 * half + d)
        store(left * cosine - right * sine, out + d)
        store(right * cosine + left * sine, out + 4 * half + d)
    for d in range(whole, 4 * half, 4):
        cosine, sine = load_one(cosines + d), load_one(sines + d)
        left, right = load_one(source + d), load_one(source + 4 * half + d)
        store_one(left * cosine - right * sine, out + d)
        store_one(right * cosine + left * sine, out + 4 * half + d)


@jit()
def _rotate_row(step, row, cosines, sines):
    size, half = 4 * step.head_dim, step.head_dim // 2
    source = step.x + (step.num_heads + 2 * step.num_kv_heads) * size * row
    for head in range(step.num_heads + step.num_kv_heads):
        if head < step.num_heads:
            norm, target = step.query_norm, step.out + (step.num_heads * row + head) * size
        else:
            norm = step.key_norm
            target = step.keys + (step.num_kv_heads * row + head - step.num_heads) * size
        if norm:
            _normalise(source, norm, step.head_dim, step.epsilon, source)
        _turn(source, cosines, sines, half, target)
        source += size
    target = step.values + step.num_kv_heads * size * row
    for at in range(0, step.num_kv_heads * size, _LINE):
        store(load(source + at), target + at)


@jit()
def _rotate(step, program, first, stop):
    size = 2 * step.head_dim  # of half a head
    for row in range(first, stop):
        _rotate_row(step, row, program.cosines + size * row, program.sines + size * row)


# --- products ---


def _sum_products(bits, rows, step, x, row, weights):
    """Return a tile: the products of some rows with a panel.  x: address of the first row."""


@overload(_sum_products, jit_options={"forceinline": True})
def _choose_sum_products(bits, rows, step, x, row, weights):
    return _sum_groups if bits.instance_type == types.int8 else _sum_plain


def _sum_plain(bits, rows, step, x, row, weights):
    x_step = step.row_width * activation_size(bits)
    tile = tiles.zeros(rows)
    for word in range(step.width * element_size(bits) // 4):
        words = weights + _PANEL_LINE * word
        tile = tiles.add_products(bits, tile, x + 4 * word, x_step, words)
        tiles.prefetch(words + _AHEAD)
    return tile


def _sum_groups(bits, rows, step, x, row, weights):
    groups = 4 * (step.row_width // GROUP)
    scales, starts = step.row_scales + groups * row, step.row_starts + groups * row
    size = activation_size(bits)
    tile = tiles.zeros(rows)
    for group in range(0, 4 * (step.width // GROUP), 4):
        whole = tiles.starts(rows, starts + group, groups)
        for _ in range(GROUP // 4):
            whole = tiles.add_products(bits, whole, x, size * step.row_width, weights)
            tiles.prefetch(weights + _AHEAD)
            x += 4 * size
            weights += _PANEL_LINE
        tile = tiles.add_scaled(tile, whole, scales + group, groups)
    return tile


@jit(forceinline=True)
def _tile(bits, rows, step, row, column, weights):
    """Multiply the rows of one tile, an element of the tuple `rows` each, by one panel."""
    x = step.x + step.row_width * activation_size(bits) * row
    tile = _sum_products(bits, rows, step, x, row, weights)
    tile = tiles.scale_columns(tile, step.scales + 4 * column, step.biases + 4 * column)
    out_step = 4 * step.num_columns
    target = step.out + out_step * row + 4 * column
    if step.adds:
        tile = tiles.add_tile(tile, target, out_step)
    tiles.store_tile(tile, target, out_step)


_SIX, _FOUR, _TWO, _ONE = ((0,) * count for count in (6, 4, 2, 1))


@jit()
def _multiply_panel(bits, step, row, stop, panel):
    """Multiply rows [row, stop) by one panel, in tiles of as many rows as registers can hold."""
    column = panel * PANEL
    weights = step.weights + step.width * element_size(bits) * column
    while row < stop:
        left = stop - row
        if HAS_32_REGISTERS and left >= 6:
            _tile(bits, _SIX, step, row, column, weights)
            row += 6
        elif left >= 4:
            _tile(bits, _FOUR, step, row, column, weights)
            row += 4
        elif left >= 2:
            _tile(bits, _TWO, step, row, column, weights)
            row += 2
        else:
            _tile(bits, _ONE, step, row, column, weights)
            row += 1


# --- programs ---


@jit()
def _do(bits, program, step, row, stop, panel, num_panels):
    """Do a pass, of rows [row, stop) and, if it is a product, of some panels."""
    if step.kind == MULTIPLY:
        for index in range(panel, panel + num_panels):
            _multiply_panel(bits, step, row, stop, index)
    elif step.kind == ROTATE:
        _rotate(step, program, row, stop)
    else:
        _make_activations(bits, step, row, stop)


@jit()
def _divide(step):
    """Return the panels of a pass, and the rows of a unit of work: of one panel, if there are any.

    What is no product counts as one panel.
    """
    is_product = step.kind == MULTIPLY
    return (step.num_columns // PANEL, _UNIT_ROWS) if is_product else (1, 1)


@jit()
def _run_together(bits, program, steps, me):
    """Do a thread's share of every pass, and what others are late with."""
    count = program.num_threads
    for index in range(program.num_passes):
        if index and count > 1:
            call(program.barrier)
        step = steps[index]
        num_panels, size = _divide(step)
        num_units = num_panels * ((program.num_rows + size - 1) // size)
        counters = program.counters + COUNTER_BYTES * index * count
        for unit, _ in runs(counters, num_units, 1, me, count):
            row = unit // num_panels * size
            end = min(row + size, program.num_rows)
            _do(bits, program, step, row, end, unit % num_panels, 1)


@jit()
def _run_apart(bits, program, steps, me):
    """Do every pass of a thread's share of the rows, and of what others are late with."""
    count, size = program.num_threads, program.block_rows
    for row, end in runs(program.counters, program.num_rows, size, me, count):
        for index in range(program.num_passes):
            num_panels, _ = _divide(steps[index])
            _do(bits, program, steps[index], row, end, 0, num_panels)


@functools.cache
def compile_task(bits: type[np.generic]) -> int:
    """Return the address of what each thread runs: a C function of the address of a PROGRAM."""
    source = compiler.digest(compiler, instructions, threads, vectors, operands, tiles)

    def task(address):
        _ = source
        program = numba.carray(address, 1, PROGRAM)[0]
        steps = numba.carray(pointer_to(program.passes), program.num_passes, PASS)
        me = call_for_number(program.thread_number) if program.num_threads > 1 else 0
        if program.block_rows:
            _run_apart(bits, program, steps, me)
        else:
            _run_together(bits, program, steps, me)

    return compiler.c_function(task)
