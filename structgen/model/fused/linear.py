"""Linear layers with weights of int8 in a model that otherwise runs as transformers has it."""

from __future__ import annotations

import numpy as np
import torch

from structgen.model.compiled.threads import COUNTER
from structgen.model.fused import operands, passes
from structgen.model.fused.programs import (
    Pass,
    block_rows,
    make_activations,
    multiply,
    records,
    threads_for,
)
from structgen.model.fused.scratch import Activations
from structgen.model.fused.weights import pack
from structgen.model.team import Team


def fits(module: torch.nn.Module) -> bool:
    """Return whether an Int8Linear can stand in for a module."""
    return type(module) is torch.nn.Linear and module.in_features % passes.GROUP == 0


def quantise(model: torch.nn.Module, threads: int) -> None:
    """Put an Int8Linear in place of each linear layer that fits, one after the other."""
    shared = _Shared(threads)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, torch.nn.Linear) and fits(child):
                setattr(parent, name, Int8Linear(child, shared))


class Int8Linear(torch.nn.Module):
    """The linear layer that it is made of, but for what rounding to 8 bits costs.

    On a CPU, on one thread at a time of all that share what they compute in.
    """

    def __init__(self, linear: torch.nn.Linear, shared: _Shared) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._packed = pack(linear.weight, linear.bias, torch.int8)
        self._shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [..., out_features] of [..., in_features], of the same dtype."""
        rows = x.reshape(-1, self.in_features).to(torch.float32).contiguous()
        out = torch.empty(len(rows), self._packed.num_columns)
        if len(rows):
            activations = self._shared.room_for(len(rows), self.in_features)
            quantised = make_activations(passes.QUANTISE, self.in_features, activations)
            product = multiply(self._packed, out, activations)
            cost = self.in_features * self._packed.num_columns
            row_bytes = rows[0].nbytes + out[0].nbytes + activations.row_bytes
            steps = [quantised | {"x": rows.data_ptr()}, product]
            self._shared.run(steps, len(rows), cost, row_bytes)
        return out[:, : self.out_features].to(x.dtype).view(*x.shape[:-1], self.out_features)


class _Shared:
    """What the layers of one model compute in, and with."""

    def __init__(self, threads: int) -> None:
        self._team = Team(threads)
        self._task = passes.compile_task(passes.BITS_INT8)
        self._element_size = operands.bytes_of_activation(1)
        self._room = Activations(0, 0, self._element_size)
        self._counters = np.zeros((2, self._team.size, COUNTER), np.int64)
        self._program = np.zeros(1, passes.PROGRAM)
        self._program["counters"] = self._counters.ctypes.data
        self._program["barrier"] = self._team.barrier
        self._program["thread_number"] = self._team.thread_number

    def room_for(self, num_rows: int, width: int) -> Activations:
        """Return room for so many rows, or more."""
        if num_rows > self._room.num_rows or width > self._room.row_width:
            width = max(width, self._room.row_width)
            self._room = Activations(max(num_rows, self._room.num_rows), width, self._element_size)
        return self._room

    def run(self, steps: list[Pass], num_rows: int, cost: int, row_bytes: int) -> None:
        """Do passes over rows.  cost: multiply-adds of one row.  row_bytes: see block_rows."""
        size = threads_for(num_rows * cost, self._team.size)
        passes_ = records(steps)
        program = self._program
        program["num_passes"], program["passes"] = len(passes_), passes_.ctypes.data
        program["num_rows"], program["num_threads"] = num_rows, size
        program["block_rows"] = block_rows(num_rows, self._team.size, row_bytes)
        self._counters.fill(0)
        self._team.run(self._task, program.ctypes.data, size)
