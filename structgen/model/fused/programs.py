"""The programs of a decoder, written out: which passes, over which memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from structgen.model.compiled import chain
from structgen.model.compiled.compiler import second_level_cache_bytes
from structgen.model.compiled.threads import COUNTER
from structgen.model.fused import passes
from structgen.model.fused.decoder import Decoder, Layer, Norm
from structgen.model.fused.scratch import Activations, Scratch
from structgen.model.fused.weights import PackedLinear
from structgen.model.team import Team

Pass = dict[str, int | float]

# Multiply-adds that one thread does alone, in some 10 us: a few times what waking the others takes.
_GRAIN = 1 << 20

# Rows of a thread's share from which on it is better to read all weights than to exchange rows: on
# two cores that share a cache 16 rows gained 4 % in all, on two that do not 20 %.
_ROWS_APART = 8

# Rows of a block: whole tiles, as many as pass through this part of the second level cache, beside
# the weights, which each block reads: with 2 MiB of it, 24 rows were 3 to 8 % faster than 12.
_BLOCK_ROWS, _MOST_BLOCK_ROWS = 12, 48
_CACHE_SHARE = 0.4


def threads_for(cost: int, threads: int) -> int:
    """Return how many of so many threads are to do that many multiply-adds."""
    return 1 if cost < _GRAIN else threads


def block_rows(num_rows: int, threads: int, row_bytes: int) -> int:
    """Return the rows of a block if threads compute rows apart, else 0.

    row_bytes: of all that a row is read from and written to.
    """
    if num_rows < _ROWS_APART * threads:
        return 0
    fitting = int(_CACHE_SHARE * second_level_cache_bytes()) // row_bytes
    return min(max(fitting // _BLOCK_ROWS, 1) * _BLOCK_ROWS, _MOST_BLOCK_ROWS)


class Programs:
    """Program i begins with what is left of layer i - 1, and ends with what layer i attends to.

    The last but one only ends the last layer, and the last one is the head's; their rows are chosen
    ones, which come from outside.
    calls: of the programs, CALL records (compiled/chain.py).
    """

    def __init__(self, decoder: Decoder, scratch: Scratch, team: Team, task: int) -> None:
        programs = [*_between_attentions(decoder, scratch), _head(decoder, scratch)]
        counts = np.array([len(program) for program in programs])
        self._passes = records([one for program in programs for one in program])
        self._programs = np.zeros(len(programs), passes.PROGRAM)
        self._programs["num_passes"] = counts
        self._firsts = np.cumsum(counts) - counts
        places = self._passes.ctypes.data + self._firsts * passes.PASS.itemsize
        self._programs["passes"] = places
        self._counters = np.zeros((len(programs), counts.max(), team.size, COUNTER), np.int64)
        own = np.arange(len(programs)) * self._counters[0].nbytes
        self._programs["counters"] = self._counters.ctypes.data + own
        self._programs["barrier"] = team.barrier
        self._programs["thread_number"] = team.thread_number
        self._most_threads = team.size
        self._row_bytes = scratch.row_bytes
        self._costs = [sum(_cost(one) for one in program) for program in programs]
        self.calls = np.zeros(len(programs), chain.CALL)
        self.calls["function"] = task
        addresses = np.arange(len(programs)) * passes.PROGRAM.itemsize
        self.calls["argument"] = self._programs.ctypes.data + addresses

    def set_step(self, cosines: torch.Tensor, sines: torch.Tensor) -> None:
        """Begin a step.  cosines, sines: of its rotary embeddings, float32 [N, head_dim / 2]."""
        count = len(cosines)
        self._counters.fill(0)
        self._set_rows(slice(None), count)
        self._programs["cosines"], self._programs["sines"] = cosines.data_ptr(), sines.data_ptr()

    def set_end(self, x: torch.Tensor, logits: torch.Tensor) -> None:
        """Say what the last two programs read and write, float32 [L, ...] both."""
        self._passes["x"][self._firsts[-2]] = x.data_ptr()
        self._passes["out"][-1] = logits.data_ptr()
        self._set_rows(slice(-2, None), len(x))
        self._programs["block_rows"][-1] = 0  # few rows and many weights

    def _set_rows(self, which: slice, count: int) -> None:
        self._programs["num_rows"][which] = count
        rows_apart = block_rows(count, self._most_threads, self._row_bytes)
        self._programs["block_rows"][which] = rows_apart
        threads = [threads_for(count * cost, self._most_threads) for cost in self._costs[which]]
        self._programs["num_threads"][which] = threads
        self.calls["num_threads"][which] = threads


def _between_attentions(decoder: Decoder, scratch: Scratch) -> list[list[Pass]]:
    begin = [_begin(decoder, layer, scratch) for layer in decoder.layers]
    end = [_end(layer, scratch) for layer in decoder.layers]
    return [last + first for last, first in zip([[], *end], [*begin, []], strict=True)]


def _begin(decoder: Decoder, layer: Layer, scratch: Scratch) -> list[Pass]:
    """Return what makes queries, keys and values of the residual."""
    norms = {"query_norm": layer.query_norm, "key_norm": layer.key_norm}
    rotate: Pass = {name: norm.weight.data_ptr() for name, norm in norms.items() if norm}
    rotate |= {
        "kind": passes.ROTATE,
        "x": scratch.qkv.data_ptr(),
        "out": scratch.queries.data_ptr(),
        "keys": scratch.keys.data_ptr(),
        "values": scratch.values.data_ptr(),
        "num_heads": decoder.num_heads,
        "num_kv_heads": decoder.num_kv_heads,
        "head_dim": decoder.head_dim,
        "epsilon": layer.query_norm.epsilon if layer.query_norm else 0.0,
    }
    return [
        _normalise(layer.input_norm, scratch),
        multiply(layer.qkv, scratch.qkv, scratch.activations),
        rotate,
    ]


def _end(layer: Layer, scratch: Scratch) -> list[Pass]:
    """Return what adds to the residual: what was attended to, then the mlp's."""
    quantise = make_activations(passes.QUANTISE, layer.output.width, scratch.activations)
    activate = make_activations(passes.ACTIVATE, layer.down.width, scratch.activations)
    return [
        quantise | {"x": scratch.attended.data_ptr()},
        multiply(layer.output, scratch.residual, scratch.activations) | {"adds": 1},
        _normalise(layer.mlp_norm, scratch),
        multiply(layer.gate_up, scratch.gate_up, scratch.activations),
        activate | {"x": scratch.gate_up.data_ptr()},
        multiply(layer.down, scratch.residual, scratch.activations) | {"adds": 1},
    ]


