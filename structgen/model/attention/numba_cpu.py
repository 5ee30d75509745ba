"""The default on CPU: paged attention compiled by numba.

The keys and values of a (block, KV head) are contiguous, so that they are read once, in order, for
the whole group of query heads that shares them; keys lie transposed, as the kernel wants them:

    layer [num_blocks, Hk, 2, ...]    0: keys    1: values

with head_dim rounded up to whole vectors.  Work is cut into units: a run of one sequence's new
tokens times one KV head.  Each thread has a share of them, of sequences that lie side by side, of
which it is likely to have computed the rows; the costly ones come first, and who is done helps the
others.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from structgen import logs
from structgen.errors import ConfigError
from structgen.model.attention import numba_kernel as kernel
from structgen.model.attention.base import AttentionBackend, AttentionMetadata
from structgen.model.attention.numba_panels import KEY_TILE, MAX_HEAD_DIM
from structgen.model.attention.numba_vectors import Kind, kind_of
from structgen.model.compiled import chain
from structgen.model.compiled.threads import COUNTER
from structgen.model.team import Team

log = logs.get(__name__)

_NUMBERS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_INPUTS = (torch.float32, torch.bfloat16)  # what the kernel reads and writes

# Multiply-adds that one thread does alone, in some 20 us: a few times what waking the others takes.
_GRAIN = 1 << 18


class _Step(NamedTuple):
    """The work of one step, the same in every layer.

    units, shares: see _cut.  cost: keys that are looked at, of all new tokens.  slots, table: of
    the metadata, contiguous.
    """

    meta: AttentionMetadata
    heads: tuple[int, int]
    units: npt.NDArray[np.int64]
    shares: npt.NDArray[np.int64]
    cost: int
    slots: torch.Tensor
    table: torch.Tensor


class NumbaCpuAttention(AttentionBackend):
    """Runs on the threads that torch's own operators run on."""

    name: ClassVar[str] = "numba_cpu"

    def __init__(self, threads: int, kind: Callable[[str], Kind] = kind_of) -> None:
        """threads: as many as torch has; OpenMP rebuilds its pool when the number changes.

        kind: how to compute with numbers of a dtype, if not as suits the CPU best.
        """
        self._team = Team(threads)
        self._kinds = {dtype: kind(number) for dtype, number in _NUMBERS.items()}
        self._tasks: dict[torch.dtype, int] = {}
        self._step: _Step | None = None
        self._scratch = torch.zeros(0, dtype=torch.int8)
        self._make_frames(1)

    def kv_shape(
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int
    ) -> tuple[int, ...]:
        if head_dim > MAX_HEAD_DIM:
            raise ConfigError(f"head_dim must be at most {MAX_HEAD_DIM}, got {head_dim}")
        if block_size > KEY_TILE:
            raise ConfigError(f"block_size must be at most {KEY_TILE}, got {block_size}")
        lanes = self._kinds[torch.float32].lanes
        padded_dim = -(-head_dim // lanes) * lanes
        return (num_blocks, num_kv_heads, 2, block_size, padded_dim)

    def prepare(self, kv_dtype: torch.dtype) -> None:
        if kv_dtype not in self._kinds:
            raise ConfigError(f"kv_dtype must be one of {', '.join(map(str, self._kinds))}")
        began = time.perf_counter()
        self._tasks[kv_dtype] = kernel.compile_task(self._kinds[kv_dtype])
        log.info("kernel ready", kv_dtype=kv_dtype, seconds=round(time.perf_counter() - began, 1))

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
        dtype = q.dtype
        if dtype not in _INPUTS or k.dtype != dtype or v.dtype != dtype:
            q, k, v = q.float(), k.float(), v.float()
        q, k, v = _whole_rows(q), _whole_rows(k), _whole_rows(v)
        out = torch.empty(q.shape, dtype=q.dtype)
        size = self._write_frame(
            q, k, v, out, kv_layer, meta, scale=scale, window=window, softcap=softcap
        )
        self._team.run(self._tasks[kv_layer.dtype], self._frames.ctypes.data, size)
        return out if out.dtype == dtype else out.to(dtype)

    def calls(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        kv_layers: Sequence[torch.Tensor],
        meta: AttentionMetadata,
        *,
        scales: Sequence[float],
        windows: Sequence[int | None],
    ) -> npt.NDArray[np.void]:
        count = len(kv_layers)
        if count > len(self._frames):
            self._make_frames(count)
        size = self._write_frame(
            q, k, v, out, kv_layers[0], meta, scale=scales[0], window=windows[0], softcap=None
        )
        frames = self._frames[:count]
        frames[1:] = frames[0]
        counters = np.arange(count) * self._counters[0].nbytes
        frames["counters"] = self._counters.ctypes.data + counters
        frames["cache"] = [layer.data_ptr() for layer in kv_layers]
        frames["scale"] = scales
        frames["window"] = [meta.max_k if window is None else window for window in windows]
        calls = np.zeros(count, chain.CALL)
        calls["function"] = self._tasks[kv_layers[0].dtype]
        calls["argument"] = frames.ctypes.data + np.arange(count) * frames.itemsize
        calls["num_threads"] = size
        return calls

    def _write_frame(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        kv_layer: torch.Tensor,
        meta: AttentionMetadata,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> int:
        """Write the first frame, clear the counters of all, and return the number of threads."""
        num_tokens, num_heads, head_dim = q.shape
        num_kv_heads, width = k.shape[1], q.element_size()
        step = self._cut(meta, num_heads, num_kv_heads)
        scratch, scratch_bytes = self._get_scratch(num_heads // num_kv_heads)
        is_small = step.cost * num_heads * head_dim < _GRAIN
        size = 1 if is_small else self._team.size
        self._counters.fill(0)
        # In the order of kernel.FRAME.
        _FRAME.pack_into(
            self._frames.data, 0,
            q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), kv_layer.data_ptr(),
            step.slots.data_ptr(), step.table.data_ptr(), scratch,
            step.units.ctypes.data, step.shares.ctypes.data, self._counters.ctypes.data,
            self._team.barrier, self._team.thread_number,
            *(stride * width for tensor in (q, k, v) for stride in tensor.stride()[:2]),
            size, num_tokens, *step.table.shape, len(step.units), num_heads,
            num_kv_heads, head_dim, kv_layer.shape[3], meta.max_k if window is None else window,
            scratch_bytes, width, scale, 0.0 if softcap is None else softcap,
        )  # fmt: skip
        return size

    def _make_frames(self, count: int) -> None:
        """Make room for calls of so many layers, each with counters of its own."""
        self._frames = np.zeros(count, kernel.FRAME)
        self._counters = np.zeros((count, 2, self._team.size, COUNTER), np.int64)

    def _cut(self, meta: AttentionMetadata, num_heads: int, num_kv_heads: int) -> _Step:
        """Return the work of a step; the same object for each layer of one forward."""
        step, heads = self._step, (num_heads, num_kv_heads)
        if step is None or step.meta is not meta or step.heads != heads:
            most = max(1, kernel.ROW_TILE // (num_heads // num_kv_heads))
            units, costs = _cut(meta, most, num_kv_heads)
            units, shares = _share(units, costs, self._team.size)
            slots, table = meta.slot_mapping.contiguous(), meta.block_table.contiguous()
            cost = int(costs.sum()) // num_kv_heads
            step = self._step = _Step(meta, heads, units, shares, cost, slots, table)
        return step

    def _get_scratch(self, group: int) -> tuple[int, int]:
        """Return the address of the threads' scratch, and the bytes of each thread's."""
        size_bytes = kernel.scratch_bytes(max(kernel.ROW_TILE, group))
        if self._scratch.numel() < size_bytes * self._team.size:
            self._scratch = torch.zeros(size_bytes * self._team.size, dtype=torch.int8)
        return self._scratch.data_ptr(), size_bytes


_FRAME = struct.Struct(f"{len(kernel.FRAME.fields or ()) - 2}q2d")


def _whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose numbers of one head are consecutive."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()


def _cut(
    meta: AttentionMetadata, most: int, num_kv_heads: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Cut each sequence's new tokens into runs of at most `most`, and these into units, by KV head.

    Returns [num_units, 5], see kernel.FRAME, and the cost of each.
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
    runs = np.stack([sequence, first, count, position], axis=1)
    heads = np.tile(np.arange(num_kv_heads), len(runs))
    units = np.column_stack([np.repeat(runs, num_kv_heads, axis=0), heads])
    return units, np.repeat(count * (position + count), num_kv_heads)


def _share(
    units: npt.NDArray[np.int64], costs: npt.NDArray[np.int64], num_shares: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Share units out, side by side and of like cost, and put the costly ones of a share first.

    Returns the units in that order, and int64 [num_shares + 1], where each share begins.
    """
    ends = costs.cumsum()
    owners = (ends - (costs + 1) // 2) * num_shares // ends[-1]
    order = np.lexsort((-costs, owners))
    shares = np.searchsorted(owners, np.arange(num_shares + 1))
    return np.ascontiguousarray(units[order]), shares.astype(np.int64)