def _head(decoder: Decoder, scratch: Scratch) -> list[Pass]:
    """Return what makes logits of rows of the residual, both of them outside."""
    head = multiply(decoder.head, scratch.residual, scratch.activations)
    return [_normalise(decoder.norm, scratch), head]


def _normalise(norm: Norm, scratch: Scratch) -> Pass:
    return make_activations(passes.NORMALISE, len(norm.weight), scratch.activations) | {
        "x": scratch.residual.data_ptr(),
        "made": scratch.normalised.data_ptr(),
        "weights": norm.weight.data_ptr(),
        "epsilon": norm.epsilon,
    }


def make_activations(kind: int, width: int, made: Activations) -> Pass:
    return {"kind": kind, "width": width, "out": made.elements.data_ptr()} | _rows(made)


def multiply(linear: PackedLinear, out: torch.Tensor, rows: Activations) -> Pass:
    return _rows(rows) | {
        "kind": passes.MULTIPLY,
        "x": rows.elements.data_ptr(),
        "out": out.data_ptr(),
        "weights": linear.weights.data_ptr(),
        "scales": linear.scales.data_ptr(),
        "biases": linear.biases.data_ptr(),
        "width": linear.width,
        "num_columns": linear.num_columns,
    }


def _rows(rows: Activations) -> Pass:
    return {
        "row_width": rows.row_width,
        "row_scales": rows.scales.data_ptr(),
        "row_starts": rows.starts.data_ptr(),
    }


def _cost(one: Pass) -> int:
    """Return the multiply-adds of a pass for one row; only products count."""
    return int(one.get("width", 0) * one.get("num_columns", 0))


def records(fields: list[Pass]) -> npt.NDArray[np.void]:
    """Return PASS records with these fields, the others 0."""
    all_records = np.zeros(len(fields), passes.PASS)
    for record, values in zip(all_records, fields, strict=True):
        for name, value in values.items():
            record[name] = value
    return all_records
